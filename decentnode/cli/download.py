"""`decentnode download`: the files of a dataset, fetched, verified and unpacked where they are found."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from decentnode.core.streams import print_line
from decentnode.errors import ExitCode

if TYPE_CHECKING:
    from decentnode.datasets.base import Dataset
    from decentnode.datasets.download import Progress


def download(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A dataset, or one of the MNIST family such as kmnist.")
    ],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its options: variant=kmnist")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="That of all datasets; default: $DECENTNODE_DATASETS, or data."),
    ] = None,
) -> None:
    """Fetch the files of a dataset and verify them; may be repeated, and continues what was cut off."""
    from decentnode.datasets.download import DownloadFailed
    from decentnode.datasets.locate import FOLDERS, own_roots

    dataset = made(name, options or ())
    folder = to or next(iter(own_roots()), Path(FOLDERS[0]))
    if not dataset.reads_files:
        print_line(f"{name}: needs no files")
        return
    if place := complete_in(dataset, folder):
        print_line(f"{name}: complete in {place}; {usage(dataset, folder, place)}")
        return
    print_line(f"{name}: licence: {dataset.licence or 'see where the files are from'}")
    if not dataset.sources:
        print_line(f"{name}: nothing to fetch: {dataset.steps.format(folder=shlex.quote(str(folder)))}")
        raise typer.Exit(ExitCode.FAILED)
    try:
        fetch_all(dataset, folder)
    except DownloadFailed:
        print_line("by hand:")
        for line in by_hand(dataset, folder):
            print_line(f"  {line}")
        raise
    place = complete_in(dataset, folder)
    if place is None:
        raise DownloadFailed(f"{folder}: what was fetched is no complete set of files for {name}")
    print_line(f"{name}: complete in {place}; {usage(dataset, folder, place)}")


def made(name: str, options: Sequence[str]) -> "Dataset":
    """The dataset with its options; a variant of `idx` is a name, too. Raises BadInput."""
    from decentnode.cli.graph import make
    from decentnode.core.registry import DATASETS
    from decentnode.datasets.idx import Variant

    if name in get_args(Variant):
        return made("idx", [f"variant={name}", *options])
    # No path is needed to get what it will name.
    dataset: Dataset = make(DATASETS, name, [*options, "sample=true"])
    dataset.sample = False
    return dataset


def complete_in(dataset: "Dataset", folder: Path) -> Path | None:
    """The directory in the folder that has all files, those that are not unpacked with the right checksum."""
    from decentnode.datasets.download import is_right, place_of
    from decentnode.datasets.locate import FileDataset

    if not isinstance(dataset, FileDataset):
        return None
    plain = [source for source in dataset.sources if not source.unpack]
    if not all(is_right(place_of(source, folder), source) for source in plain):
        return None
    return dataset.find([folder])


def usage(dataset: "Dataset", folder: Path, place: Path) -> str:
    """How a configuration names the files."""
    from decentnode.core.registry import name_of
    from decentnode.datasets.locate import FOLDERS, own_roots

    options = {"variant": getattr(dataset, "variant", None)}
    is_usual = folder.absolute() in [*own_roots(), *(Path(name).absolute() for name in FOLDERS)]
    options["path"] = None if is_usual else str(place)
    words = "".join(f", {key}: {value}" for key, value in options.items() if value)
    return f"use it as dataset: {{name: {name_of(dataset)}{words}}}"


def fetch_all(dataset: "Dataset", folder: Path) -> None:
    """Fetches and unpacks what is missing; raises DownloadFailed."""
    from decentnode.datasets.download import fetch, name_of_file, unpack

    for source in dataset.sources:
        print_line(f"{source.url} ({megabytes(source.size)})")
        with progress_bar(name_of_file(source)) as progress:
            file = fetch(source, folder, progress)
        if source.unpack:
            unpack(file, file.parent)


@contextmanager
def progress_bar(title: str) -> "Iterator[Progress]":
    """Shows on a terminal how much of a file is here."""
    from rich import progress
    from rich.console import Console

    shown = progress.Progress(
        "{task.description}", progress.BarColumn(), progress.DownloadColumn(),
        progress.TransferSpeedColumn(), progress.TimeRemainingColumn(),
        console=Console(stderr=True), disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with shown:
        task = shown.add_task(title, total=None)
        yield lambda have, whole: shown.update(task, completed=have, total=whole or None)


def by_hand(dataset: "Dataset", folder: Path) -> Iterator[str]:
    """Commands that do the same elsewhere, one for each file."""
    from decentnode.datasets.download import place_of

    for source in dataset.sources:
        place = place_of(source, folder)
        path, into = shlex.quote(str(place)), shlex.quote(str(place.parent))
        line = f"curl -fL -C - --create-dirs -o {path} {shlex.quote(source.url)}"
        if source.unpack:
            is_zip = place.suffix == ".zip"
            line += f" && unzip -o {path} -d {into}" if is_zip else f" && tar xzf {path} -C {into}"
        yield f"{line}   # {megabytes(source.size)}, {source.checksum}"


def megabytes(size: int) -> str:
    """A size of a file in words."""
    return f"{size / 1e6:.3g} MB"
