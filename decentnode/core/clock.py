"""The clock that all nodes wait on, so virtual time can replace real time in one place."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class Clock:
    """Real, monotonic time, which does not follow changes of the wall clock."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds since an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Lets other coroutines run for at least `seconds`."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Lets other coroutines run until the event is set, at most for so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)


def seconds_since_process_start() -> float:
    """The age of this process in seconds, without the setup time of `run.sh`."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return age - float(os.environ.get("DECENTNODE_SETUP_SECONDS", "0"))
