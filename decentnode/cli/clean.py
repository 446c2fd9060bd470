"""What can be deleted below a folder of runs, and why: no results, and nothing of a run in progress."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from decentnode.core.atomic_files import TEMPORARY
from decentnode.core.streams import complain
from decentnode.core.text import counted, readable_bytes
from decentnode.datasets.image_folder import usual_cache
from decentnode.errors import BadInput, ExitCode
from decentnode.formats import transcript
from decentnode.formats.lease import lease_of
from decentnode.formats.run import FINISHED, RunFiles
from decentnode.launcher.processes.fork_server import dead_socket_directories
from decentnode.launcher.recovery.resume import EARLIER, OF_ROUNDS
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.run_directory import RunLock
from decentnode.node.checkpoint.store import FOLDER as CHECKPOINTS

REPEATED = re.compile(r"\.(failed|interrupted)-\d+$")
"""Ends the names of runs that a sweep has moved aside, to repeat them."""


@dataclass(frozen=True)
class Leftover:
    """A file or folder that no result needs."""

    path: Path
    why: str
    run: Path | None = None
    """The run that it is of, which nobody else may have while it is deleted."""

    @property
    def bytes(self) -> int:
        """Its size on the disk, as far as it can be read."""
        if not self.path.is_dir():
            return self.path.lstat().st_size
        files = (Path(folder, name) for folder, _, names in os.walk(self.path) for name in names)
        return sum(file.lstat().st_size for file in files)


def leftovers(folder: Path, caches: bool) -> Iterator[Leftover]:
    """Yields what can be deleted of the runs below a folder, and what killed runs have left elsewhere.

    `caches`: also decoded images, which the next run makes again.
    """
    for run in runs_below(folder):
        if lease_of(run) is None:
            try:
                yield from leftovers_of(run)
            except BadInput as error:  # damaged, or of another version
                complain(str(error), ExitCode.BAD_INPUT)
    for sockets in dead_socket_directories():
        yield Leftover(sockets, "sockets of a run that was killed")
    for images in sorted(usual_cache().glob("images-*.u8*")) if caches else ():
        yield Leftover(images, "decoded images, which the next run makes again")


def runs_below(folder: Path) -> Iterator[Path]:
    """Yields the directories of runs, and of each machine's part, by name."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        if "config.yaml" in files and "records" in folders:
            folders[:] = [name for name in folders if name.startswith("machine-")]
            yield Path(place)


def leftovers_of(run: Path) -> Iterator[Leftover]:
    """Yields what no result of a run needs, whoever has its lock."""
    files = [run / "summary.json", run / "evaluations.jsonl"]
    # Those of other machines may be in that of the first one.
    for folder in (*map(run.joinpath, OF_ROUNDS), *run.glob(f"{EARLIER}-*"), *run.glob("machine-*")):
        files += folder.rglob("*")
    if not any(path.is_file() and path.stat().st_size for path in files):
        yield Leftover(run, "a start that has come to nothing", run)
        return
    checkpoints, is_finished = run / CHECKPOINTS, RunFiles(run).state == FINISHED
    if is_finished:
        yield from _existing(checkpoints, "of a finished run; only more rounds would need them", run)
        yield from _existing(run / transcript.FOLDER, "of a finished run; only attacks would need it", run)
    elif REPEATED.search(run.name):
        yield from _existing(checkpoints, "of an attempt that a sweep has repeated", run)
    for earlier in sorted(run.glob(f"{EARLIER}-*")):
        yield from _existing(earlier / CHECKPOINTS, "of an attempt that began again", run)
    for path in sorted(path for path in files if path.name.endswith(TEMPORARY)):
        if not (is_finished and path.is_relative_to(checkpoints)):
            yield Leftover(path, "half written when a process was killed", run)


def _existing(folder: Path, why: str, run: Path) -> Iterator[Leftover]:
    if any(folder.rglob("*.*")):
        yield Leftover(folder, why, run)


def lines_about(leftovers_found: Iterable[Leftover]) -> Iterator[str]:
    """Yields a line for each, the largest first, and one about all."""
    sizes = {leftover: leftover.bytes for leftover in leftovers_found}
    for leftover in sorted(sizes, key=lambda one: -sizes[one]):
        yield f"{readable_bytes(sizes[leftover]):>9}  {leftover.path}: {leftover.why}"
    yield f"{readable_bytes(sum(sizes.values())):>9}  in {counted(len(sizes), 'place')}"


def delete(leftovers_found: Iterable[Leftover]) -> list[str]:
    """Deletes what is still a leftover; returns a line for each that was not deleted."""
    problems: list[str] = []
    for run, of_run in groupby(leftovers_found, key=lambda leftover: leftover.run):
        try:
            lock = RunLock(run) if run else None
        except BadInput as error:
            problems += error.lines
            continue
        # It may have been resumed since, and have ended again.
        still = {*leftovers_of(run)} if run else set()
        for leftover in of_run:
            if run and leftover not in still:
                problems.append(f"{leftover.path}: is needed again")
                continue
            try:
                if run and leftover.path.parent == run and leftover.path.is_dir():
                    # Before the deletion: nobody is to miss what an interrupted one has left.
                    log = EventLog(run / "events.jsonl", print)
                    log.log("cleaned", leftover.path.name, shown=False)
                    log.close()
                shutil.rmtree(leftover.path) if leftover.path.is_dir() else leftover.path.unlink()
            except OSError as error:
                problems.append(f"{leftover.path}: cannot be deleted: {error.strerror or error}")
        if lock is not None:
            lock.release()
    return problems
