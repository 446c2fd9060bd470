"""The clock of simulated nodes: it shows the time of the event that happens now."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from decentnode.core.clock import Clock

SECOND = 10**9
"""Nanoseconds."""


class EventLoop(Protocol):
    """What calls back at virtual times."""

    def call_at_nanosecond(self, due: int, callback: Callable[..., Any], *args: Any) -> object:
        """Calls back at a time in nanoseconds."""


class VirtualClock(Clock):
    """Virtual time in whole nanoseconds, so that sums are exact and equal times are equal.

    `VirtualLoop` sets it to the time of the next event. Nodes wait on it as on any clock, because
    `asyncio.sleep` and `wait_for` ask the loop for the time.
    """

    is_virtual = True

    def __init__(self) -> None:
        self.nanoseconds = 0
        self.outside_waits = 0
        """How many coroutines wait for another process; virtual time stands meanwhile."""

    def now(self) -> float:
        return self.nanoseconds / SECOND

    @contextmanager
    def outside(self) -> Iterator[None]:
        self.outside_waits += 1
        try:
            yield
        finally:
            self.outside_waits -= 1

    async def look_again(self, seconds: float) -> None:
        # In a thread: a timer of the loop would wait for virtual time, which stands.
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, seconds)
