"""Work in parts, which processes do in parallel and an interrupted preparation does not do again."""

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from decentnode.core.atomic_files import write_durably
from decentnode.core.control_groups import processors
from decentnode.core.polling import ready
from decentnode.core.process_setup import ForkedProcess, die_with, end_thread_pools
from decentnode.core.streams import print_line
from decentnode.core.text import counted
from decentnode.errors import STOPPED_BY, BadInput, DecentnodeError, ExitCode

WORK = ".decentnode-prepare"
"""The folder, below that of the data, for what is needed until all is there."""
ORDER = 4
"""Bytes of the number of a part."""
MOST_BYTES = 4096
"""Bytes of an answer: so many go through a pipe at once, or not at all."""


class PartFailed(DecentnodeError):
    """A part could not be made."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True)
class WorkPart:
    """What one process makes; it leaves nothing that could be taken for whole when it is interrupted."""

    name: str
    """The part in messages, and in records of what is made."""
    make: Callable[[], object]
    size: int = 1
    """Its share of the progress bar, in the unit of the step."""


@dataclass(frozen=True)
class PreparedFiles:
    """What a preparation has made."""

    reader: str
    """The data set that reads it."""
    options: Mapping[str, str]
    """The options of the data set, apart from its path and those that were given."""
    experiment: str
    """A shipped configuration that reads it."""
    lines: Sequence[str]
    """What is there, to be printed."""


class Preparation:
    """A folder in which steps, one after the other, make their parts in processes."""

    def __init__(self, folder: Path, processes: int | None = None, checks_sums: bool = True) -> None:
        """`processes`: null for one on each processor. `checks_sums`: whether raw files are compared."""
        self.folder = folder
        self.work = folder / WORK
        self.checks_sums = checks_sums
        self._processes = processes or processors()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other preparations out of the folder; raises BadInput."""
        try:
            self.work.mkdir(exist_ok=True)
            file = (self.work / "lock").open("w")
        except OSError as error:
            raise BadInput(f"{self.folder}: {error.strerror}; name a folder that can be written") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BadInput(f"{self.folder}: another process prepares it; wait for its end") from error
            yield

    def make(self, title: str, parts: Sequence[WorkPart], unit: str, record: Path | None = None) -> None:
        """Makes parts in parallel, and shows how many of a unit; raises BadInput or PartFailed.

        `record`: the file with the names of those that are made, which are not made again.
        """
        made = record.read_text().splitlines() if record and record.is_file() else []
        parts = [part for part in parts if part.name not in made]
        if not parts:
            return
        end_thread_pools()
        workers, waiting = list[_PartWorker](), [*range(len(parts))][::-1]
        try:
            # Before the progress bar, whose thread would not survive a fork.
            for _ in range(min(self._processes, len(parts))):
                workers.append(_PartWorker(parts))
            with _progress_bar(title, sum(part.size for part in parts)) as advance:
                for worker in workers:
                    worker.order(waiting.pop())
                while busy := {worker.answers: worker for worker in workers if worker.part is not None}:
                    for fd in ready(busy):
                        part = busy[fd].answer()
                        if record:
                            made.append(part.name)
                            write_durably(record, ["".join(f"{name}\n" for name in made).encode()])
                        advance(part.size)
                        if waiting:
                            busy[fd].order(waiting.pop())
        finally:
            for worker in workers:
                worker.close()
        print_line(f"{title}: done, {counted(sum(part.size for part in parts), unit)}")


class _PartWorker:
    """A process that makes one part after the other, as it is ordered."""

    def __init__(self, parts: Sequence[WorkPart]) -> None:
        self._parts = parts
        self.part: WorkPart | None = None
        """What it makes now."""
        self._process = ForkedProcess(partial(_work, parts, os.getpid()), down=1, up=1)
        self._orders, self.answers = self._process.ends

    def order(self, number: int) -> None:
        """Has it make the part of this number."""
        self.part = self._parts[number]
        # The next answer tells whether it has died.
        with suppress(BrokenPipeError):
            os.write(self._orders, number.to_bytes(ORDER))

    def answer(self) -> WorkPart:
        """Returns the part that is made now; raises BadInput or PartFailed."""
        assert self.part is not None
        part, answer = self.part, os.read(self.answers, MOST_BYTES)
        self.part = None
        if not answer:
            code, _ = self._process.reap()
            end = f"was killed by signal {-code}" if code and code < 0 else f"ended with exit code {code}"
            remedy = "run the command again, with fewer --processes if memory was short"
            raise PartFailed(f"{part.name}: its process {end}; {remedy}")
        if answer[0] != ExitCode.OK:
            kind = BadInput if answer[0] == ExitCode.BAD_INPUT else PartFailed
            raise kind(answer[1:].decode("utf-8", "replace"))
        return part

    def close(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.reap()
        self._process.close_ends()


def _work(parts: Sequence[WorkPart], parent: int, orders: int, answers: int) -> int:
    # First: it must not outlive a parent that dies now.
    die_with(parent)
    # A signal may go to all processes of a terminal, but only the parent ends this one.
    for signum in STOPPED_BY:
        signal.signal(signum, signal.SIG_IGN)
    while order := os.read(orders, ORDER):
        os.write(answers, _outcome(parts[int.from_bytes(order)])[:MOST_BYTES])
    return 0


def _outcome(part: WorkPart) -> bytes:
    """Makes a part; returns the exit code of its error, and the text."""
    try:
        part.make()
    except DecentnodeError as error:
        return bytes([error.exit_code]) + str(error).encode()
    except OSError as error:
        return bytes([ExitCode.FAILED]) + f"{error.filename or part.name}: {error.strerror or error}".encode()
    return bytes([ExitCode.OK])


@contextmanager
def _progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much of a step is made."""
    from rich import progress
    from rich.console import Console

    shown = progress.Progress(
        "{task.description}", progress.BarColumn(), progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(), progress.TimeRemainingColumn(),
        console=Console(stderr=True), disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with shown:
        task = shown.add_task(title, total=total)
        yield lambda size: shown.advance(task, size)
