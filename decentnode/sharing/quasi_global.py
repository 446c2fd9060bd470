"""Momentum from the movement of the mixed models, not from a node's own gradients."""

from dataclasses import dataclass

from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.core.vector import AdjustGradient
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.blocks.momentum import Decay, MomentumGossip
from decentnode.sharing.blocks.stability import refuse_growth


@SHARINGS.register("quasi_global", "qg_dsgdm", "quasi_global_momentum")
@dataclass
class QuasiGlobal(MomentumGossip):
    """Momentum that follows how the mixed models move (QG-DSGDm: Lin et al., ICML 2021, Alg. 1).

    l = beta m + g   (Nesterov: g + beta l),   x+ = W (x - eta l),   m+ = mu m + (1 - mu) (x - x+) / eta

    In a round of H local steps all use the same m, and x - x+ is divided by H eta. In a round without a step,
    or with eta = 0, m stays as it is. Convergence is faster; the limit and its bias are those of gossip.

    Combinations in which models drift apart, because mu is too small for beta and the graph, are refused.

    State: m, d floats.
    """

    mu: Decay = 0.9
    nesterov: bool = False

    def check(self, graph: WeightedGraph) -> None:
        remedy = f"use a mu above {self.mu:g}, or a beta below {self.beta:g}"
        beta = self.beta**2 if self.nesterov else self.beta
        refuse_growth(self, graph, lambda mix, x, u: mix(x - beta * u), mu=self.mu, remedy=remedy)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._with_momentum

    def _with_momentum(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        self._note(vector)
        if self.nesterov:
            gradient.mul_(1 + self.beta).add_(self._m, alpha=self.beta**2)
        else:
            gradient.add_(self._m, alpha=self.beta)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        eta = self._steps * view.learning_rate
        moved = self._moved(vector, mixed)
        self._guard.check(moved, self, view)
        if eta:
            self._m.mul_(self.mu).add_(moved, alpha=(1 - self.mu) / eta)
