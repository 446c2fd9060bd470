"""Polls ZeroMQ sockets and descriptors."""

import math
import time
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

    def add(self, what: Any, serve: Callable[[], object]) -> None:
        """Adds a socket or descriptor; does nothing if it is there already."""
        if what not in self._served:
            self._served[what] = serve
            self._polled = [*self._polled, (what, zmq.POLLIN)]

    def serve(self, until: float) -> None:
        """Waits until some are readable or the time is over, and serves those."""
        for ready, _ in zmq.zmq_poll(self._polled, milliseconds(until)):
            self._served[ready]()
