"""Gossip whose outer step has momentum on what each node proposes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import PositiveFloat
from decentnode.sharing.base import Incoming
from decentnode.sharing.gossip import Gossip
from decentnode.transforms.chain import Chain


@SHARINGS.register("gasloc")
@dataclass
class Gasloc(Gossip):
    """Accelerated gossip of proposals (GASLoC: Cagnasso et al., 2026, arXiv 2606.11081; by a summary of it).

    y_i = phi_i + eta (x_i - phi_i),   phi_i <- sum_j w_ij y_j + gamma (y_i - y_i_before)

    phi_i is the model before the local steps, x_i the one after them, and y_i_before the proposal of the
    round before, at first phi_i. The mean of all models makes the steps of SGD with Nesterov momentum gamma
    and rate eta on the mean pseudo-gradient phi - x. With gamma 0 and eta 1 it is gossip. State: phi and y.
    """

    promises = replace(Gossip.promises, overlaps=False, takes_correction=False, about_mean="")
    state: ClassVar[tuple[str, ...]] = ("_phi", "_before")

    eta: PositiveFloat = 0.7
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """gamma."""

    def preserves_mean(self, chain: Chain) -> bool:
        return False

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._phi, self._before = vector.clone(), vector.clone()

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        # Without rounding where eta is 1: then the proposal is the model itself.
        self._y = vector.clone() if self.eta == 1 else torch.lerp(self._phi, vector, self.eta)
        return super().outgoing(self._y, view)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        super().mix(self._y, incoming, view, out)
        if self.momentum and not view.rests:
            out.add_(self._y, alpha=self.momentum).sub_(self._before, alpha=self.momentum)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        super().accept(vector, view, mixed)
        if not view.rests:
            self._phi.copy_(mixed)
            self._before = self._y
