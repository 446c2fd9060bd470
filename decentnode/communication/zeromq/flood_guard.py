"""What single connections do to this process, and the end of those that harm it.

No option of ZeroMQ limits a message that never ends: its frames are kept until the last one has come. Nor
can it be told which connection to close; so the connection is shut down underneath it, as a network would.
"""

import contextlib
import ctypes
import errno
import itertools
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

import zmq

from decentnode.communication.wire import MOST_CONTROL_BYTES
from decentnode.communication.zmq_poll import drain

NEVER = float("inf")
REST = 5.0
"""Seconds between two looks while the connections bring next to nothing."""
LOOK_INTERVAL = 0.1
"""Seconds between two looks; a link of 10 Gbit/s brings 125 MB in that time."""
SLACK_BYTES = 4 << 20
"""Beside the largest message; not more, because empty frames take 28 times their bytes in memory."""
SPARE = 2
"""Connections of processes that come back, beside those of all others."""
MOST_PER_PEER, MOST_SPARE = 4, 64
"""How many connections there may be: one that is made again lives beside the one before it for a while."""
MOST_OFFENSES = 3
UNFINISHED, TOO_MANY = "unfinished message", "too many connections"
UNKNOWN = -1
SHARE = 0.05
"""Of the thread's time, where there are so many descriptors that looking takes long."""
MOST_UNUSED = 64
"""Descriptors in a row that nobody uses, after which there are no more: the kernel gives out the lowest."""
_INFO_BYTES, _ADDRESS_BYTES = 256, 128
# Keeps the interpreter's lock: given away at each of many calls, it would take long to get back.
_libc = ctypes.PyDLL(None, use_errno=True)
_answer, _size = ctypes.create_string_buffer(_INFO_BYTES), ctypes.c_uint()
_size_at = ctypes.byref(_size)
_RECEIVED = struct.Struct("<128xQ")
"""Where `struct tcp_info` of Linux counts the bytes that a connection has brought."""
ESTABLISHED = 1
_ONCE = select.EPOLLIN | select.EPOLLONESHOT
PORT_END = 4
"""Where the port of an address ends and the host begins, as the kernel has them."""
Connection = tuple[int, bytes]
"""A descriptor, and the peer's address as the kernel has it: descriptors are given out again."""
NOWHERE: Connection = (-1, b"")


def make_router(context: "zmq.Context[zmq.Socket[bytes]]", most_bytes: int) -> "zmq.Socket[bytes]":
    """What receives from everybody; `most_bytes` is the largest frame that is accepted."""
    router = context.socket(zmq.ROUTER)
    router.set(zmq.MAXMSGSIZE, max(most_bytes, MOST_CONTROL_BYTES))
    router.set(zmq.BACKLOG, 1024)
    router.set(zmq.IPV6, 1)
    router.set(zmq.LINGER, 0)
    return router


class FloodGuard:
    """Watches what TCP connections of this process bring; called by the thread that receives alone."""

    def __init__(self, most_bytes: int, peers: int) -> None:
        """`most_bytes` is the largest frame that is accepted; `peers`: how many processes may connect."""
        self.next_look = NEVER
        """When to look, as `time.monotonic` counts: never before something is listened to."""
        self._limit = most_bytes + SLACK_BYTES
        self._limit_of_all = (peers + SPARE) * self._limit
        self._most = MOST_PER_PEER * peers + MOST_SPARE
        self._ports: set[int] = set()
        self._far_ports: set[int] = set()
        self._delivering: set[int] = set()
        self._proven: set[Connection] = set()
        """Those that have brought a whole message; on a guarded socket none of a stranger ever does."""
        self._brought: dict[Connection, int] = {}
        self._totals: dict[Connection, int] = {}
        self._is_busy = False
        """Whether in the last look one had brought more than control messages since the look before."""
        self._asleep = select.epoll()
        self._are_asleep = False
        self._known: list[int] | None = None
        """Descriptors of all of them; None: there may be others."""
        self._router: zmq.Socket[bytes] | None = None
        self._accepted: zmq.Socket[bytes] | None = None
        self._offenses: Counter[int] = Counter()

    def listen(self, endpoint: str) -> None:
        """Watches connections to this endpoint of ours if it is one of TCP."""
        self._watch(endpoint, self._ports)

    def reach(self, endpoint: str) -> None:
        """Watches connections that this process makes to that endpoint if it is one of TCP."""
        self._watch(endpoint, self._far_ports)

    def _watch(self, endpoint: str, ports: set[int]) -> None:
        if endpoint.startswith("tcp:"):
            ports.add(int(endpoint.rpartition(":")[2]))
            self.next_look = time.monotonic() + LOOK_INTERVAL

    def fileno(self) -> int:
        """Readable when one of those brings something that are not looked at any more: time for `wake`."""
        return self._asleep.fileno()

    @property
    def are_asleep(self) -> bool:
        """Whether they are hardly looked at until one brings something."""
        return self._are_asleep

    def rest(self) -> None:
        """After a look: if they bring little, there is hardly another one before they bring something.

        Who watches them may find that all has been read that has woken it, and sleeps on: therefore `hardly`.
        """
        self._are_asleep = not self._is_busy
        if self._is_busy:
            return
        self.next_look += REST
        self._known = [fd for fd, _ in self._totals]
        for fd, _ in self._totals:
            with contextlib.suppress(OSError):
                try:
                    self._asleep.modify(fd, _ONCE)
                except FileNotFoundError:
                    self._asleep.register(fd, _ONCE)

    def follow(self, router: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
        """A socket that is readable when this one has a new connection: time for `greet`."""
        self._router, self._accepted = router, router.get_monitor_socket(zmq.EVENT_ACCEPTED)
        return self._accepted

    def greet(self) -> None:
        """There is a new connection, whose descriptor has to be found."""
        if self._accepted is not None:
            drain(self._accepted)
        self._known = None
        self.wake()

    def wake(self) -> None:
        """Has them looked at from now on."""
        self._asleep.poll(0)
        self._are_asleep = False
        self.next_look = min(self.next_look, time.monotonic() + LOOK_INTERVAL)

    def close(self) -> None:
        """Watches nothing any more; before the socket that is followed is closed."""
        self._asleep.close()
        if self._router is not None and self._accepted is not None:
            self._router.disable_monitor()
            self._accepted.close(0)

    def note(self, frame: zmq.Frame) -> int:
        """A whole message has come, of which this is a frame; returns the descriptor that brought it."""
        fd = _source_of(frame)
        self._delivering.add(fd)
        return fd

    def end(self, connection: Connection) -> None:
        """Ends this connection, unless it has ended and its descriptor is another one's."""
        if connection != NOWHERE and connection == connection_of(connection[0]):
            _shut_down(connection[0])

    def blame(self, frame: zmq.Frame) -> None:
        """The message was none of ours in form: the third one ends the connection."""
        fd = _source_of(frame)
        self._offenses[fd] += 1
        if fd != UNKNOWN and self._offenses[fd] >= MOST_OFFENSES:
            del self._offenses[fd]
            _shut_down(fd)

    def look(self) -> list[str]:
        """Ends connections that bring more than any message has, without ending one; the reason for each.

        All together may hold no more than one such message for each peer.
        """
        began = time.monotonic()
        before, self._brought = self._brought, {}
        known, self._totals = self._totals, {}
        reasons, held = list[str](), dict[Connection, int]()
        for fd, peer, total in self._connected():
            one = fd, peer
            start = before.get(one, total)
            if fd in self._delivering:
                start = total
                self._proven.add(one)
            if total - start > self._limit:
                start = total
                reasons += _ended(one, UNFINISHED)
            self._brought[one], self._totals[one] = start, total
            held[one] = total - start
        brought = (total - known.get(one, 0) for one, total in self._totals.items())
        self._is_busy = any(amount > MOST_CONTROL_BYTES for amount in brought)
        self._proven &= held.keys()
        self._delivering.clear()
        reasons += self._relieve(held, lambda _: 1, self._most, TOO_MANY)
        reasons += self._relieve(held, lambda amount: amount, self._limit_of_all, UNFINISHED)
        ended = time.monotonic()
        self.next_look = ended + max(LOOK_INTERVAL, (ended - began) / SHARE)
        return reasons

    def _relieve(
        self, held: dict[Connection, int], weigh: Callable[[int], int], limit: int, reason: str
    ) -> list[str]:
        """Where what they hold weighs more than `limit` together, ends some of them.

        Who never brought a whole message goes first, then one of the address that has most, the newest.
        """
        total = sum(map(weigh, held.values()))
        if total <= limit:
            return []
        of_host: Counter[tuple[bool, bytes]] = Counter()
        ranked = []
        for one in sorted(held, key=lambda one: (weigh(held[one]), one[0])):
            stranger = one not in self._proven
            host = stranger, one[1][PORT_END:]
            of_host[host] += weigh(held[one])
            ranked.append((stranger, of_host[host], one))
        reasons = []
        for _, _, one in sorted(ranked, reverse=True):
            if total <= limit:
                break
            total -= weigh(held.pop(one))
            reasons += _ended(one, reason)
        return reasons

    def _connected(self) -> Iterator[tuple[int, bytes, int]]:
        """Descriptor, peer, and bytes brought so far of each living connection that is watched."""
        unused = 0
        for fd in itertools.count() if self._known is None else self._known:
            known = _tcp_connection(fd)
            unused = unused + 1 if known is None else 0
            if known is not None and (known[0] in self._ports or _port(known[1]) in self._far_ports):
                yield fd, *known[1:]
            if unused >= MOST_UNUSED:
                break


def _tcp_connection(fd: int) -> tuple[int, bytes, int] | None:
    """Local port, peer and bytes brought of a connection; port 0 of anything else, None of nothing."""
    _size.value = _INFO_BYTES
    if _libc.getsockopt(fd, socket.IPPROTO_TCP, socket.TCP_INFO, _answer, _size_at):
        return None if ctypes.get_errno() == errno.EBADF else (0, b"", 0)
    account = _answer.raw[: _size.value]
    if len(account) < _RECEIVED.size or account[0] != ESTABLISHED:
        return 0, b"", 0
    here, there = _address(_libc.getsockname, fd), _address(_libc.getpeername, fd)
    return _port(here), there, _RECEIVED.unpack_from(account)[0]


def connection_of(fd: int) -> Connection:
    """What a descriptor stands for now; NOWHERE if it is none of TCP."""
    known = _tcp_connection(fd)
    return (fd, known[1]) if known is not None and known[0] else NOWHERE


def _port(address: bytes) -> int:
    return int.from_bytes(address[2:PORT_END], "big")


def _address(ask: Callable[..., int], fd: int) -> bytes:
    """An address of a socket as the kernel has it; the port is in bytes 2 and 3."""
    _size.value = _ADDRESS_BYTES
    return b"" if ask(fd, _answer, _size_at) else _answer.raw[: _size.value]


def _source_of(frame: zmq.Frame) -> int:
    """The descriptor of the connection that brought a frame."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        # Who speaks one of the oldest versions of the protocol: such a link keeps no account of itself.
        return UNKNOWN


def _ended(one: Connection, reason: str) -> list[str]:
    return [reason] if _shut_down(one[0]) else []


def _shut_down(fd: int) -> bool:
    """Ends the connection of a descriptor, which stays its owner's to close; false when there is none."""
    try:
        one = socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        one.shutdown(socket.SHUT_RDWR)
        return True
    except OSError:
        return False
    finally:
        one.detach()
