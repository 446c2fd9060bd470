"""Wakes a thread that waits for descriptors, from a signal handler or another thread."""

import contextlib
import os


class Alarm:
    """One that has been rung stays so until it is cleared."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while it is rung."""

    def ring(self) -> None:
        """Wakes whoever waits, or is about to; safe in a signal handler."""
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Before what it was rung for is looked at."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
