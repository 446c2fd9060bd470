"""What the launchers of different machines tell each other, by way of machine 0."""

import msgspec

from decentnode.introductions import Introduction
from decentnode.reports import Report


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A machine has its nodes ready, and what it is about to run."""

    machine: int
    version: str
    digest: str
    dataset: str
    introductions: dict[int, Introduction] = {}
    """What its nodes say of themselves, by rank."""


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Machine 0 knows you; these machines have not come yet."""

    missing: list[int]


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Everybody is here."""

    run_id: int
    introductions: dict[int, Introduction] = {}
    """Of all nodes, by rank."""


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """There will be no run, and why."""

    reason: str


class Relay(msgspec.Struct, frozen=True, tag="relay"):
    """Reports of a machine's nodes; an empty one says that its launcher is alive."""

    machine: int
    reports: list[Report]


class PartialSum(msgspec.Struct, frozen=True, tag="sum"):
    """The sum of a machine's vectors after `round`, float64, over `count` nodes."""

    machine: int
    round: int
    count: int
    content: bytes


class MeanVector(msgspec.Struct, frozen=True, tag="mean"):
    """The mean of all vectors after `round`, float64."""

    round: int
    content: bytes


class PartialDistance(msgspec.Struct, frozen=True, tag="distance"):
    """The sum of a machine's distances to the mean vector after `round`."""

    machine: int
    round: int
    count: int
    distance: float


Note = Join | Wait | Start | Refuse | Relay | PartialSum | MeanVector | PartialDistance
DECODER = msgspec.msgpack.Decoder(Note)
