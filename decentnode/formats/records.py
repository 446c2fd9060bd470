"""One JSON line per node and round (docs/results_records.md)."""

import os
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from decentnode.core.atomic_files import sync_folder, write_durably
from decentnode.core.clock import Clock
from decentnode.core.line_file import LineFile, Warn
from decentnode.errors import UNDECODABLE, BadInput
from decentnode.formats.metrics import Values
from decentnode.formats.reader import StrPath, read_lines

if TYPE_CHECKING:
    from decentnode.core.byte_counters import ByteCounters  # loads torch


class AuxiliaryRecords:
    """Further records of rounds at a node: models, what adversaries see, what private steps have spent."""

    def after(self, round: int) -> None:
        """Keeps what is due after this round."""

    def at_the_end(self, round: int) -> None:
        """Keeps what is only kept of the last round, which this one turned out to be."""

    def sync(self) -> str:
        """Waits until all so far is on disk; returns what is missing in one line, or an empty text."""
        return ""

    def close(self) -> str:
        """Ends the records of a node that has ended, and returns what `sync` does."""
        return self.sync()

    def cut_back(self, round: int) -> None:
        """Removes what is from later rounds, which the node repeats; raises BadInput and OSError."""


class RoundRecord(msgspec.Struct, omit_defaults=True):
    """The record of one round at one node; its line leaves out the fields that are 0, empty or None."""

    rank: int
    round: int
    seconds: float = 0.0
    """Seconds since the start of the run, which is the same instant for all nodes of a machine."""
    loss: float | None = None
    epsilon: float | None = None
    """What the node's private steps have spent so far, where that is a claim (docs/privacy.md)."""
    steps: int = 0
    train_seconds: float = 0.0
    exchange_seconds: float = 0.0
    mix_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    sent_payload: int = 0
    sent_index: int = 0
    sent_header: int = 0
    received_payload: int = 0
    received_index: int = 0
    received_header: int = 0
    heard: int = 0
    late: list[int] = msgspec.field(default_factory=list)
    lost: list[int] = msgspec.field(default_factory=list)
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    """Messages that were not used, by reason."""
    attacker_weight: float | None = None
    """The weight that the models of adversaries had in the mix, together; None without adversaries."""
    memory_mb: float | None = None
    metrics: Values = msgspec.field(default_factory=dict)
    """The scores of the model after an evaluation, by name; None: not a finite number."""
    wall_seconds: float | None = None
    """Real seconds since the start, where `seconds` are those of a simulation."""


def name_of(ranks: Sequence[int]) -> str:
    """The name of what these nodes share, or of what one has: `RANK` or `FIRST-LAST`."""
    return f"{ranks[0]:05d}-{ranks[-1]:05d}" if len(ranks) > 1 else f"{ranks[0]:05d}"


class RecordFile(LineFile):
    """The records of one node, `RANK.jsonl`, or of all nodes of a process with many, `FIRST-LAST.jsonl`."""

    def __init__(self, directory: Path, ranks: Sequence[int], warn: Warn = lambda _: None) -> None:
        """`warn` gets one line when the disk refuses records."""
        self.is_shared = len(ranks) > 1
        super().__init__(directory / f"{name_of(ranks)}.jsonl", warn, collects=self.is_shared)
        self._cut_back_to: int | None = None

    def cut_back(self, round: int) -> None:
        """Removes records of later rounds, once: all nodes of a process go back to the same round.

        Raises BadInput and OSError.
        """
        if self._cut_back_to != round:
            cut_back(self.path, round)
            self._cut_back_to = round if self.is_shared else None


class Records:
    """The records of one node, written line by line, never read back.

    Kept models and transcripts follow the same rules as the records of their rounds.
    """

    def __init__(
        self, file: RecordFile, auxiliary: Sequence[AuxiliaryRecords] = (), clock: Clock | None = None
    ) -> None:
        """`auxiliary`: what else is kept of rounds."""
        self._clock = clock or Clock()
        self._file = file
        self._auxiliary = auxiliary
        self._before: dict[str, int] = {}
        self._began = self._clock.now()
        self._began_in_reality = time.monotonic()
        self.continues_at = 0.0
        """The virtual time at which a node that was saved continues."""

    def write(self, record: RoundRecord, counters: "ByteCounters") -> None:
        """Completes a record with time and bytes of its round, and appends it; keeps the model if due."""
        record.seconds = self.seconds
        if self.are_virtual:
            record.wall_seconds = self.wall_seconds
        for name, total in vars(counters).items():
            setattr(record, name, total - self._before.get(name, 0))
        self._before = dict(vars(counters))
        self._file.append(msgspec.json.encode(record))
        for kept in self._auxiliary:
            kept.after(record.round)

    def at_the_end(self, round: int) -> None:
        """Keeps what is only kept of the last round, unless it is kept already."""
        for kept in self._auxiliary:
            kept.at_the_end(round)

    @property
    def are_virtual(self) -> bool:
        """Whether their times are those of a simulation."""
        return self._clock.is_virtual

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run, virtual ones in a simulation."""
        return self._clock.now() - self._began

    @property
    def wall_seconds(self) -> float:
        """Real seconds since the start of the run."""
        return time.monotonic() - self._began_in_reality

    def resume(self, seconds: float, wall_seconds: float) -> None:
        """Continues a node that was saved after so many seconds of the run, and so many real ones."""
        if self.are_virtual:
            # Virtual time is one for all nodes, and begins with the run.
            self.continues_at = seconds
        self.set_wall_seconds(wall_seconds)

    def set_wall_seconds(self, seconds: float) -> None:
        """Sets the real seconds since the start of the run."""
        self._began_in_reality = time.monotonic() - seconds
        if not self.are_virtual:
            self._began = self._clock.now() - seconds

    def count_from(self, counters: "ByteCounters") -> None:
        """Counts the bytes of the next record from here on."""
        self._before = dict(vars(counters))

    def cut_back(self, round: int) -> None:
        """Removes what another process has written of later rounds; before the first record of this one.

        Raises BadInput and OSError.
        """
        self._file.cut_back(round)
        for kept in self._auxiliary:
            kept.cut_back(round)

    def sync(self, waits: bool = True) -> str:
        """Syncs the records so far to disk; returns in one line what is missing, empty where nothing is.

        `waits`: whether for the disk, and not only until the operating system has their lines. A file that
        nodes share is synced for all of them at once (`CheckpointFile`).
        """
        lines = self._file.sync() if waits and not self._file.is_shared else self._file.flush()
        return first_problem([lines, *(kept.sync() for kept in self._auxiliary)])

    def close(self) -> str:
        """Closes the file; returns in one line what could not be written, empty where all was."""
        # Other nodes may still write to a file that they share.
        lines = self._file.flush() if self._file.is_shared else self._file.close()
        return first_problem([lines, *(kept.close() for kept in self._auxiliary)])


def first_problem(problems: Sequence[str]) -> str:
    """The first text that is not empty, or an empty one."""
    return next(filter(None, problems), "")


class _Line(msgspec.Struct):
    round: int


def cut_back(path: Path, round: int) -> None:
    """Removes the lines after a round, and a last line that was cut off; raises BadInput and OSError."""
    if not path.exists():
        return
    content = path.read_bytes()
    lines = content.split(b"\n")[:-1]
    try:
        kept = [line for line in lines if msgspec.json.decode(line, type=_Line).round <= round]
    except UNDECODABLE as error:
        raise BadInput(f"{path}: not written by this version of decentnode: {error}") from error
    whole = b"".join(line + b"\n" for line in kept)
    if whole != content:
        write_durably(path, [whole])


def read_records(path: StrPath) -> list[RoundRecord]:
    """The records of one file; ignores a last line that a kill cut off."""
    return read_lines(path, RoundRecord)


def record_files(run: Path) -> list[Path]:
    """The files of the records of a run on this machine."""
    return sorted((run / "records").glob("[0-9]*.jsonl"))


def records_by_rank(run: Path) -> dict[int, list[RoundRecord]]:
    """The records of the nodes of this machine, by rank and in the order of rounds."""
    by_rank: dict[int, list[RoundRecord]] = {}
    for path in record_files(run):
        for record in read_records(path):
            by_rank.setdefault(record.rank, []).append(record)
    for records in by_rank.values():
        # One that was resumed may have two files, if its nodes shared a process in only one of its starts.
        records.sort(key=lambda record: record.round)
    return dict(sorted(by_rank.items()))


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never a part; raises OSError."""
    write_durably(path, [msgspec.json.format(msgspec.json.encode(content), indent=2), b"\n"])
    sync_folder(path.parent)


def private_megabytes(pid: int | None = None) -> float:
    """Reads the private memory of this or another process from the kernel, in MB; at most a second old."""
    return _private_megabytes(os.getpid() if pid is None else pid, int(time.monotonic()))


# Reading takes 8 ms, and the nodes of a process ask one after the other.
@lru_cache(maxsize=1)
def _private_megabytes(pid: int, second: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024
