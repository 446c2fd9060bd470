"""Momentum from how the mixed models move, not from a node's own gradients."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from decentnode.graph.base import View
from decentnode.registry import SHARINGS
from decentnode.sharing.base import AdjustGradient
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.local_steps import LocalSteps
from decentnode.transforms.chain import Chain
from decentnode.vector import ParameterLayout

Decay = Annotated[float, Ge(0), Lt(1)]


@SHARINGS.register("quasi_global")
@dataclass
class QuasiGlobal(Gossip):
    """Momentum that follows how the mixed models move (QG-DSGDm: Lin et al., ICML 2021, Alg. 1).

    l = beta m + g   (Nesterov: g + beta l),   x+ = W (x - eta l),   m+ = mu m + (1 - mu) (x - x+) / eta

    In a round of H local steps all use the same m, and x - x+ is divided by H eta. In a round without a step,
    or with eta = 0, m stays as it is. It shortens the way; the limit is that of gossip, bias and all.

    State: m, d floats.
    """

    needs_plain_sgd: ClassVar = True
    overlaps: ClassVar = False
    state: ClassVar = ("_m",)

    beta: Decay = 0.9
    mu: Decay = 0.9
    nesterov: bool = False

    _m: Tensor = field(init=False, repr=False)

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        super().bind(layout, num_nodes, chain, seed)
        self._steps = LocalSteps(layout)

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._m = torch.zeros_like(vector)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._with_momentum

    def _with_momentum(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        self._steps.note(vector)
        if self.nesterov:
            gradient.mul_(1 + self.beta).add_(self._m, alpha=self.beta**2)
        else:
            gradient.add_(self._m, alpha=self.beta)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        steps, moved = self._steps.end(vector, mixed)
        eta = steps * view.learning_rate
        if eta:
            self._m.mul_(self.mu).add_(moved, alpha=(1 - self.mu) / eta)
