"""Messages between processes about their process group: the bodies of GROUP messages.

Threads: any; these are values.
"""

from typing import Annotated

import msgspec


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The group has ended: ZeroMQ carries all payloads from here on."""

    reason: str
    fails_start: bool = False
    """Whether it could not be made, which ends the run."""


class Size(msgspec.Struct, frozen=True, tag="size"):
    """Announces that so many bytes of a layout follow through the group, in the exchange of the header."""

    length: Annotated[int, msgspec.Meta(ge=0)]
    layout: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The sender has read everything that the group brought up to the exchange of the header."""


GroupControl = Closed | Size | Done
