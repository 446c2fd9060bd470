"""The clock that nodes read and wait on, and one without the time in which its process was suspended."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from decentnode.core.timeouts import Timeouts

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """Real, monotonic time, which does not follow changes of the wall clock."""

    is_virtual = False
    """Whether it shows the time of a simulation."""
    now: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds since an arbitrary start."""

    async def wait_outside(self, is_over: Callable[[], bool], interval: float) -> None:
        """Waits for another process; looks every `interval` real seconds, while virtual time stands.

        `is_over` must become true; it is called at least once.
        """
        while not is_over():
            await asyncio.sleep(interval)

    def after(self, seconds: float) -> float:
        """Returns the time after so many seconds in which the node is online; in real time it always is."""
        return self.now() + seconds

    async def sleep(self, seconds: float) -> None:
        """Lets other coroutines run for at least `seconds`."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Lets other coroutines run until the event is set, at most for so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)


class AwakeClock:
    """Seconds in which this process ran, for waits whose expiry accuses another process.

    Who waits reads it at least every `interval` seconds. After a much longer gap this process was
    suspended, or starved: it could not see what the other one did, so the gap counts as one interval.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last_read = time.monotonic()
        self._suspended = 0.0

    def now(self) -> float:
        """Returns seconds since an arbitrary start, without gaps between two calls."""
        now = time.monotonic()
        gap, self._last_read = now - self._last_read, now
        if gap > self._interval + Timeouts.standstill:
            self._suspended += gap - self._interval
        return now - self._suspended


def seconds_since_process_start() -> float:
    """Returns the age of this process in seconds, without the setup time of `run.sh`."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return age - float(os.environ.get("DECENTNODE_SETUP_SECONDS", "0"))


def boot() -> str:
    """The kernel's id of this boot of the machine; empty where it has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
