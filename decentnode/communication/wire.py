"""The message format: a 64-byte header and one body frame, or the chunks of it (docs/message_format.md).

No message names a type, a shape or code; the receiver knows from its settings what to expect.

Threads: any; these are values.
"""

import struct
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import xxhash

from decentnode.errors import UNDECODABLE

MAGIC = b"DCNT"
VERSION = 4
MOST_CONTROL_BYTES = 64 * 1024
SEQ_BITS = 24
"""Bits for the number of an exchange within one incarnation; the bits above are the incarnation."""
_HEADER = struct.Struct("<4sHBBQIIIIHHIIIQII")
HEADER_BYTES = _HEADER.size
# The checksum is the last field and covers all bytes before it.
_UNSIGNED = _HEADER.size - 4
_PLAIN = struct.Struct(_HEADER.format[:-1])
KIND_AT = 6
"""The place of the kind in a packed header."""
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_LENGTH_AT = 48
_LOW_32_BITS = (1 << 32) - 1
LOW_8_BITS = (1 << 8) - 1
REFERENCE = struct.Struct("<Q")
"""The body of a NOTICE: the offset of the payload in the sender's shared memory."""


Body = bytes | memoryview
"""The second frame of a message; a memoryview is sent without a copy."""
Outgoing = tuple[int, bytes, Body]
"""A message to send: position of the receiving process, header, body."""


class Kind(IntEnum):
    """The purpose of a message."""

    HELLO = 1
    """First message on a link: local ranks and, on one machine, their shared memory (body: Hello)."""
    PAYLOAD = 2
    """A payload in the body frame."""
    NOTICE = 3
    """A payload in the sender's shared memory (body: its offset there)."""
    ACKNOWLEDGE = 4
    """A message that has only its `ack` field."""
    DROP_EDGE = 5
    """The sender has dropped this edge; the receiver drops it, too."""
    LEAVE = 6
    """The sender sends no payload after this exchange."""
    WAITING = 7
    """The sender is alive and waits in this exchange."""
    RESEND = 8
    """The sender waits in this exchange for the receiver, and requests what is missing."""
    POSITION = 9
    """The last exchange of the sender (`seq`: the next round that it starts)."""
    POSITION_REQUEST = 10
    """The sender rejoins and requests the receiver's POSITION."""
    REJOIN_PROPOSE = 11
    """Proposes to exchange again from this round on (`seq`: the sender's next round)."""
    REJOIN_ACCEPT = 12
    """Accepts the proposed round (`seq`: the sender's next round)."""
    SKIP = 13
    """The sender continues in this round, and sends nothing before it."""
    MODEL_REQUEST = 14
    """The sender rejoins without a model and requests the receiver's."""
    MODEL = 15
    """A model: the vector, in the body frame."""
    GROUP = 16
    """About the process group of torch.distributed (body: see torch_distributed/messages.py)."""
    MESSAGE = 17
    """A payload outside of any exchange (`phase`: its tag, `seq`: its number), in the body frame."""


# A look-up of a member takes as long as a small function; the kinds of each round are compared with these.
MOST_KIND, NOTICE, ACKNOWLEDGE, HELLO = max(Kind), Kind.NOTICE, Kind.ACKNOWLEDGE, Kind.HELLO


class WireError(ValueError):
    """An invalid message; `reason` is the name of its counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Header(NamedTuple):
    """The 64 bytes before every body; all integers are little-endian."""

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
    """The incarnation of the sender's process."""
    knows: int = 0
    """The last 8 bits of the receiver's incarnation, as the sender knows it."""
    body_digest: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """The exchange that the message belongs to."""
        return self.round, self.phase, self.part

    def pack(self, receiver: int | None = None, ack: int | None = None, knows: int | None = None) -> bytes:
        """The bytes of the header; the parameters replace fields, so one header serves all receivers."""
        plain = _PLAIN.pack(
            MAGIC, VERSION, self.kind, (self.knows if knows is None else knows) & LOW_8_BITS, self.run_id,
            self.sender, self.receiver if receiver is None else receiver, self.incarnation,
            self.round, self.phase, self.part, self.layout, self.seq,
            self.ack if ack is None else ack, self.length, self.body_digest,
        )  # fmt: skip
        return plain + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(plain) & _LOW_32_BITS)

    @classmethod
    def unpack(cls, frame: bytes) -> "Header":
        """Reads a header and verifies its checksum, in O(1); raises WireError."""
        if len(frame) != HEADER_BYTES:
            raise WireError("header length")
        (magic, version, kind, knows, run_id, sender, receiver, incarnation, round, phase, part,
         layout, seq, ack, length, body_digest, header_digest) = _HEADER.unpack(frame)  # fmt: skip
        # Cheap checks first: a frame of another program must not cost a checksum.
        if magic != MAGIC:
            raise WireError("magic")
        if version != VERSION:
            raise WireError("version")
        # After the version, because another version may have another layout.
        if header_digest != xxhash.xxh3_64_intdigest(frame[:_UNSIGNED]) & _LOW_32_BITS:
            raise WireError("checksum")
        if not 1 <= kind <= MOST_KIND:
            raise WireError("kind")
        return cls(
            kind, run_id, sender, receiver, round, phase, part, layout, seq, ack, length, incarnation, knows,
            body_digest,
        )  # fmt: skip


def body_bytes(header: bytes) -> int:
    """The size of the body behind a packed header, of which nothing is checked."""
    if len(header) < HEADER_BYTES or header[KIND_AT] == NOTICE:
        return REFERENCE.size
    return int(_LENGTH.unpack_from(header, _LENGTH_AT)[0])


def digest(body: bytes | memoryview) -> int:
    """A 32-bit digest of a body, or of a header, whose checksum covers its body so; 0 for an empty one."""
    return xxhash.xxh3_64_intdigest(body) & _LOW_32_BITS if len(body) else 0


class SharedSegment(msgspec.Struct, frozen=True):
    """Where to open one node's shared memory: file descriptor `fd` of process `pid`."""

    rank: int
    pid: int
    fd: int
    size: int


class Hello(msgspec.Struct, frozen=True):
    """The ranks and segments of a process."""

    ranks: list[int]
    segments: list[SharedSegment]


def unpack(body: bytes, kind: Any, reason: str) -> Any:
    """What the body of a control message says, of type `kind`; raises WireError with that reason."""
    if len(body) > MOST_CONTROL_BYTES:
        raise WireError("control length")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNDECODABLE as error:
        raise WireError(reason) from error
