"""What other threads have one thread do."""

import os
from collections import deque
from collections.abc import Callable


class Commands:
    """Carried out by the thread that watches the descriptor, in the order of the posts."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when there are some: time for `obey`."""
        self._waiting: deque[Callable[[], None]] = deque()

    def post(self, command: Callable[[], None]) -> None:
        """Has the thread run a command soon; in any thread."""
        self._waiting.append(command)
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def obey(self) -> None:
        """Runs all of them."""
        os.eventfd_read(self.fd)
        while self._waiting:
            self._waiting.popleft()()

    def close(self) -> None:
        """The thread has ended; nothing that is posted from now on is run."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
