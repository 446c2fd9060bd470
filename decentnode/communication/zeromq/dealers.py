"""The DEALER sockets of a host process: one for each link to a process without pipes, with a monitor.

To a process with pipes a DEALER carries only what no pipe takes; it has no monitor, as the pipe alone shows
whether that link holds.

Threads: the socket thread opens, watches and closes the sockets; any thread sends, with the lock of the
links.
"""

import select
import weakref
from collections import deque
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.zmq_poll import has_input
from decentnode.core.timeouts import Timeouts

HEARTBEAT_INTERVAL = 2.0
"""Seconds between heartbeats of a link to another machine."""
_MORE_FOLLOWS = zmq.SNDMORE | zmq.NOBLOCK
_LINK_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class Dealers:
    """The socket thread opens, watches and closes them; any thread sends, with the lock of the links."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        directory: ProcessDirectory,
        endpoint_of: Callable[[int], str],
        epoll: "select.epoll",
    ) -> None:
        """`endpoint_of`: address of a process; `epoll` learns of the events of the monitors."""
        self._context = context
        self._directory = directory
        self._endpoint_of = endpoint_of
        self._epoll = epoll
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._monitors: dict[int, zmq.Socket[bytes]] = {}
        self._watched: dict[int, int] = {}
        """By descriptor of a monitor the process of its link."""
        self._queued_bodies: dict[int, deque[weakref.ref[memoryview]]] = {}
        """By process the large bodies that libzmq may still hold, oldest first; it drops the reference after
        the send.
        """

    def __contains__(self, process: int) -> bool:
        """Whether there is a socket for a process; for any thread."""
        return process in self._sockets

    @property
    def processes(self) -> list[int]:
        """Processes with a socket; for any thread."""
        return [*tuple(self._sockets)]

    def open(self, process: int) -> None:
        """Connects to a process, and watches the connection."""
        dealer = self._make(process)
        monitor = self._monitors[process] = dealer.get_monitor_socket(_LINK_EVENTS)
        self._watched[monitor.fileno()] = process
        self._epoll.register(monitor, select.EPOLLIN)
        # Edge-triggered: a ZeroMQ descriptor becomes readable only after a read that found nothing.
        has_input(monitor)
        dealer.connect(self._endpoint_of(process))
        self._sockets[process] = dealer

    def _make(self, process: int) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.IPV6, 1)
        dealer.set(zmq.RECONNECT_IVL_MAX, 5000)
        if not self._directory.co_located(process):
            # On one machine the kernel closes the links of a dead process; a suspended one has the deadline.
            dealer.set(zmq.HEARTBEAT_IVL, round(1000 * HEARTBEAT_INTERVAL))
            dealer.set(zmq.HEARTBEAT_TIMEOUT, round(1000 * Timeouts.link_heartbeat))
            # Where packets are dropped, the kernel retries for two minutes without a report.
            dealer.set(zmq.CONNECT_TIMEOUT, round(1000 * Timeouts.connect))
        if self._endpoint_of(process).startswith("tcp") and self._directory.credentials is not None:
            self._directory.credentials.guard_client(dealer, self._directory.processes[process].machine)
        return dealer

    def send(self, process: int, header: bytes, body: wire.Body, most_queued: int) -> bool:
        """Sends a message, over a new socket without a monitor if there is none; False: the peer is slow.

        `most_queued`: large bodies that may wait for the peer; otherwise models of many rounds would queue.
        """
        if process not in self._sockets:
            self._sockets[process] = self._make(process)
            self._sockets[process].connect(self._endpoint_of(process))
        # Only libzmq keeps this view, so its weak reference shows the end of the send. A tracker of libzmq
        # costs 0.1 ms.
        body = body[:]
        is_bulk = isinstance(body, memoryview)
        if is_bulk and self._count_queued(process) >= most_queued:
            return False
        try:
            self._sockets[process].send(header, _MORE_FOLLOWS)
            self._sockets[process].send(body, zmq.NOBLOCK, copy=not is_bulk)
        except zmq.Again:
            return False
        if isinstance(body, memoryview):
            self._queued_bodies.setdefault(process, deque()).append(weakref.ref(body))
        return True

    def _count_queued(self, process: int) -> int:
        queued = self._queued_bodies.get(process, deque())
        while queued and queued[0]() is None:
            queued.popleft()
        return len(queued)

    def is_flushed(self, process: int) -> bool:
        """Whether libzmq holds no large body for a process."""
        return all(body() is None for body in self._queued_bodies.get(process, ()))

    def events_of(self, fd: int) -> tuple[int, list[int]] | None:
        """The process of the link with this monitor, and its new events; None: it is no monitor of these."""
        if (process := self._watched.get(fd)) is None:
            return None
        monitor, events = self._monitors[process], []
        while has_input(monitor):
            events.append(recv_monitor_message(monitor, zmq.NOBLOCK)["event"])
        return process, events

    def end(self, process: int, linger: int) -> None:
        """Closes the socket for a process; what it still holds has `linger` milliseconds."""
        self._queued_bodies.pop(process, None)
        dealer, monitor = self._sockets.pop(process, None), self._monitors.pop(process, None)
        if dealer is not None and monitor is not None:
            self._epoll.unregister(monitor)
            del self._watched[monitor.fileno()]
            dealer.disable_monitor()
            monitor.close(0)
        if dealer is not None:
            dealer.close(linger)
