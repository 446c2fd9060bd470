"""The centralized baseline: every round ends with the exact mean of all models."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from decentnode.graph.base import View
from decentnode.registry import SHARINGS
from decentnode.sharing.base import Incoming
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.weighted_sum import weighted_sum


@SHARINGS.register("all_reduce")
@dataclass
class AllReduce(Gossip):
    """Averages all models exactly, over a complete graph (as PyTorch DDP does: Li et al., VLDB 2020).

    x_i <- (1/m) sum_j y_j over the m nodes that were heard, whatever the graph's weights say
    """

    needs_complete_graph: ClassVar[bool] = True

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        heard = sorted([view.rank, *incoming])
        share = 1.0 / len(heard)
        weighted_sum(
            ((share, vector if j == view.rank else self._decode(incoming[j], j, view)) for j in heard), out
        )
