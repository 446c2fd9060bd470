"""The centralized baseline: every round ends with the exact mean of all models."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.sharing.base import Requirements
from decentnode.sharing.gossip import Gossip


@SHARINGS.register("all_reduce", "local_sgd", diloco="outer: {name: SGD, ...}")
@dataclass
class AllReduce(Gossip):
    """Averages all models exactly, over a complete graph (as PyTorch DDP does: Li et al., VLDB 2020).

    x_i <- (1/m) sum_j y_j over the m nodes whose models arrived, whatever the graph's weights are. So
    survivors have the mean of the survivors. If a link breaks while both ends are live, its ends average
    fewer models than the others, which changes the mean of all models; gossip keeps it.
    """

    requirements = Requirements(complete_graph=True)
    promises = replace(Gossip.promises, takes_strength=False)

    @property
    def only_averages(self) -> bool:
        return type(self) is AllReduce

    def weights(self, signals: Mapping[int, Tensor], view: View) -> dict[int, float]:
        return dict.fromkeys(sorted(signals), 1.0 / len(signals))
