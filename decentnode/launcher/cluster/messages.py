"""What the launchers of different machines tell each other, by way of machine 0."""

from typing import Annotated, TypeGuard

import msgspec

from decentnode.communication.launcher_link.handshakes import Introduction
from decentnode.communication.launcher_link.reports import Report
from decentnode.errors import BadInput, StartError

Round = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)]
"""-1: none."""
INCARNATIONS = range(1 << 31)
"""How often a run may have been started again."""
Incarnation = Annotated[int, msgspec.Meta(ge=INCARNATIONS.start, lt=INCARNATIONS.stop)]


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A machine has its nodes ready, and what it is about to run."""

    machine: int
    version: str
    digest: str
    dataset: str
    code: dict[str, str] = {}
    """A hash of each source file of plug-ins from outside the package."""
    introductions: dict[int, Introduction] = {}
    """What its nodes say of themselves, by rank."""
    signature: bytes = b""
    """Of the introductions, where there are keys."""
    run_id: str = ""
    """Of the run that is to go on, 16 hexadecimal digits; empty for a new one."""
    incarnation: Incarnation = 0
    """How often that run was started again before."""
    offers: dict[int, list[Round]] = {}
    """After which rounds its nodes can go on, by rank."""
    starts: list[Round] = []
    """After which rounds that run went on, each time, as far as this machine took part."""


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Machine 0 knows you; these machines have not come yet."""

    missing: list[int]


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Everybody is here."""

    run_id: int
    introductions: dict[int, Introduction] = {}
    """Of all nodes, by rank."""
    incarnation: Incarnation = 0
    """How often the run was started again."""
    round: Round = -1
    """The round after which it goes on; -1: from the start."""
    signatures: dict[int, bytes] = {}
    """By machine, of its nodes' introductions."""
    absent: list[int] = []
    """Machines that are not here."""
    late: int = 0
    """For the how manieth time this machine comes after the start; 0: it is here from the start."""
    starts: list[Round] = []
    """After which rounds the run went on, each time, this one included."""

    @property
    def message_id(self) -> int:
        """What the nodes' messages carry: another one each time, as nodes of an earlier start may live on."""
        return self.run_id + self.incarnation


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """There will be no run, or none with this machine, and why."""

    reason: str
    is_bad_input: bool = False
    """Whether somebody has to correct a file first."""

    def error(self, teller: str = "") -> BadInput | StartError:
        """What ends the command of who is refused."""
        kind = BadInput if self.is_bad_input else StartError
        return kind(f"{teller}{self.reason}")


class RelayedReports(msgspec.Struct, frozen=True, tag="relay"):
    """Reports of a machine's nodes; an empty one says that its launcher is alive."""

    machine: int
    reports: list[Report]


class PartialSum(msgspec.Struct, frozen=True, tag="sum"):
    """The sum of a machine's vectors after `round`, float64, over `count` nodes; of none it is empty."""

    machine: int
    round: int
    count: int
    content: bytes


class MeanVector(msgspec.Struct, frozen=True, tag="mean"):
    """The mean of all vectors after `round`, float64."""

    round: int
    content: bytes


class VectorAck(msgspec.Struct, frozen=True, tag="arrived"):
    """A machine has got the vector of this round that was sent to it."""

    machine: int
    round: Round
    digest: int
    """Of the vector: who has not read it cannot say so."""


class PartialDistance(msgspec.Struct, frozen=True, tag="distance"):
    """The sum of a machine's distances to the mean vector after `round`."""

    machine: int
    round: int
    count: int
    distance: float


class StopRequest(msgspec.Struct, frozen=True, tag="stop-asked"):
    """A machine's launcher was asked to stop, by this signal."""

    machine: int
    signal: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """No node begins another round before the last one is named."""

    signal: int


class HighestRound(msgspec.Struct, frozen=True, tag="announced"):
    """The highest round that a machine's nodes have announced."""

    machine: int
    round: Round


class LastRound(msgspec.Struct, frozen=True, tag="last"):
    """All nodes end after this round."""

    round: Round


class CheckpointsCommitted(msgspec.Struct, frozen=True, tag="settled"):
    """All ranks that are still there have a checkpoint of this round or of a later one."""

    round: Round
    kept: Round
    """The newest round but one that all of them have; those from there on stay."""


Note = (
    Join | Wait | Start | Refuse | RelayedReports | PartialSum | MeanVector | VectorAck | PartialDistance
    | StopRequest | Pause | HighestRound | LastRound | CheckpointsCommitted
)  # fmt: skip


def has_vector(note: Note) -> TypeGuard[PartialSum | MeanVector]:
    """Whether it is as large as a model in float64."""
    return isinstance(note, PartialSum | MeanVector) and bool(note.content)


DECODER = msgspec.msgpack.Decoder(Note)
