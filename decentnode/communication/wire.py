"""The message format: a 64-byte header and one body frame (docs/message_format.md).

Nothing in a message names a type, a shape or code; the receiver knows from its settings what to expect.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

import msgspec
import xxhash

from decentnode.errors import UNDECODABLE

MAGIC = b"DCNT"
VERSION = 3
MOST_CONTROL_BYTES = 64 * 1024
SEQ_BITS = 24
"""Exchanges of one incarnation are numbered with that many bits; the higher ones are the incarnation."""
_HEADER = struct.Struct("<4sHBBQIIIIHHIIIQII")
HEADER_BYTES = _HEADER.size
_UNSIGNED = _HEADER.size - 4
_KIND_AT = 6
_CHECKSUM = struct.Struct("<I")
_LOW_32_BITS = (1 << 32) - 1
LOW_8_BITS = (1 << 8) - 1
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
    DROP_EDGE = 5
    """I have given up on you: drop this edge at your end too."""
    LEAVE = 6
    """I send nothing after this round."""
    WAITING = 7
    """I am alive and wait in this exchange."""
    RESEND = 8
    """The same, and for you: send again what I have not got."""
    POSITION = 9
    """This is the next exchange that I begin."""
    POSITION_REQUEST = 10
    """I come back: where are you?"""
    REJOIN_PROPOSE = 11
    """Let us exchange again from this round on (`seq`: the next round that I begin)."""
    REJOIN_ACCEPT = 12
    """Agreed: from this round on."""
    SKIP = 13
    """I go on in this round, and send nothing before it."""
    MODEL_REQUEST = 14
    """I come back without a model: send me yours."""
    MODEL = 15
    """A model: the vector, in the body frame."""
    GROUP = 16
    """About the process group of torch.distributed (body: a note of group_notes.py)."""


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
    """How often the sender's process was started before."""
    knows: int = 0
    """The last 8 bits of the receiver's incarnation, as far as the sender knows."""
    body_digest: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Which exchange the message belongs to."""
        return self.round, self.phase, self.part

    def pack(self, receiver: int | None = None, ack: int | None = None, knows: int | None = None) -> bytes:
        """The header's bytes, for another receiver if given."""
        plain = _HEADER.pack(
            MAGIC, VERSION, self.kind, (self.knows if knows is None else knows) & LOW_8_BITS, self.run_id,
            self.sender, self.receiver if receiver is None else receiver, self.incarnation,
            self.round, self.phase, self.part, self.layout, self.seq,
            self.ack if ack is None else ack, self.length, self.body_digest, 0,
        )[:_UNSIGNED]  # fmt: skip
        return plain + _CHECKSUM.pack(checksum(plain))

    @classmethod
    def unpack(cls, frame: bytes) -> "Header":
        """Reads a header and verifies its checksum, in O(1); raises WireError."""
        if len(frame) != HEADER_BYTES:
            raise WireError("header length")
        (magic, version, kind, knows, run_id, sender, receiver, incarnation, round, phase, part,
         layout, seq, ack, length, body_digest, given) = _HEADER.unpack(frame)  # fmt: skip
        if magic != MAGIC:
            raise WireError("magic")
        if version != VERSION:
            raise WireError("version")
        if given != checksum(frame[:_UNSIGNED]):
            raise WireError("checksum")
        if not Kind.HELLO <= kind <= Kind.GROUP:
            raise WireError("kind")
        return cls(
            kind, run_id, sender, receiver, round, phase, part, layout, seq, ack, length, incarnation, knows,
            body_digest,
        )  # fmt: skip


def kind_of(header: bytes) -> int:
    """The kind that a packed header names; nothing is checked."""
    return header[_KIND_AT]


def checksum(plain: bytes) -> int:
    """32 bits over the header without its checksum; they cover the body by its digest."""
    return xxhash.xxh3_64_intdigest(plain) & _LOW_32_BITS


def digest(body: bytes | memoryview) -> int:
    """32 bits over a body; 0 for an empty one."""
    return xxhash.xxh3_64_intdigest(body) & _LOW_32_BITS if len(body) else 0


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
    except UNDECODABLE as error:
        raise WireError("hello") from error
