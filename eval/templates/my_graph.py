"""A graph: which nodes exchange in which round."""

from dataclasses import dataclass

from decentnode.graph import PeriodicGraph
from decentnode.options import Positive


@dataclass(frozen=True)
class MyGraph(PeriodicGraph):
    """A ring in one round, and the node across in the next."""

    nodes: Positive = 8
    """An even number; the fields are the options in YAML."""

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @property
    def period(self) -> int:
        return 2

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        """The nodes that `rank` sends to; here those that it also hears."""
        steps = (-1, 1) if round % 2 == 0 else (self.nodes // 2,)
        return tuple(sorted({(rank + step) % self.nodes for step in steps} - {rank}))
