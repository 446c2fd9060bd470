"""How the local steps of all nodes depend on each other: the plug-ins of `training.name`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from decentnode.core.byte_counters import ByteCounters
from decentnode.core.registry import TRAININGS
from decentnode.core.vector import Vector
from decentnode.datasets.base import Samples
from decentnode.errors import Defect
from decentnode.training.minibatches import Shard
from decentnode.training.reducer import Reducer


@dataclass(frozen=True)
class SyncContext:
    """The parts of its node and of the run that a gradient sync may use."""

    rank: int
    vector: Vector
    counters: ByteCounters
    """The byte counters of the node; synchronized gradients count as sent and received."""
    mark: Callable[[int, bool], None]
    """Marks in the heartbeat of the node, by round, that it waits for others (true) or trains (false)."""
    directory: Any
    """The host processes of the run (`communication.base.ProcessDirectory`)."""
    run_id: int
    start_deadline: float
    """Timeout of the rendezvous of all nodes, in seconds."""
    deadline: float
    """Timeout for a silent node, in seconds."""


class GradientSync(ABC):
    """How nodes exchange gradients while they train; the fields of a subclass are its YAML options."""

    one_model: ClassVar[bool] = False
    """All nodes have the same model after every step: no scheme shares it, and no node may be lost."""
    uses_compiler: ClassVar[bool] = True
    """Whether it imports torch's compiler, as torch's DistributedDataParallel does, or may do so."""
    port: int | None = None
    """The port of the rendezvous at rank 0, in a run over several machines."""

    def crosses_network(self, addresses: Sequence[str]) -> bool:
        """Whether it sends between these machines over a network that is not declared as trusted."""
        return False

    def defects(self, device: str, nodes: int) -> Iterator[Defect]:
        """Yields the reasons why a machine with so many nodes on that device cannot take part."""
        yield from ()

    @abstractmethod
    def shard(self, samples: Samples, parts: Sequence[Tensor], seed: int, rank: int) -> Shard:
        """The samples of a rank; `parts` has those of each rank by the partition. Raises BadInput."""

    @abstractmethod
    def connect(self, context: SyncContext) -> Reducer:
        """Connects to the other nodes before the first round; raises StartError."""


@TRAININGS.register("local")
@dataclass
class NoGradientSync(GradientSync):
    """Every node makes its steps alone, without gradients of others (local SGD: Stich, ICLR 2019)."""

    uses_compiler: ClassVar[bool] = False

    def shard(self, samples: Samples, parts: Sequence[Tensor], seed: int, rank: int) -> Shard:
        return Shard(samples, parts[rank], seed, rank=rank)

    def connect(self, context: SyncContext) -> Reducer:
        return Reducer()
