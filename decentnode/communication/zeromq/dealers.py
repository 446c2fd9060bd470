"""The DEALER sockets of a host process: one for each link to a process without pipes, with a monitor.

To a process with pipes a DEALER carries only what no pipe takes; it has no monitor, as the pipe alone shows
whether that link holds. A long link over TCP has further DEALERs, which share large bodies with the first
(`stripes.py`). They have no monitors either: libzmq reconnects them, those that are not connected get no
chunk, and what was lost with one is requested as any message is.

Threads: the socket thread opens, watches and closes the sockets; any thread sends, with the lock of the
links.
"""

import math
import select
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.zeromq.stripes import (
    MOST_CHUNKS,
    STRIPED_BYTES,
    StripedBody,
    Striping,
    limit_unsent,
    round_trip_of,
    unacknowledged_of,
)
from decentnode.communication.zmq_poll import has_input
from decentnode.core.timeouts import Timeouts

HEARTBEAT_INTERVAL = 2.0
"""Seconds between heartbeats of a link to another machine."""
_MORE_FOLLOWS = zmq.SNDMORE | zmq.NOBLOCK
_JUDGED_EVENTS = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_RETRIED, zmq.EVENT_HANDSHAKE_SUCCEEDED)
_LINK_EVENTS = reduce(or_, _JUDGED_EVENTS, zmq.EVENT_CONNECTED)


class Watched(NamedTuple):
    """A connection with a monitor."""

    process: int
    dealer: "zmq.Socket[bytes]"
    monitor: "zmq.Socket[bytes]"


class Dealers:
    """The socket thread opens, watches and closes them; any thread sends, with the lock of the links."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        directory: ProcessDirectory,
        endpoint_of: Callable[[int], str],
        epoll: "select.epoll",
        sending: AbstractContextManager[Any],
        striping: Striping | None = None,
    ) -> None:
        """`endpoint_of`: address of a process; `epoll` learns of the events of the monitors; `sending`: the
        lock of the links; `striping`: None where each link has one connection.
        """
        self._context = context
        self._directory = directory
        self._endpoint_of = endpoint_of
        self._epoll = epoll
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._watched: dict[int, Watched] = {}
        """The monitors by their descriptors."""
        self._queued_bodies: dict[int, deque[weakref.ref[memoryview | StripedBody]]] = {}
        """By process the large bodies that libzmq may still hold, oldest first; it drops the reference after
        the send.
        """
        self._flushed: dict[int, float] = {}
        """By process when libzmq dropped the last one, on the clock of `time.monotonic`."""
        self._striping = striping
        self._sending = sending
        self._connected: dict[int, dict[zmq.Socket[bytes], int]] = {}
        """By process the descriptors of the connections of its link, by their sockets."""
        self._striped: dict[int, dict[zmq.Socket[bytes], int]] = {}
        """By process of a link with several connections their sockets, the first one last: other messages
        should not wait for chunks. The values are how many chunks libzmq has not passed to the kernel.
        """
        self._striped_bodies: dict[int, deque[StripedBody]] = {}
        """By process the bodies of which chunks are still to be sent, oldest first."""

    def __contains__(self, process: int) -> bool:
        """Whether there is a socket for a process; for any thread."""
        return process in self._sockets

    @property
    def processes(self) -> list[int]:
        """Processes with a socket; for any thread."""
        return [*tuple(self._sockets)]

    def open(self, process: int) -> None:
        """Connects to a process, and watches the connection."""
        self._sockets[process] = self._connect(process)

    def _connect(self, process: int, is_further: bool = False) -> "zmq.Socket[bytes]":
        dealer = self._make(process)
        monitor = dealer.get_monitor_socket(_LINK_EVENTS)
        self._watched[monitor.fileno()] = Watched(process, dealer, monitor)
        self._epoll.register(monitor, select.EPOLLIN)
        # Edge-triggered: a ZeroMQ descriptor becomes readable only after a read that found nothing.
        has_input(monitor)
        # Otherwise chunks would wait in the queue of a further one that is not connected.
        dealer.set(zmq.IMMEDIATE, int(is_further))
        dealer.connect(self._endpoint_of(process))
        return dealer

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
        if isinstance(body, memoryview) and len(body) >= STRIPED_BYTES and process in self._striped:
            striped = StripedBody(header, body)
            self._queue(process, striped)
            self._striped_bodies.setdefault(process, deque()).append(striped)
            self._send_chunks(process)
            return True
        try:
            self._sockets[process].send(header, _MORE_FOLLOWS)
            self._sockets[process].send(body, zmq.NOBLOCK, copy=not is_bulk)
        except zmq.Again:
            return False
        if isinstance(body, memoryview):
            self._queue(process, body)
        return True

    def connections(self, process: int) -> int:
        """How many connections share the large bodies for a process."""
        return len(self._striped.get(process, (process,)))

    def widen(self, process: int) -> None:
        """Opens the further connections of a link over TCP whose first one is established."""
        first = self._connected.get(process, {}).get(self._sockets[process])
        is_tcp = self._endpoint_of(process).startswith("tcp")
        if self._striping is None or not is_tcp or process in self._striped or first is None:
            return
        opened = sum(len(sockets) - 1 for sockets in self._striped.values())
        count = self._striping.further(round_trip_of(first), opened)
        if dealers := [self._connect(process, is_further=True) for _ in range(count)]:
            limit_unsent(first)
            self._striped[process] = dict.fromkeys((*dealers, self._sockets[process]), 0)

    def _send_chunks(self, process: int) -> None:
        """Sends waiting chunks over all connections that have room for one."""
        waiting, held = self._striped_bodies.get(process, deque()), self._striped[process]
        for dealer in held:
            while waiting and held[dealer] < MOST_CHUNKS:
                if (chunk := waiting[0].next_chunk()) is None:
                    waiting.popleft()
                    continue
                try:
                    _send_chunk(dealer, waiting[0].header, *chunk)
                except zmq.Again:
                    break
                waiting[0].note_sent()
                held[dealer] += 1
                weakref.finalize(chunk[1], self._note_sent, process, dealer, waiting[0]).atexit = False
                del chunk

    def _note_sent(self, process: int, dealer: "zmq.Socket[bytes]", striped_body: StripedBody) -> None:
        """Runs in the thread in which pyzmq drops what libzmq has sent; until then the body is on the way."""
        assert self._striping is not None
        self._striping.post(partial(self._refill, process, dealer))

    def _refill(self, process: int, dealer: "zmq.Socket[bytes]") -> None:
        with self._sending:
            if dealer in (held := self._striped.get(process, {})):
                held[dealer] -= 1
                self._send_chunks(process)

    def _queue(self, process: int, body: memoryview | StripedBody) -> None:
        def note_flushed(_: object) -> None:
            self._flushed[process] = time.monotonic()

        self._queued_bodies.setdefault(process, deque()).append(weakref.ref(body, note_flushed))

    def _count_queued(self, process: int) -> int:
        queued = self._queued_bodies.get(process, deque())
        while queued and queued[0]() is None:
            queued.popleft()
        return len(queued)

    def is_flushed(self, process: int) -> bool:
        """Whether libzmq holds no large body for a process."""
        return all(body() is None for body in self._queued_bodies.get(process, ()))

    def flushed_at(self, process: int) -> float:
        """When all large bodies for a process had left; infinity: some are on the way."""
        for dealer in self._striped.get(process, ()):
            # Only a call makes libzmq drop what it held for a connection that broke.
            has_input(dealer)
        connected = self._connected.get(process, {})
        if self._count_queued(process) or any(map(unacknowledged_of, connected.values())):
            return math.inf
        return self._flushed.get(process, 0.0)

    def events_of(self, fd: int) -> tuple[int, list[int]] | None:
        """The process of the link with this monitor, and its new events; None: it is no monitor of these."""
        if (watched := self._watched.get(fd)) is None:
            return None
        process, events = watched.process, []
        while has_input(watched.monitor):
            message = recv_monitor_message(watched.monitor, zmq.NOBLOCK)
            connected = self._connected.setdefault(process, {})
            if message["event"] == zmq.EVENT_CONNECTED:
                connected[watched.dealer] = message["value"]
                if process in self._striped:
                    limit_unsent(message["value"])
            elif message["event"] == zmq.EVENT_DISCONNECTED:
                connected.pop(watched.dealer, None)
            if message["event"] in _JUDGED_EVENTS and watched.dealer is self._sockets.get(process):
                events.append(message["event"])
        return process, events

    def end(self, process: int, linger: int) -> None:
        """Closes the socket for a process; what it still holds has `linger` milliseconds."""
        self._queued_bodies.pop(process, None)
        waiting, striped = self._striped_bodies.pop(process, ()), self._striped.pop(process, {})
        for fd, watched in [*self._watched.items()]:
            if watched.process == process:
                self._epoll.unregister(watched.monitor)
                del self._watched[fd]
                watched.dealer.disable_monitor()
                watched.monitor.close(0)
        self._connected.pop(process, None)
        if (dealer := self._sockets.pop(process, None)) is not None:
            with suppress(zmq.Again):
                for body in waiting if linger else ():
                    while (chunk := body.next_chunk()) is not None:
                        _send_chunk(dealer, body.header, *chunk)
                        body.note_sent()
            for socket in {dealer, *striped}:
                socket.close(linger)


def _send_chunk(dealer: "zmq.Socket[bytes]", header: bytes, index: bytes, chunk: memoryview) -> None:
    """Sends the three frames of a chunk; raises Again, and sends nothing, where there is no room."""
    dealer.send(header, _MORE_FOLLOWS)
    dealer.send(index, _MORE_FOLLOWS)
    dealer.send(chunk, zmq.NOBLOCK, copy=False)
