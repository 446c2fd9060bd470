"""The run that checkpoints belong to, and when a node is saved."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.communication.launcher_link.reports import Checkpointed, NotCheckpointed, Rejoined, Reporter
from decentnode.communication.launcher_link.shared_array import SharedMemory
from decentnode.core.line_file import RateLimiter
from decentnode.formats.records import Records
from decentnode.models.state_encoding import UnknownKind
from decentnode.node.checkpoint.checkpoint_file import CheckpointFile
from decentnode.node.checkpoint.safetensors_io import BadTensors
from decentnode.node.checkpoint.store import RunStamp
from decentnode.node.round_scheduler import RoundScheduler

FROM_THE_START = -1
MOST_ADDRESS = 64
"""Bytes of an IPv6 address as text, with a scope."""
Snapshot = Callable[[], object]
"""Returns the state of a node, its elapsed time and its counters."""


class RunIdentity:
    """The run of the nodes, and the round after which it continues; in memory made before the fork."""

    def __init__(self, directory: Path, settings: str, ranks: int = 0, fd: int | None = None) -> None:
        """`directory`: of the checkpoints; `settings`: a hash of all settings that affect the models.

        `fd`: that of the memory of another process, which has made it.
        """
        self.directory = directory
        self.settings = settings
        # Only the launcher writes this memory; host processes read it.
        self.memory = SharedMemory(fd)
        self._absent = self.memory.array((ranks,), "bool")
        self._addresses = self.memory.array((ranks, MOST_ADDRESS), "uint8")
        self._words = self.memory.array((4,))
        if self.memory.is_new:
            self._words[2] = FROM_THE_START

    def settle(self, run_id: int, incarnation: int, round: int = FROM_THE_START) -> None:
        """Records the agreement of all machines; call it before the start signal."""
        self._words[0], self._words[1], self._words[2] = run_id, incarnation, round

    def begin(self, began: float) -> None:
        """Records the start of the run, as a time of `time.monotonic`."""
        self._words[3] = round(1e6 * began)

    @property
    def seconds(self) -> float:
        """Seconds since the run started."""
        return time.monotonic() - int(self._words[3]) / 1e6

    @property
    def absent(self) -> set[int]:
        """Ranks of machines that have not joined: no node connects to them or waits for them."""
        return set(self._absent.nonzero()[0].tolist())

    @absent.setter
    def absent(self, ranks: Collection[int]) -> None:
        self._absent[:] = [rank in ranks for rank in range(len(self._absent))]

    def address_of(self, rank: int) -> str:
        """Returns where the machine of a rank is, if the configuration does not say it; or nothing."""
        return bytes(self._addresses[rank]).rstrip(b"\0").decode()

    def move(self, ranks: Collection[int], address: str) -> None:
        """Records where the machine of these ranks is reached from now on."""
        content = address.encode().ljust(MOST_ADDRESS, b"\0")
        for rank in ranks:
            self._addresses[rank] = np.frombuffer(content, np.uint8)

    @property
    def stamp(self) -> RunStamp:
        """The run's identity in its checkpoints."""
        return RunStamp(int(self._words[0]), int(self._words[1]), self.settings)

    @property
    def message_id(self) -> int:
        """The run's id in the nodes' messages, 0 before the start.

        It differs per start, because nodes of an earlier start may still run.
        """
        return int(self._words[0] + self._words[1])

    @property
    def round(self) -> int:
        """The round after which the run continues."""
        return int(self._words[2])


@dataclass(eq=False)
class NodeCheckpoints:
    """The checkpoints of one node."""

    identity: RunIdentity
    every: int
    """Rounds between checkpoints; 0: only at the end."""
    final: bool
    """Whether the node is saved after the last round of the run, and not only at a graceful stop."""
    reporter: Reporter
    rank: int
    scheduler: RoundScheduler
    records: Records
    file: CheckpointFile | None = None
    """That of all nodes of the process; None: this one has its own."""
    last: int = field(default=FROM_THE_START, init=False)
    """The round of the last checkpoint that was restored, saved, or waits for other nodes to be saved."""
    _file: CheckpointFile = field(init=False)
    _limiter: RateLimiter = field(default_factory=RateLimiter, init=False)

    def __post_init__(self) -> None:
        self._file = self.file or CheckpointFile([self.rank])

    def after(self, round: int, snapshot: Snapshot) -> None:
        """Saves the node if that is due after the round it has just done."""
        if self.every and (round + 1) % self.every == 0:
            self._save(round, snapshot)
        self._file.tend()

    def at_the_end(self, round: int, snapshot: Snapshot) -> None:
        """Saves the node after its last round, if that is wanted or the run stops before its own last one."""
        is_cut_short = self.scheduler.is_cut_short
        if (self.final or is_cut_short) and round > self.last:
            # A finished run has its results: thousands of nodes in a process need not wait for the disk.
            self._save(round, snapshot, syncs=is_cut_short)

    def go_back_to(self, round: int) -> None:
        """Reports that the node takes part from `round` on: later checkpoints count no more."""
        self.last = min(self.last, round - 1)
        # Before the report: the launcher must not find the later rounds after it.
        self.scheduler.heartbeat.go_back_to(round)
        self.reporter.send(Rejoined(self.rank, round))

    def undo(self, round: int) -> None:
        """Deletes checkpoints of `round` and later ones, of all nodes that share a file; raises OSError.

        All of these have reported it before: no resume may count on files that are being deleted.
        """
        self._file.undo(self.identity.directory, round)

    def _save(self, round: int, snapshot: Snapshot, syncs: bool = True) -> None:
        self.scheduler.heartbeat.mark(round, Activity.CHECKPOINT)
        # A resume from this checkpoint does not repeat the records up to its round, so they must be on disk.
        # A resume from an earlier one repeats them.
        if gap := self.records.sync(syncs):
            self._complain(round, gap)
            return
        directory, stamp = self.identity.directory, self.identity.stamp
        before, self.last = self.last, round
        done = partial(self._note, round, before)
        try:
            self._file.add(directory, self.rank, round, snapshot(), stamp, done, syncs=syncs)
        except (OSError, UnknownKind, BadTensors) as error:
            done(error.strerror or str(error) if isinstance(error, OSError) else str(error))

    def _note(self, round: int, before: int, problem: str) -> None:
        """Takes note that the node was saved after a round, or why not; `before`: the round it was before."""
        if problem:
            self.last = min(self.last, before)
            self._complain(round, problem)
            return
        # Only now: on this report the launcher may delete older checkpoints.
        self.reporter.send(Checkpointed(self.rank, round))

    def _complain(self, round: int, reason: str) -> None:
        """Reports a failed checkpoint from time to time; the node continues, and earlier checkpoints stay."""
        if self._limiter.allows():
            print(f"round {round + 1}: no checkpoint: {reason}", flush=True)
            self.reporter.send(NotCheckpointed(self.rank, round, reason[:500]))
