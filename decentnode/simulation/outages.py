"""When nodes are offline and links are cut, in virtual time.

What acts on a run in seconds is known before it begins, or is drawn as far as time goes. So the end of a
step that an outage interrupts is known when the step begins.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from decentnode.core.clock import Clock
from decentnode.errors import RunFailed
from decentnode.simulation.clock import SECOND, VirtualClock

Interval = tuple[int, int]
"""Begin and end in nanoseconds, the end excluded."""
NEVER = 1 << 62
"""The end of an outage that lasts for ever."""


def interval(begin: float, seconds: float | None) -> Interval:
    """Returns an interval of so many seconds; None: for ever."""
    start = round(begin * SECOND)
    return start, NEVER if seconds is None else min(start + round(seconds * SECOND), NEVER)


class OutageSchedule:
    """The intervals in which a node is offline, or a link is cut: disjoint, and in order."""

    def __init__(self, *sources: Iterable[Interval]) -> None:
        """`sources`: intervals by begin; those of several may overlap, and a source may be endless."""
        self._coming = heapq.merge(*sources)
        self._known: list[Interval] = []
        self._pending = next(self._coming, None)

    def __bool__(self) -> bool:
        return bool(self._known) or self._pending is not None

    def __iter__(self) -> Iterator[Interval]:
        at = 0
        while at < len(self._known) or self._draw():
            yield self._known[at]
            at += 1

    def _draw(self) -> bool:
        """Adds the next interval, one with all that it touches; False if there is none."""
        if self._pending is None:
            return False
        begin, end = self._pending
        while (following := next(self._coming, None)) is not None and following[0] <= end < NEVER:
            end = max(end, following[1])
        self._pending = following if end < NEVER else None
        self._known.append((begin, end))
        return True

    def after(self, now: int, duration: int) -> int:
        """Returns when so many nanoseconds have passed outside of the intervals; NEVER or later: never."""
        due = now + duration
        for begin, end in self:
            if begin >= due and begin > now:
                break
            if end > now:
                due += end - max(begin, now)
        return due


@dataclass(frozen=True)
class Outages:
    """All that acts on the nodes and links of a run in virtual seconds."""

    schedules: Mapping[int, OutageSchedule] = field(default_factory=dict)
    """By rank when a node is offline; those that always are online are left out."""
    cuts: Sequence[tuple[Interval, Callable[[int, int], bool]]] = ()
    """When links are cut, and which: asked with two ranks."""
    report: Callable[[int, str], None] = lambda rank, what: None
    """Gets a rank and what happens to it."""

    def __bool__(self) -> bool:
        return bool(self.schedules or self.cuts)

    def clock_of(self, rank: int, clock: Clock) -> Clock:
        """Returns the clock of a node, on which it waits only while it is online."""
        if rank not in self.schedules:
            return clock
        assert isinstance(clock, VirtualClock), "outages are checked against the transport"
        return NodeClock(clock, self.schedules[rank])


class NodeClock(VirtualClock):
    """Virtual time for one node that is offline at times: it does nothing then, and its steps last longer."""

    def __init__(self, clock: VirtualClock, schedule: OutageSchedule) -> None:
        self._clock = clock
        self._schedule = schedule

    @property
    def nanoseconds(self) -> int:  # type: ignore[override]
        return self._clock.nanoseconds

    async def wait_outside(self, is_over: Callable[[], bool], interval: float) -> None:
        await self._clock.wait_outside(is_over, interval)

    def after(self, seconds: float) -> float:
        """Returns when so many seconds have passed in which the node is online."""
        return self._schedule.after(self.nanoseconds, round(seconds * SECOND)) / SECOND

    async def sleep(self, seconds: float) -> None:
        """Waits for so many seconds in which the node is online; raises RunFailed where it never is again."""
        due = self._schedule.after(self.nanoseconds, round(seconds * SECOND))
        if due >= NEVER:
            crashes_at = next(begin for begin, end in self._schedule if end >= NEVER)
            await asyncio.sleep(max(0, crashes_at - self.nanoseconds) / SECOND)
            raise crash(crashes_at)
        await asyncio.sleep((due - self.nanoseconds) / SECOND)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        await super().wait(event, seconds)
        await self.sleep(0)


def crash(now: int) -> RunFailed:
    """Returns the error with which a node ends that is offline for ever from now on, in nanoseconds."""
    return RunFailed(f"crashed at {now / SECOND:g} simulated s (faults)")
