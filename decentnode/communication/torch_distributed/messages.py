"""What processes say to each other about their process group: the bodies of GROUP messages."""

from typing import Annotated

import msgspec

from decentnode.communication.wire import MOST_CONTROL_BYTES, WireError
from decentnode.errors import UNDECODABLE

Count = Annotated[int, msgspec.Meta(ge=0)]
"""Also a rank."""


class Capabilities(msgspec.Struct, frozen=True):
    """What a process has that a group could use."""

    takes_part: bool
    """Whether its edges may go through the group at all."""
    gpu: str
    """Which GPU its node lives on, the same text for the same one; empty: on none."""
    nccl: str
    """The version of NCCL that torch has; empty: none."""
    gloo: bool
    """Whether torch has gloo."""


class JoinRequest(msgspec.Struct, frozen=True, tag="join"):
    """I would take part in the group, and wait for the plan."""

    facts: Capabilities


class GroupPlan(msgspec.Struct, frozen=True, tag="plan"):
    """This is the group: the lowest rank draws it up for all."""

    members: list[Count]
    backend: str
    reason: str
    """Why this backend, in words."""
    address: str = ""
    port: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    """Where the members find each other."""
    error: str = ""
    """Why there is none, which ends the run; empty: there is."""


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """There is no group any more: ZeroMQ carries everything from here on."""

    reason: str


class Size(msgspec.Struct, frozen=True, tag="size"):
    """So many bytes of that layout follow through the group, in the exchange that the header names."""

    length: Count
    layout: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """I have read everything that the group brought up to the exchange that the header names."""


Note = JoinRequest | GroupPlan | Closed | Size | Done


def pack(note: Note) -> bytes:
    """The body of a GROUP message."""
    return msgspec.msgpack.encode(note)


def unpack(body: bytes) -> Note:
    """The inverse of `pack`; raises WireError."""
    if len(body) > MOST_CONTROL_BYTES:
        raise WireError("control length")
    try:
        found: Note = msgspec.msgpack.decode(body, type=Note)
        return found
    except UNDECODABLE as error:
        raise WireError("group note") from error
