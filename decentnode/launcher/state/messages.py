"""Messages between the launchers of different machines."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from decentnode.communication.launcher_link.handshakes import Handshake
from decentnode.communication.launcher_link.reports import Report
from decentnode.errors import BadInput, StartError
from decentnode.formats.reader import EvaluationRow
from decentnode.node.checkpoint.node_checkpoints import MOST_ADDRESS

Round = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)]
"""-1: none."""
Address = Annotated[str, msgspec.Meta(max_length=MOST_ADDRESS, pattern="^[0-9A-Za-z.:%_-]*$")]
RUN_STARTS = range(1 << 31)
"""How often a run may be started."""
Incarnation = Annotated[int, msgspec.Meta(ge=RUN_STARTS.start, lt=RUN_STARTS.stop)]


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A machine's nodes are ready; what it is about to run."""

    machine: int
    version: str
    digest: str
    dataset: str
    job: str = ""
    """The job whose machines these are; empty where the configuration lists them."""
    code: dict[str, str] = {}
    """A hash of each source file of plug-ins from outside the package, and the versions of their packages."""
    package: str = ""
    """The hash of the package's own sources in `run.json`."""
    files: dict[str, str] = {}
    """A hash of each source file of the package."""
    torch: str = ""
    """The version of torch."""
    settings: dict[str, str] = {}
    """What `digest` is the hash of: values as text, by key."""
    handshakes: dict[int, Handshake] = {}
    """The handshakes of its nodes, by rank."""
    signature: bytes = b""
    """Signature of the handshakes, if there are keys."""
    run_id: str = ""
    """The run to resume, 16 hexadecimal digits; empty for a new one."""
    incarnation: Incarnation = 0
    """How often that run was resumed before."""
    offers: dict[int, list[Round]] = {}
    """By rank the rounds of its valid checkpoints."""
    starts: list[Round] = []
    """The rounds after which that run was started, as far as this machine took part."""
    or_resume: bool = False
    """Whether the same command starts the run and resumes it, so that one without it takes that of others."""
    address: Address = ""
    """Where the others reach the machine, if their configuration does not say it."""


class PlaceRequest(msgspec.Struct, frozen=True, tag="ask"):
    """A machine that has not read its data looks for a run in progress, or for a place in a run."""

    machine: int
    """The index of a machine that has none: the number of machines."""
    job: str
    asker: str = ""
    """Its host and directory, which another start of it has, too."""
    wanted: int = -1
    """The index that it had before; -1: any."""


class PlaceOffer(msgspec.Struct, frozen=True, tag="place"):
    """The answer: the index of the machine that asks, and where the others are."""

    index: int = -1
    """-1: another machine answers, `ask`, or none, for the `reason`."""
    addresses: dict[int, Address] = {}
    ask: int = -1
    reason: str = ""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A machine has ended before all have met."""

    machine: int
    reason: str
    is_bad_input: bool = False
    """Whether the user must correct a file first."""
    job: str = ""
    """The job, as in `Join`."""


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """The Join is here; the start waits for these machines, or for the end of the run in progress."""

    missing: list[int]


class Presence(msgspec.Struct, frozen=True):
    """When a machine came into the run."""

    joins: int = 0
    """How often it has joined after the start."""
    order: int = 0
    """The number of its last one among the late joins of all machines; 0: it is here from the start."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """All machines are here, or a machine may join the run in progress."""

    run_id: int
    handshakes: dict[int, Handshake] = {}
    """The handshakes of all nodes, by rank."""
    incarnation: Incarnation = 0
    """How often the run was resumed."""
    round: Round = -1
    """The round after which it continues; -1: from the start."""
    signatures: dict[int, bytes] = {}
    """Signatures of the handshakes, by machine."""
    absent: list[int] = []
    """Machines that are not here."""
    late: int = 0
    """The number of this machine's late joins; 0: it is here from the start."""
    presences: dict[int, Presence] = {}
    """The machines that have come, this one included."""
    addresses: dict[int, Address] = {}
    """Where machines are reached, if the configuration does not say it."""
    starts: list[Round] = []
    """The rounds after which the run was started, this one included."""
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] = 0.0
    """Seconds since the start of the run, for a machine that joins late: its own clock cannot tell."""
    machine: int = 0
    """Which machine starts this one: machine 0, or the coordinator of the run in progress."""


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """The run, or the join of this machine, is refused."""

    reason: str
    is_bad_input: bool = False
    """Whether the user must correct a file first."""
    machine: int = 0
    """Which machine refuses."""

    def error(self, teller: str = "") -> BadInput | StartError:
        """Returns the error that ends the command of the refused machine."""
        kind = BadInput if self.is_bad_input else StartError
        return kind(f"{teller}{self.reason}")


class Arrived(msgspec.Struct, frozen=True, tag="arrived-late"):
    """A machine has received its start late, and its nodes begin as restarted ones."""

    machine: int
    presence: Presence
    address: Address = ""
    """Where the others reach the machine, if their configuration does not say it."""


class EvaluationRows(msgspec.Struct, frozen=True, tag="rows"):
    """Evaluations of all nodes, as the coordinator has written them."""

    machine: int
    rows: list[EvaluationRow]
    is_last: bool = False
    """Whether no row follows: the run has ended."""


class RelayedReports(msgspec.Struct, frozen=True, tag="relay"):
    """Reports of a machine's nodes; without reports it only shows that its launcher runs."""

    machine: int
    reports: list[Report]


class PartialSum(msgspec.Struct, frozen=True, tag="sum"):
    """The sum of a machine's vectors after `round`, float64, over `count` nodes; empty for none.

    Any but an empty one travels in pieces.
    """

    machine: int
    round: int
    count: int
    content: bytes


class VectorPiece(msgspec.Struct, frozen=True, tag="piece"):
    """A piece of a vector after `round`: of a machine's sum, or of the mean."""

    machine: int
    round: Round
    count: int
    """How many vectors the sum has; 0 for the mean."""
    start: int
    """The place of its first byte in the vector."""
    content: bytes


class VectorAck(msgspec.Struct, frozen=True, tag="arrived"):
    """A machine has received a piece of the vector of this round."""

    machine: int
    round: Round
    digest: int
    """Digest of the piece: proof that it was received."""


class PartialDistance(msgspec.Struct, frozen=True, tag="distance"):
    """The sum of a machine's distances to the mean vector after `round`."""

    machine: int
    round: int
    count: int
    distance: float


@dataclass(frozen=True)
class MeanVector:
    """The mean of all vectors after `round`, float64; it travels in pieces."""

    round: int
    content: bytes


Contribution = PartialSum | MeanVector | PartialDistance
"""What the observers of two machines send each other."""


class StopRequest(msgspec.Struct, frozen=True, tag="stop-asked"):
    """A machine's launcher received this signal, or was asked to pause; 0: for the target of the run."""

    machine: int
    signal: int
    round: Round
    """The highest round that its nodes have announced."""


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """No node starts another round before the last one is known."""

    signal: int
    last: Round | None = None
    """All nodes end after this round; None: it is not known yet."""
    reached: Round | None = None
    """The round whose evaluation has reached the target: nodes that end have finished, and `signal` is 0."""
    machine: int = 0


class CheckpointsCommitted(msgspec.Struct, frozen=True, tag="settled"):
    """All ranks that take part have a checkpoint of this round or of a later one."""

    round: Round
    kept: Round
    """The second newest round that all of them have; checkpoints from there on stay."""
    whole: Round = -1
    """The newest round that all ranks have, lost ones included; its checkpoints stay, too."""
    machine: int = 0


LauncherMessage = (
    PlaceRequest | PlaceOffer | Join | Ended | Wait | Start | Refuse | Arrived | EvaluationRows
    | RelayedReports | PartialSum | PartialDistance | VectorPiece | VectorAck | StopRequest | Pause
    | CheckpointsCommitted
)  # fmt: skip

ClusterMessage = LauncherMessage | MeanVector
"""What the parts of a launcher receive: a message, or a vector whose pieces are all here."""
DECODER = msgspec.msgpack.Decoder(LauncherMessage)
