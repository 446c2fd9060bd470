"""Dissensus."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.errors import Defect
from decentnode.graph.base import Graph, View
from decentnode.options import PositiveFloat
from decentnode.sharing.base import Sharing


@ATTACKS.register("dissensus")
@dataclass(kw_only=True)
class Dissensus(Attack):
    """Drives neighbors apart (Dissensus: He et al., 2022, ClippedGossip, eq. 5).

    y -> i  =  y_i - epsilon sum_j w_ij (y_j - y_i) / w_ib,   j over the honest neighbors of i that the
    adversary b knows, with weights of the same size

    With epsilon = 1 and full knowledge i does not move at all. b uses the models of the round before.
    """

    knowledge = "the models of its neighbors in the round before"
    needs_models = True
    per_target = True

    epsilon: PositiveFloat = 1.0

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        # Adversaries tell each other the truth: their own models would overflow otherwise.
        if target is None or target not in seen or target in self.ranks:
            return model
        victim = seen[target]
        others = [x for j, x in seen.items() if j != target and j not in self.ranks]
        if not others:
            return victim
        return victim - self.epsilon * (torch.stack(others) - victim).sum(0)

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        yield from super().defects(graph, sharing)
        if graph.period == 1 and any(
            len(graph.targets(rank, 0)) < 2 for rank in self.ranks if rank < graph.num_nodes
        ):
            yield Defect((), "dissensus needs two neighbors of an adversary, which it drives apart; use echo")
