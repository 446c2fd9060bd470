"""Where every local node is, in memory made before the fork; and the last round, once the run is to stop.

A node marks each part of its rounds there, which takes less than a microsecond. Whoever shares the memory
sees a trainer that is stuck although the threads around it answer: its marks no longer change.
"""

import time
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from decentnode.communication.launcher_link.shared_array import shared_array

WORDS = 5
_ROUND, _ACTIVITY, _MARKS, _SINCE, _BEGAN = range(WORDS)
GO_ON = (1 << 62) - 1
"""The last round of a run that nobody has asked to stop."""
UNDECIDED = -2
"""The last round while it is being agreed on: no node begins another one."""


class Activity(IntEnum):
    """What a node does, in the order of a round."""

    START = 0
    """Before the first round."""
    BEGIN = 1
    """About to begin the round: it may be held up here when the run is to stop."""
    TRAIN = 2
    SEND = 3
    RECEIVE = 4
    """Waits for the neighbors."""
    MIX = 5
    EVALUATE = 6
    CHECKPOINT = 7
    END = 8
    """After the last round."""


_ACTIVITIES = tuple(Activity)


class Heartbeat(NamedTuple):
    """Where a node is."""

    round: int
    activity: Activity
    marks: int
    """How many marks it has made: a node that does something makes more of them."""
    since: float
    """When it made the last one, as `time.monotonic` counts on this machine."""


class HeartbeatSlot:
    """One node's own."""

    def __init__(self, words: "memoryview[int]", seconds: "memoryview[float]") -> None:
        self._words = words
        self._seconds = seconds

    def mark(self, round: int, activity: Activity) -> None:
        """The node now does this in this round."""
        words = self._words
        words[_ROUND] = round
        words[_ACTIVITY] = activity
        words[_MARKS] += 1
        self._seconds[_SINCE] = now = time.monotonic()
        if activity is Activity.BEGIN and not words[_BEGAN]:
            self._seconds[_BEGAN] = now

    def beat(self) -> None:
        """The node gets on with what it marked last: another step is done."""
        self._words[_MARKS] += 1
        self._seconds[_SINCE] = time.monotonic()

    @property
    def marks(self) -> int:
        """How many marks the node has made."""
        return self._words[_MARKS]

    def read(self) -> Heartbeat:
        """Where the node is."""
        round, activity, marks, _, _ = self._words
        return Heartbeat(round, _ACTIVITIES[activity], marks, self._seconds[_SINCE])

    @property
    def began(self) -> float:
        """When the node began its first round, also of a process before this one; 0.0: not yet."""
        return self._seconds[_BEGAN]


class HeartbeatBoard:
    """All nodes of a machine."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._last_round = shared_array((1,))
        self._last_round[0] = GO_ON
        # Of memoryviews, unlike arrays, the items are plain numbers.
        rows = [(row.data, row.view("float64").data) for row in shared_array((len(ranks), WORDS))]
        self._heartbeats = {rank: HeartbeatSlot(*row) for rank, row in zip(ranks, rows, strict=True)}
        for heartbeat in self._heartbeats.values():
            heartbeat.mark(-1, Activity.START)

    @property
    def last_round(self) -> int:
        """No node begins a later round than this one."""
        return int(self._last_round[0])

    @last_round.setter
    def last_round(self, round: int) -> None:
        self._last_round[0] = round

    @property
    def highest_round(self) -> int:
        """The highest round that any local node has announced."""
        return max(heartbeat.read().round for heartbeat in self._heartbeats.values())

    @property
    def last_to_begin(self) -> float:
        """When the last local node that has begun a round began its first; 0.0 where none has."""
        return max(heartbeat.began for heartbeat in self._heartbeats.values())

    def of(self, rank: int) -> HeartbeatSlot:
        """The heartbeat slot of a local rank."""
        return self._heartbeats[rank]
