"""What single connections do to this process, and the end of those that harm it.

No option of ZeroMQ limits a message that never ends: its frames are kept until the last one has come. Nor
can it be told which connection to close; so the connection is shut down underneath it, as a network would.
"""

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import zmq

LOOK_INTERVAL = 0.1
"""Seconds between two looks; a link of 10 Gbit/s brings 125 MB in that time."""
SLACK_BYTES = 4 << 20
"""Beside the largest message; not more, because empty frames take 28 times their bytes in memory."""
MOST_OFFENSES = 3
UNKNOWN = -1
SHARE = 0.05
"""Of the thread's time, where there are so many descriptors that looking takes long."""
DESCRIPTORS = Path("/proc/self/fd")
_RECEIVED = struct.Struct("<128xQ")
"""Where `struct tcp_info` of Linux counts the bytes that a connection has brought."""
_INFO_BYTES = 256
ESTABLISHED = 1


class Connections:
    """Watches what TCP connections to this process bring; called by the thread that receives alone."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` is the largest frame that is accepted."""
        self.next_look = float("inf")
        """When to look, as `time.monotonic` counts: never before something is listened to."""
        self._limit = most_bytes + SLACK_BYTES
        self._ports: set[int] = set()
        self._delivering: set[int] = set()
        self._brought: dict[tuple[int, object], int] = {}
        self._offenses: Counter[int] = Counter()

    def listen(self, endpoint: str) -> None:
        """Watches connections to this endpoint of ours if it is one of TCP."""
        if endpoint.startswith("tcp:"):
            self._ports.add(int(endpoint.rpartition(":")[2]))
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
        """Ends connections that bring more than any message has, without ending one; returns how many."""
        began = time.monotonic()
        before, self._brought = self._brought, {}
        cut = 0
        for fd, peer, total in self._connected():
            start = before.get((fd, peer), total)
            if fd in self._delivering:
                start = total
            if total - start > self._limit:
                start = total
                cut += _shut_down(fd)
            self._brought[fd, peer] = start
        self._delivering.clear()
        ended = time.monotonic()
        self.next_look = ended + max(LOOK_INTERVAL, (ended - began) / SHARE)
        return cut

    def _connected(self) -> Iterator[tuple[int, object, int]]:
        """Descriptor, peer, and bytes brought so far of each living connection to one of the ports."""
        for entry in DESCRIPTORS.iterdir():
            try:
                # Of both families of addresses the one with room for both: a longer one would be cut off.
                one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=int(entry.name))
            except OSError:
                continue
            try:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                known = len(info) >= _RECEIVED.size and info[0] == ESTABLISHED
                if known and one.getsockname()[1] in self._ports:
                    yield int(entry.name), one.getpeername(), _RECEIVED.unpack_from(info)[0]
            except OSError:
                continue
            finally:
                one.detach()


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
