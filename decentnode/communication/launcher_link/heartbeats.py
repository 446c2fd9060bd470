"""Heartbeats and progress of all local nodes, in memory made before the fork, and the last round of a stop.

A node marks each part of its rounds there, which takes less than a microsecond, and what it has done after
each round. A reader of the memory detects a training thread that is stuck although other threads of its
process answer. It reads the progress when it needs it, so no report says it.

Threads: the node's thread writes its slot. The main threads of the launcher and of the fork server read all
slots, without a lock; fault injection in the socket thread reads, too.
"""

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decentnode.communication.launcher_link.shared_array import SharedMemory

_ROUND, _ACTIVITY, _MARKS, _SINCE, _BEGAN, _DONE, _LOSS, _SENT, _EPSILON, _VIRTUAL, _AWAITED, _PEERS = range(
    12
)
MOST_AWAITED = 8
"""Awaited peers that a heartbeat can name."""
WORDS = _PEERS + MOST_AWAITED
NO_LAST_ROUND = (1 << 62) - 1
"""The last round of a run without a request to stop."""
UNDECIDED = -2
"""The last round while the machines agree on it: no node starts another round."""


class Activity(IntEnum):
    """What a node does, in the order of a round."""

    START = 0
    """Before the first round."""
    BEGIN = 1
    """Before the next round: a node waits here while the machines agree on the last round."""
    TRAIN = 2
    SEND = 3
    RECEIVE = 4
    """Waits for the neighbors."""
    MIX = 5
    EVALUATE = 6
    CHECKPOINT = 7
    END = 8
    """The node has done its last round."""


_ACTIVITIES = tuple(Activity)


class NodeProgress(NamedTuple):
    """What a node has done so far."""

    round: int
    """Its last round."""
    loss: float | None
    """The training loss of that round."""
    bytes_sent: int
    epsilon: float | None
    """What its private steps have spent, where that is a claim."""
    virtual_seconds: float | None = None
    """The time of a simulation at the end of that round; None: time is real."""


class Heartbeat(NamedTuple):
    """What a node does now."""

    round: int
    activity: Activity
    marks: int
    """Number of marks so far: it rises while the node makes progress."""
    since: float
    """Time of the last mark, by `time.monotonic` of this machine."""
    awaited: tuple[int, ...]
    """The first peers that the node waits for in RECEIVE; empty: not known, as in a collective operation."""


@dataclass(eq=False)
class HeartbeatSlot:
    """The slot of one node; only that node writes it."""

    words: "memoryview[int]"
    seconds: "memoryview[float]"
    """The memory of `words`, as times in seconds."""

    def mark(self, round: int, activity: Activity) -> None:
        """Marks that the node now does `activity` in this round."""
        words = self.words
        # Without a lock: a reader may see a new round with an old activity, which the next read corrects.
        words[_ROUND] = round
        words[_ACTIVITY] = activity
        words[_AWAITED] = 0
        words[_MARKS] += 1
        self.seconds[_SINCE] = time.monotonic()
        # Survives a restart of the process, so `began` stays the time of the first start.
        if activity is Activity.BEGIN and not words[_BEGAN]:
            self.seconds[_BEGAN] = self.seconds[_SINCE]

    def beat(self) -> None:
        """Marks progress within the same activity, for example a finished step."""
        self.words[_MARKS] += 1
        self.seconds[_SINCE] = time.monotonic()

    def record_progress(self, progress: NodeProgress) -> None:
        """Records a round that the node has done."""
        self.words[_SENT] = progress.bytes_sent
        self.seconds[_LOSS] = math.nan if progress.loss is None else progress.loss
        self.seconds[_EPSILON] = math.nan if progress.epsilon is None else progress.epsilon
        self.seconds[_VIRTUAL] = math.nan if progress.virtual_seconds is None else progress.virtual_seconds
        # The round last: who sees it changed finds the rest written.
        self.words[_DONE] = progress.round + 1

    def go_back_to(self, round: int) -> None:
        """Records that the node does this round next, although it had done later ones."""
        self.words[_DONE] = round

    def wait_for(self, peers: Collection[int]) -> None:
        """Tells for whom the node waits now; until the next mark."""
        words = self.words
        for number, peer in enumerate(sorted(peers)[:MOST_AWAITED], _PEERS):
            words[number] = peer
        words[_AWAITED] = min(len(peers), MOST_AWAITED)

    @property
    def marks(self) -> int:
        """Number of marks the node has made."""
        return self.words[_MARKS]

    def read(self) -> Heartbeat:
        """The node's heartbeat."""
        words = self.words.tolist()
        awaited = tuple(words[_PEERS : _PEERS + words[_AWAITED]])
        return Heartbeat(
            words[_ROUND], _ACTIVITIES[words[_ACTIVITY]], words[_MARKS], self.seconds[_SINCE], awaited
        )

    @property
    def began(self) -> float:
        """When the node started its first round, also in an earlier process; 0.0: not yet."""
        return self.seconds[_BEGAN]


class HeartbeatBoard:
    """The slots of all nodes of a machine."""

    def __init__(self, ranks: Sequence[int], fd: int | None = None) -> None:
        """`fd`: that of the memory of another process, which has made the board."""
        self.memory = memory = SharedMemory(fd)
        self._last_round = memory.array((2,))
        self._ranks = tuple(ranks)
        self._words = memory.array((len(ranks), WORDS))
        self._read_done = np.zeros(len(ranks), "int64")
        """The rounds that each node had done when `new_progress` was called last."""
        # Items of memoryviews are plain numbers, and faster than those of arrays.
        rows = [(row.data, row.view("float64").data) for row in self._words]
        self._heartbeats = {rank: HeartbeatSlot(*row) for rank, row in zip(ranks, rows, strict=True)}
        if memory.is_new:
            self._last_round[0] = NO_LAST_ROUND
            for heartbeat in self._heartbeats.values():
                heartbeat.mark(-1, Activity.START)

    @property
    def last_round(self) -> int:
        """No node starts a later round; the launcher writes it, the nodes read it."""
        return int(self._last_round[0])

    @last_round.setter
    def last_round(self, round: int) -> None:
        self._last_round[0] = round

    @property
    def completes(self) -> bool:
        """Whether nodes that end after `last_round` have finished, because the run has reached its target.

        The launcher writes it before `last_round`.
        """
        return bool(self._last_round[1])

    @completes.setter
    def completes(self, completes: bool) -> None:
        self._last_round[1] = completes

    @property
    def highest_round(self) -> int:
        """The highest round that any local node has announced."""
        return max(heartbeat.read().round for heartbeat in self._heartbeats.values())

    @property
    def any_has_ended(self) -> bool:
        """Whether some local node has done its last round."""
        return bool((self._words[:, _ACTIVITY] == Activity.END).any())

    @property
    def last_to_begin(self) -> float:
        """The latest time at which a local node started its first round; 0.0: none has."""
        return max(heartbeat.began for heartbeat in self._heartbeats.values())

    def new_progress(self) -> dict[int, NodeProgress]:
        """By rank the progress of the nodes that have done a round since the last call."""
        done = self._words[:, _DONE].copy()
        rows = np.flatnonzero(done != self._read_done)
        self._read_done = done
        words, seconds = self._words[rows], self._words.view("float64")[rows]
        of_rounds = (rows, done[rows] - 1, words[:, _SENT])
        numbers = (seconds[:, place] for place in (_LOSS, _EPSILON, _VIRTUAL))
        columns = (column.tolist() for column in (*of_rounds, *numbers))
        return {
            self._ranks[row]: NodeProgress(round, known(loss), bytes_sent, known(epsilon), known(virtual))
            for row, round, bytes_sent, loss, epsilon, virtual in zip(*columns, strict=True)
        }

    def part(self, ranks: Sequence[int]) -> "HeartbeatColumns":
        """The heartbeats of some nodes, to be read at once."""
        rows = {rank: row for row, rank in enumerate(self._ranks)}
        return HeartbeatColumns(self._words, np.array([rows[rank] for rank in ranks]))

    def of(self, rank: int) -> HeartbeatSlot:
        """The heartbeat slot of a local rank."""
        return self._heartbeats[rank]


@dataclass(eq=False)
class HeartbeatColumns:
    """The heartbeats of the nodes of a process as columns: with thousands, single reads would take long."""

    words: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def marks(self) -> int:
        """The number of marks that the nodes have made together."""
        return int(self.words[self.rows, _MARKS].sum())

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Returns round, activity and time of the last mark of each node, shape (nodes,) each."""
        seconds = self.words.view("float64")
        return self.words[self.rows, _ROUND], self.words[self.rows, _ACTIVITY], seconds[self.rows, _SINCE]


def known(number: float) -> float | None:
    """The number; None where the node has written that there is none."""
    return None if math.isnan(number) else number
