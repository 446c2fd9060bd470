"""Large bodies over several connections of a link: their chunks, and how many connections a link has.

On a long link one TCP connection is slow: its window starts small, also after each pause of the sender, and
grows back after each loss by a packet or so for each round trip. k connections grow k times as fast: in this
they are like one connection of a k-th of the round trip (Hacker et al., The End-to-End Performance Effects of
Parallel TCP Sockets on a Lossy Wide-Area Network, 2002).

Threads: a sender's state is guarded by the lock of the links, a receiver's is the socket thread's alone.
"""

import math
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import torch

from decentnode.communication import wire
from decentnode.communication.base import kept_links

MOST_CONNECTIONS = 16
ROUND_TRIPS_PER_SECOND = 200
"""How often one connection has to hear of the other end: with a round trip of 5 ms, or less as in a local
network, it is enough.
"""
CHUNK_FRAMES = 3
"""A chunk has the header of its message, its number, and its bytes."""
INDEX = struct.Struct("<I")
"""The number of a chunk."""
LEAST_CHUNK, MOST_CHUNK, CHUNKS = 1 << 16, 1 << 20, 512
STRIPED_BYTES = 2 * LEAST_CHUNK
"""The least body that is striped."""
MOST_CHUNKS = 1
"""Chunks of a connection that libzmq holds: the kernel holds more, and a further one may go elsewhere."""
MOST_UNSENT = 1 << 16
"""Bytes of a connection that the kernel takes beyond what it may send now."""
_NOTSENT_LOWAT = 25
"""TCP_NOTSENT_LOWAT of linux/tcp.h."""
_MIN_ROUND_TRIP = struct.Struct("=I")
_MIN_ROUND_TRIP_AT = 148
"""The place of `tcpi_min_rtt` in `struct tcp_info` of linux/tcp.h."""

Connections = Literal["auto"] | int


def chunk_bytes(length: int) -> int:
    """The size of all chunks of a body but the last one; both ends compute it."""
    return max(LEAST_CHUNK, min(MOST_CHUNK, length // CHUNKS))


@dataclass(frozen=True)
class Striping:
    """What the links of a host process need to know about connections."""

    connections: Connections
    most_bytes: int
    """The largest body."""
    post: Callable[[Callable[[], object]], None]
    """Makes the socket thread run something."""

    def further(self, round_trip: float, opened: int) -> int:
        """How many connections a link over TCP has beside its first; `opened`: those of other links."""
        if self.most_bytes < STRIPED_BYTES:
            return 0
        if self.connections != "auto":
            return self.connections - 1
        # Each takes five descriptors; more of them also help less, as all links share what the machine sends.
        room = max(0, kept_links() // 2 - opened)
        return min(max(1, math.ceil(round_trip * ROUND_TRIPS_PER_SECOND)), MOST_CONNECTIONS, 1 + room) - 1


def round_trip_of(fd: int) -> float:
    """The least round trip in seconds of a connection as the kernel has measured it; 0: unknown."""
    with suppress(OSError, struct.error), _connection(fd) as connection:
        size = _MIN_ROUND_TRIP_AT + _MIN_ROUND_TRIP.size
        measured = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        return float(_MIN_ROUND_TRIP.unpack_from(measured, _MIN_ROUND_TRIP_AT)[0] / 1e6)
    return 0.0


def unacknowledged_of(fd: int) -> int:
    """How many bytes of a TCP connection the kernel of the other machine has not acknowledged."""
    # Systems where no nodes run may lack them, and import this module all the same.
    import fcntl
    import termios

    with suppress(OSError):
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0


def limit_unsent(fd: int) -> None:
    """Makes the kernel take no more of a connection's bytes than it will send soon.

    It would take twice its window. After a loss the connection would need long for them while the others
    have nothing left to send.
    """
    with suppress(OSError), _connection(fd) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, MOST_UNSENT)


@contextmanager
def _connection(fd: int) -> Iterator[socket.socket]:
    """A connection of libzmq, which keeps the descriptor."""
    connection = socket.socket(fileno=fd)
    try:
        yield connection
    finally:
        connection.detach()


class StripedBody:
    """A message whose body is sent in chunks; it lives until libzmq has sent the last of them."""

    def __init__(self, header: bytes, body: memoryview) -> None:
        self.header = header
        self._body = body
        self._sent = 0

    def next_chunk(self) -> tuple[bytes, memoryview] | None:
        """The number and the bytes of the first chunk that is not sent; None: all are."""
        size = chunk_bytes(len(self._body))
        chunk = self._body[self._sent * size : (self._sent + 1) * size]
        return (INDEX.pack(self._sent), chunk) if len(chunk) else None

    def note_sent(self) -> None:
        """Goes on to the next chunk."""
        self._sent += 1


class UnfinishedBody:
    """The body of one message, of which chunks have arrived."""

    def __init__(self, length: int) -> None:
        self.body: memoryview = torch.empty(length, dtype=torch.uint8).numpy().data
        self._missing = set(range(-(-length // chunk_bytes(length))))

    def add(self, packed_index: bytes, chunk: memoryview) -> bool:
        """Adds a chunk, unless it is there; returns whether the body is whole. Raises WireError."""
        if len(packed_index) != INDEX.size:
            raise wire.WireError("chunk")
        (index,), size = INDEX.unpack(packed_index), chunk_bytes(len(self.body))
        place = self.body[index * size : (index + 1) * size]
        if not len(chunk) or len(chunk) != len(place):
            raise wire.WireError("chunk")
        if index in self._missing:
            self._missing.remove(index)
            place[:] = chunk
        return not self._missing
