"""The one object everything waits on, so that virtual time can replace real time in one place."""

import asyncio
import time


class Clock:
    """Real, monotonic time; wall-clock jumps do not touch it."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Gives the event loop to others for at least `seconds`."""
        await asyncio.sleep(seconds)
