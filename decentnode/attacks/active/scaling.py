"""A model that counts for more than its weight."""

from dataclasses import dataclass

from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.graph.base import View
from decentnode.options import PositiveFloat


@ATTACKS.register("scaling", "model_replacement", "boosting")
@dataclass(kw_only=True)
class Scaling(Attack):
    """Sends scale y_i, as a node with scale times its mixing weight (Bagdasaryan et al., AISTATS 2020).

    Receivers mix w_ji scale y_i: a wrong claim about the own weight.
    """

    scale: PositiveFloat = 10.0

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        return model * self.scale
