"""Inner product manipulation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.graph.base import View
from decentnode.options import PositiveFloat


@ATTACKS.register("ipm", "inner_product_manipulation", "foe")
@dataclass(kw_only=True)
class InnerProduct(Attack):
    """Sends the negative mean of the neighbors (inner product manipulation: Xie et al., UAI 2019, eq. 2).

    y = -epsilon mean of the models that came from honest neighbors in the round before
    """

    knowledge = "the models of its neighbors in the round before"
    needs_models = True

    epsilon: PositiveFloat = 0.5

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        honest = [x for j, x in seen.items() if j not in self.ranks]
        return torch.stack(honest).mean(0) * -self.epsilon if honest else -self.epsilon * model
