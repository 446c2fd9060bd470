"""Messages between processes about their process group: the bodies of GROUP messages."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A non-negative integer, for example a rank."""


class Capabilities(msgspec.Struct, frozen=True):
    """What a process offers for a group."""

    takes_part: bool
    """Whether its edges may go through the group."""
    gpu: str
    """The GPU of its node, the same text for the same GPU; empty: none."""
    nccl: str
    """NCCL version of torch; empty: none."""
    gloo: bool
    """Whether torch has gloo."""


class JoinRequest(msgspec.Struct, frozen=True, tag="join"):
    """Requests to take part in the group, and the plan."""

    facts: Capabilities


class GroupPlan(msgspec.Struct, frozen=True, tag="plan"):
    """The plan of the group; the lowest rank sends it to all."""

    members: list[Count]
    backend: str
    reason: str
    """Why this backend."""
    address: str = ""
    port: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    """Where the members find the store."""
    error: str = ""
    """Why the group cannot be made, which ends the run; empty: it can."""


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The group has ended: ZeroMQ carries all payloads from here on."""

    reason: str


class Size(msgspec.Struct, frozen=True, tag="size"):
    """That many bytes of that layout follow through the group, in the exchange of the header."""

    length: Count
    layout: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The sender has read everything that the group brought up to the exchange of the header."""


Note = JoinRequest | GroupPlan | Closed | Size | Done
