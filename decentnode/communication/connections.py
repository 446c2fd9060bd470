"""What single connections do to this process, and the end of those that harm it.

No option of ZeroMQ limits a message that never ends: its frames are kept until the last one has come. Nor
can it be told which connection to close; so the connection is shut down underneath it, as a network would.
"""

import ctypes
import errno
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

import zmq

from decentnode.communication.wire import MOST_CONTROL_BYTES

LOOK_INTERVAL = 0.1
"""Seconds between two looks; a link of 10 Gbit/s brings 125 MB in that time."""
SLACK_BYTES = 4 << 20
"""Beside the largest message; not more, because empty frames take 28 times their bytes in memory."""
SPARE = 2
"""Connections of processes that come back, beside those of all others."""
MOST_PER_PEER, MOST_SPARE = 4, 64
"""How many connections there may be: one that is made again lives beside the one before it for a while."""
MOST_OFFENSES = 3
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
PORT_END = 4
"""Where the port of an address ends and the host begins, as the kernel has them."""


def make_router(context: "zmq.Context[zmq.Socket[bytes]]", most_bytes: int) -> "zmq.Socket[bytes]":
    """What receives from everybody; `most_bytes` is the largest frame that is accepted."""
    router = context.socket(zmq.ROUTER)
    router.set(zmq.MAXMSGSIZE, max(most_bytes, MOST_CONTROL_BYTES))
    router.set(zmq.BACKLOG, 1024)
    router.set(zmq.IPV6, 1)
    router.set(zmq.LINGER, 0)
    return router


class Connections:
    """Watches what TCP connections of this process bring; called by the thread that receives alone."""

    def __init__(self, most_bytes: int, peers: int) -> None:
        """`most_bytes` is the largest frame that is accepted; `peers`: how many processes may connect."""
        self.next_look = float("inf")
        """When to look, as `time.monotonic` counts: never before something is listened to."""
        self._limit = most_bytes + SLACK_BYTES
        self._limit_of_all = (peers + SPARE) * self._limit
        self._most = MOST_PER_PEER * peers + MOST_SPARE
        self._ports: set[int] = set()
        self._far_ports: set[int] = set()
        self._delivering: set[int] = set()
        self._brought: dict[tuple[int, bytes], int] = {}
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

    def note(self, frame: zmq.Frame) -> None:
        """A whole message has come, of which this is a frame."""
        self._delivering.add(_source_of(frame))

    def blame(self, frame: zmq.Frame) -> None:
        """The message was none of ours in form: the third one ends the connection."""
        fd = _source_of(frame)
        self._offenses[fd] += 1
        if fd != UNKNOWN and self._offenses[fd] >= MOST_OFFENSES:
            del self._offenses[fd]
            _shut_down(fd)

    def look(self) -> int:
        """Ends connections that bring more than any message has, without ending one; returns how many.

        All together may hold no more than one such message for each peer.
        """
        began = time.monotonic()
        before, self._brought = self._brought, {}
        cut, held = 0, dict[tuple[int, bytes], int]()
        for fd, peer, total in self._connected():
            start = before.get((fd, peer), total)
            if fd in self._delivering:
                start = total
            if total - start > self._limit:
                start = total
                cut += _shut_down(fd)
            self._brought[fd, peer] = start
            held[fd, peer] = total - start
        cut += self._relieve(held)
        self._delivering.clear()
        ended = time.monotonic()
        self.next_look = ended + max(LOOK_INTERVAL, (ended - began) / SHARE)
        return cut

    def _relieve(self, held: dict[tuple[int, bytes], int]) -> int:
        """Where there are too many, or all hold too much, ends those of the address that has most of it.

        `held`: bytes of unfinished messages, by descriptor and peer.
        """
        hosts: dict[bytes, dict[int, int]] = {}
        for (fd, peer), amount in held.items():
            hosts.setdefault(peer[PORT_END:], {})[fd] = amount
        number, kept, cut = len(held), sum(held.values()), 0
        while number > self._most or kept > self._limit_of_all:
            if number > self._most:
                host = max(hosts.values(), key=len)
                fd = max(host)  # the newest: the kernel gives the lowest numbers first
            else:
                host = max(hosts.values(), key=lambda one: sum(one.values()))
                fd = max(host, key=host.__getitem__)
            number, kept = number - 1, kept - host.pop(fd)
            cut += _shut_down(fd)
        return cut

    def _connected(self) -> Iterator[tuple[int, bytes, int]]:
        """Descriptor, peer, and bytes brought so far of each living connection that is watched."""
        fd, unused = 0, 0
        while unused < MOST_UNUSED:
            known = _tcp_connection(fd)
            unused = unused + 1 if known is None else 0
            if known is not None and (known[0] in self._ports or _port(known[1]) in self._far_ports):
                yield fd, *known[1:]
            fd += 1


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
