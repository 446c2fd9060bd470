"""Sign flip."""

from dataclasses import dataclass

from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.graph.base import View
from decentnode.options import PositiveFloat


@ATTACKS.register("sign_flip", "sign_flipping")
@dataclass(kw_only=True)
class SignFlip(Attack):
    """Sends -scale y_i (Li et al., AAAI 2019, RSA, section "Experiments")."""

    scale: PositiveFloat = 1.0

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        return model * -self.scale
