"""The message format: a 64-byte header and one body frame (docs/message_format.md).

Nothing in a message names a type, a shape or code; the receiver knows from its settings what to expect.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

import msgspec
import xxhash

MAGIC = b"DCNT"
VERSION = 1
MOST_CONTROL_BYTES = 64 * 1024
_HEADER = struct.Struct("<4sHBBQIIIIHHIIIQQ")
HEADER_BYTES = _HEADER.size
_UNSIGNED = _HEADER.size - 8
_CHECKSUM = struct.Struct("<Q")
_REFERENCE = struct.Struct("<Q")


Body = bytes | memoryview
"""The second frame of a message; a memoryview is sent without a copy."""
Outgoing = tuple[int, bytes, Body]
"""A message to send: the position of the receiving process, its header, its body."""


class Kind(IntEnum):
    """What a message is for."""

    HELLO = 1
    """First message on a link: who I am and where my shared memory is (body: Hello)."""
    PAYLOAD = 2
    """A payload in the body frame."""
    NOTICE = 3
    """A payload in the sender's shared memory (body: its first byte there)."""
    ACKNOWLEDGE = 4
    """Nothing but the `ack` field."""
    WITHDRAW = 5
    """I have given up on you: drop this edge at your end too."""
    LEAVE = 6
    """I send nothing after this round."""
    WAITING = 7
    """I am alive and wait in this exchange."""


class WireError(ValueError):
    """A message that breaks the rules; `reason` is what the counters book it under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Header(NamedTuple):
    """The 64 bytes before every body; all integers little-endian."""

    kind: int
    run_id: int
    sender: int
    receiver: int
    round: int = 0
    phase: int = 0
    part: int = 0
    layout: int = 0
    seq: int = 0
    ack: int = 0
    length: int = 0
    incarnation: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Which exchange the message belongs to."""
        return self.round, self.phase, self.part

    def pack(self, body_digest: int = 0, receiver: int | None = None, ack: int | None = None) -> bytes:
        """The header's bytes, for another receiver if given; the checksum covers the body by its digest."""
        plain = _HEADER.pack(
            MAGIC, VERSION, self.kind, 0, self.run_id, self.sender,
            self.receiver if receiver is None else receiver, self.incarnation,
            self.round, self.phase, self.part, self.layout, self.seq,
            self.ack if ack is None else ack, self.length, 0,
        )[:_UNSIGNED]  # fmt: skip
        return plain + _CHECKSUM.pack(checksum(plain, body_digest))

    @classmethod
    def unpack(cls, frame: bytes) -> "Header":
        """Reads a header in O(1); raises WireError. The checksum is the caller's to check, with the body."""
        if len(frame) != HEADER_BYTES:
            raise WireError("header length")
        (magic, version, kind, flags, run_id, sender, receiver, incarnation,
         round, phase, part, layout, seq, ack, length, _) = _HEADER.unpack(frame)  # fmt: skip
        if magic != MAGIC:
            raise WireError("magic")
        if version != VERSION:
            raise WireError("version")
        if flags or not Kind.HELLO <= kind <= Kind.WAITING:
            raise WireError("kind")
        return cls(kind, run_id, sender, receiver, round, phase, part, layout, seq, ack, length, incarnation)


def checksum(plain: bytes, body_digest: int) -> int:
    """64 bits over the header without its checksum, seeded with the body's digest."""
    return xxhash.xxh3_64_intdigest(plain, body_digest)


def digest(body: bytes | memoryview) -> int:
    """64 bits over a body that travels through a network; empty and shared-memory bodies count as 0."""
    return xxhash.xxh3_64_intdigest(body) if len(body) else 0


def verify(frame: bytes, body_digest: int) -> bool:
    """True when the header's checksum fits the header and the body."""
    return frame[_UNSIGNED:] == _CHECKSUM.pack(checksum(frame[:_UNSIGNED], body_digest))


def pack_reference(offset: int) -> bytes:
    """The body of a NOTICE: where the payload starts in the sender's shared memory."""
    return _REFERENCE.pack(offset)


def unpack_reference(body: bytes) -> int:
    """The inverse of `pack_reference`; raises WireError."""
    if len(body) != _REFERENCE.size:
        raise WireError("reference length")
    return int(_REFERENCE.unpack(body)[0])


class SharedSegment(msgspec.Struct, frozen=True):
    """Where one node's shared memory can be opened: file descriptor `fd` of process `pid`."""

    rank: int
    pid: int
    fd: int
    size: int


class Hello(msgspec.Struct, frozen=True):
    """Who is at the other end of a link."""

    ranks: list[int]
    segments: list[SharedSegment]


def pack_hello(hello: Hello) -> bytes:
    """The body of a HELLO."""
    return msgspec.msgpack.encode(hello)


def unpack_hello(body: bytes) -> Hello:
    """The inverse of `pack_hello`; raises WireError."""
    if len(body) > MOST_CONTROL_BYTES:
        raise WireError("control length")
    try:
        return msgspec.msgpack.decode(body, type=Hello)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError("hello") from error
