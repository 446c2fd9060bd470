"""A little is enough."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.graph.base import View
from decentnode.options import PositiveFloat


@ATTACKS.register("alie", "a_little_is_enough", "little", "lie")
@dataclass(kw_only=True)
class Alie(Attack):
    """Hides in the spread of the others (A little is enough: Baruch et al., NeurIPS 2019, Alg. 3).

    y = mean - z std over the models of the neighbors in the round before, coordinate by coordinate
    z = Phi^-1((n - m - s) / (n - m)),   s = floor(n/2 + 1) - m

    n is the number of nodes around a victim, here deg + 1, and m that of adversaries, or of all `ranks`.
    """

    knowledge = "the models of its neighbors in the round before"
    needs_models = True

    z: PositiveFloat | None = None
    """Null: from n and m."""

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        honest = [x for j, x in seen.items() if j not in self.ranks]
        if len(honest) < 2:
            return model
        stacked = torch.stack(honest)
        z = self.z if self.z is not None else most_hidden(view.degree + 1, 1 + len(seen) - len(honest))
        return stacked.mean(0) - z * stacked.std(0)


def most_hidden(nodes: int, adversaries: int) -> float:
    """The deviation z at which the lies are nearer to the mean than enough honest models (eq. 2)."""
    honest = nodes - adversaries
    needed = nodes // 2 + 1 - adversaries
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0
