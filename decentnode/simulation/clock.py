"""The clock of simulated nodes: it shows the time of the event that happens now."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from decentnode.core.clock import Clock

SECOND = 10**9
"""Nanoseconds."""


class EventLoop(Protocol):
    """What calls back at virtual times."""

    def call_at_nanosecond(self, due: int, callback: Callable[..., object], *args: Any) -> None:
        """Calls back at a time in nanoseconds."""


@dataclass(eq=False)
class OutsideWait:
    """A coroutine that waits for another process."""

    is_over: Callable[[], bool]
    interval: float
    """Real seconds between two looks."""
    over: "asyncio.Future[None]"


class VirtualClock(Clock):
    """Virtual time in whole nanoseconds, so that sums are exact and equal times are equal.

    `VirtualLoop` sets it to the time of the next event. Nodes wait on it as on any clock, because
    `asyncio.sleep` and `wait_for` ask the loop for the time.
    """

    is_virtual = True

    def __init__(self) -> None:
        self.nanoseconds = 0
        self.outside_waits: list[OutsideWait] = []
        """Of the coroutines that wait for another process, in their order; virtual time stands meanwhile."""

    def now(self) -> float:
        return self.nanoseconds / SECOND

    def after(self, seconds: float) -> float:
        # A whole number of nanoseconds, so that a timer can be set to it.
        return (self.nanoseconds + round(seconds * SECOND)) / SECOND

    async def wait_outside(self, is_over: Callable[[], bool], interval: float) -> None:
        # Also if it is over: whether another process was fast must not decide about the order of nodes.
        wait = OutsideWait(is_over, interval, asyncio.get_running_loop().create_future())
        self.outside_waits.append(wait)
        await wait.over
