"""Mimic."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.errors import Defect
from decentnode.graph.base import Graph, View
from decentnode.options import NonNegative
from decentnode.sharing.base import Sharing


@ATTACKS.register("mimic")
@dataclass(kw_only=True)
class Mimic(Attack):
    """Repeats the model of one honest node, which so counts for more (Karimireddy et al., ICLR 2022).

    It is the model of `victim` in the round before, or of the lowest honest rank among the neighbors.
    """

    knowledge = "the models of its neighbors in the round before"
    needs_models = True

    victim: NonNegative | None = None

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        yield from super().defects(graph, sharing)
        if self.victim is not None and (self.victim >= graph.num_nodes or self.victim in self.ranks):
            defect = "is an adversary itself" if self.victim in self.ranks else "does not exist"
            yield Defect(
                ("victim",), f"rank {self.victim} {defect}; name an honest one of 0..{graph.num_nodes - 1}"
            )

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        honest = sorted(j for j in seen if j not in self.ranks)
        chosen = self.victim if self.victim in seen else next(iter(honest), None)
        return model if chosen is None else seen[chosen]
