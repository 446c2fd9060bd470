"""How the local steps of all nodes belong together: the plug-ins of `training.name`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from decentnode.core.byte_counters import ByteCounters
from decentnode.core.registry import TRAININGS
from decentnode.core.vector import Vector
from decentnode.datasets.base import Samples
from decentnode.training.reducer import Reducer
from decentnode.training.training import Shard


@dataclass(frozen=True)
class SyncContext:
    """What a node and its run are to a gradient sync."""

    rank: int
    vector: Vector
    counters: ByteCounters
    """Of the node; what is synchronized counts as sent and received."""
    mark: Callable[[int, bool], None]
    """Says in the node's heartbeat, by round, that it waits for others (true) or trains again."""
    place: Any
    """Where the process stands among all of the run (`communication.base.Place`)."""
    run_id: int
    start_deadline: float
    """Seconds that the nodes have to meet."""
    deadline: float
    """Seconds that a silent node is waited for."""


class GradientSync(ABC):
    """What the nodes have to do with each other while they train; the fields are options in YAML."""

    one_model: ClassVar[bool] = False
    """All nodes have the same model after every step: nothing is left to share, and none may be missing."""
    port: int | None = None
    """Where rank 0 waits for the others, in a run over several machines."""

    def crosses_network(self, addresses: Sequence[str]) -> bool:
        """Whether it sends between these machines where others may be, which nobody has said to be fine."""
        return False

    def defect(self, device: str, nodes: int) -> str:
        """Why a machine with so many nodes on such a device cannot take part; empty when it can."""
        return ""

    @abstractmethod
    def shard(self, samples: Samples, parts: Sequence[Tensor], seed: int, rank: int) -> Shard:
        """What a rank trains on; `parts` are the samples of each rank by the partition. Raises BadInput."""

    @abstractmethod
    def connect(self, context: SyncContext) -> Reducer:
        """Meets the other nodes, once all are ready; raises StartError."""


@TRAININGS.register("local")
@dataclass
class NoGradientSync(GradientSync):
    """Every node steps alone and the sharing scheme does the rest (local SGD: Stich, ICLR 2019)."""

    def shard(self, samples: Samples, parts: Sequence[Tensor], seed: int, rank: int) -> Shard:
        return Shard(samples, parts[rank], seed, rank)

    def connect(self, context: SyncContext) -> Reducer:
        return Reducer()
