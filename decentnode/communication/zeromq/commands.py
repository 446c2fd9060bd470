"""Commands that other threads post to one thread."""

import os
from collections import deque
from collections.abc import Callable


class Commands:
    """Runs in the thread that watches the descriptor, in the order of the posts."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when commands are waiting: time for `obey`."""
        self._waiting: deque[Callable[[], None]] = deque()

    def post(self, command: Callable[[], None]) -> None:
        """Makes the thread run a command soon; from any thread."""
        # Before the wake-up, so `obey` never wakes to an empty queue and leaves this command behind.
        self._waiting.append(command)
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def obey(self) -> None:
        """Runs all waiting commands."""
        os.eventfd_read(self.fd)
        while self._waiting:
            self._waiting.popleft()()

    def close(self) -> None:
        """Releases the descriptor after the thread has ended; later posts are not run."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
