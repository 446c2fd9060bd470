"""When a ZeroMQ socket has something to read, and how long to wait for that."""

import math
import time
from collections.abc import Callable
from typing import Any

import zmq


def descriptor(socket: "zmq.Socket[bytes]") -> int:
    """What to watch for a socket; it becomes readable only after a read that found nothing."""
    return int(socket.getsockopt(zmq.FD))


def milliseconds(until: float) -> int:
    """What a poll is to wait at most, until that time as `time.monotonic` counts; -1: for ever."""
    return -1 if until == math.inf else math.ceil(1000 * max(0.0, until - time.monotonic()))


def has_input(socket: "zmq.Socket[bytes]") -> bool:
    """Whether a read would find something."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class Poller:
    """What one thread waits for, sockets and descriptors, and what it does when one is readable."""

    def __init__(self) -> None:
        self._served: dict[Any, Callable[[], object]] = {}
        self._polled: list[tuple[Any, int]] = []

    def add(self, what: Any, serve: Callable[[], object]) -> None:
        """From now on; of what is there already nothing changes."""
        if what not in self._served:
            self._served[what] = serve
            self._polled = [*self._polled, (what, zmq.POLLIN)]

    def serve(self, until: float) -> None:
        """Waits until some are readable, at most until that time, and serves them."""
        for ready, _ in zmq.zmq_poll(self._polled, milliseconds(until)):
            self._served[ready]()
