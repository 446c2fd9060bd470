"""Wakes a thread that polls descriptors, from a signal handler or another thread."""

import contextlib
import os


class Alarm:
    """Stays set until it is cleared."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while it is set."""

    def ring(self) -> None:
        """Wakes the thread that waits, or is about to; safe in a signal handler."""
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Resets it; call it before checking for the cause, or a wake-up may be missed."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
