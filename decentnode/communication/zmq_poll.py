"""Polls ZeroMQ sockets and descriptors, and wakes the thread that does so.

Threads: one thread owns a `Poller` and runs the commands; any thread posts them.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq


def milliseconds(until: float) -> int:
    """The timeout of a poll until that time of `time.monotonic`; -1: no limit."""
    return -1 if until == math.inf else math.ceil(1000 * max(0.0, until - time.monotonic()))


def has_input(socket: "zmq.Socket[bytes]") -> bool:
    """Whether a read would return a message."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class Poller:
    """The sockets and descriptors that one thread waits for, each with a function that serves it."""

    def __init__(self) -> None:
        self._served: dict[Any, Callable[[], object]] = {}
        self._polled: list[tuple[Any, int]] = []

    def add(self, source: Any, serve: Callable[[], object]) -> None:
        """Adds a socket or descriptor; does nothing if it is there already."""
        if source not in self._served:
            self._served[source] = serve
            self._polled = [*self._polled, (source, zmq.POLLIN)]

    def serve(self, until: float) -> None:
        """Waits until some are readable or the time is over, and serves those."""
        for ready, _ in zmq.zmq_poll(self._polled, milliseconds(until)):
            self._served[ready]()


class Commands:
    """What other threads post to one thread; it runs there, in the order of the posts."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when commands are waiting: time for `obey`."""
        self._waiting: deque[Callable[[], object]] = deque()

    def post(self, command: Callable[[], object]) -> None:
        """Makes the thread run a command soon; from any thread."""
        # Before the wake-up, so `obey` never wakes to an empty queue and leaves this command behind.
        self._waiting.append(command)
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def run_commands(self) -> None:
        """Runs all waiting commands."""
        os.eventfd_read(self.fd)
        while self._waiting:
            self._waiting.popleft()()

    def close(self) -> None:
        """Releases the descriptor after the thread has ended; later posts are not run."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
