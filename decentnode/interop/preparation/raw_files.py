"""Raw files: where they are from, whether they are those that were published, and what archives contain."""

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from decentnode.core.text import readable_bytes
from decentnode.datasets.base import Source
from decentnode.datasets.download import BLOCK, is_right, name_of_file
from decentnode.errors import BadInput
from decentnode.interop.preparation.parts import Preparation, WorkPart

CHECKED = "checked"
"""The file, in the folder of the work, with a line for each raw file whose checksum is right."""
DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


def found(folder: Path, source: Source) -> Path | None:
    """The raw file, where it is in the folder."""
    file = folder / name_of_file(source)
    return file if file.is_file() else None


def missing(folder: Path, source: Source, instead: str = "", account: str = "") -> BadInput:
    """The error for a raw file that is not there, with the address to fetch it from.

    `instead`: what would do as well; `account`: what the address asks for.
    """
    what = f"{folder / name_of_file(source)}: missing{f', and so is {instead}' if instead else ''}"
    facts = ", ".join(
        [*([readable_bytes(source.size)] if source.size else []), *([account] if account else [])]
    )
    return BadInput(f"{what}; fetch it {f'({facts}) ' if facts else ''}from {source.url}")


def check_sums(preparation: Preparation, sources: Sequence[Source]) -> None:
    """Compares raw files with the published checksums, each once; raises BadInput."""
    if not preparation.checks_sums:
        return
    parts = [
        WorkPart(_state(file, source), partial(_check, file, source))
        for source in sources
        if (file := found(preparation.folder, source))
    ]
    preparation.make("checksums", parts, "file", record=preparation.work / CHECKED)


def _state(file: Path, source: Source) -> str:
    status = file.stat()
    return f"{file.name} {status.st_size} {status.st_mtime_ns} {source.checksum}"


def _check(file: Path, source: Source) -> None:
    if not is_right(file, source):
        raise BadInput(
            f"{file}: its checksum is not {source.checksum}, that of {source.url}; fetch it again, or add "
            "--unchecked if it is to be another one"
        )


@contextmanager
def opened_tar(file: Path, offset: int = 0) -> Iterator[tarfile.TarFile]:
    """An archive, also one inside another that starts at `offset`; raises BadInput where it is damaged."""
    with file.open("rb") as opened:
        opened.seek(offset)
        try:
            # A packed archive is one alone.
            with tarfile.open(fileobj=opened, mode="r:" if offset else "r:*") as tar:
                yield tar
        except DAMAGED as error:
            raise BadInput(f"{file}: is no whole archive ({error}); fetch it again") from error


def files_in(tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """The files of an archive with their names, without folders, links, and what systems leave."""
    for member in tar:
        name = PurePosixPath(member.name).name
        if member.isfile() and not name.startswith("."):
            yield name, member


def blocks(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """The content of a file, in pieces."""
    while block := file.read(BLOCK):
        yield block


def joined(files: Sequence[Path]) -> Iterator[bytes]:
    """The content of files, one after the other, in pieces."""
    for file in files:
        with file.open("rb") as opened:
            yield from blocks(opened)
