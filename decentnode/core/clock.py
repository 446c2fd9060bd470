"""The one object everything waits on, so that virtual time can replace real time in one place."""

import asyncio
import os
import time
from pathlib import Path


class Clock:
    """Real, monotonic time; wall-clock jumps do not touch it."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Gives the event loop to others for at least `seconds`."""
        await asyncio.sleep(seconds)


def seconds_since_process_start() -> float:
    """How long this process has existed, without what `run.sh` spent on the set-up."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return age - float(os.environ.get("DECENTNODE_SETUP_SECONDS", "0"))
