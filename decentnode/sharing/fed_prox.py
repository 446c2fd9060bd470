"""Clients stay near the server's model."""

from dataclasses import dataclass

from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.core.vector import AdjustGradient
from decentnode.options import NonNegativeFloat
from decentnode.sharing.fed_avg import FedAvg


@SHARINGS.register("fed_prox")
@dataclass
class FedProx(FedAvg):
    """FedAvg whose clients minimize f_i(y) + mu/2 |y - x|^2 (Li et al., MLSys 2020, Alg. 2).

    g_i(y) <- g_i(y) + mu (y - x) in every local step, x the server's model at the start of the round. Clients
    that make fewer steps than others count as they are. mu = 0 is FedAvg.
    """

    mu: NonNegativeFloat = 0.01

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._pull

    def _pull(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        gradient.add_(vector, alpha=self.mu).sub_(self._x, alpha=self.mu)
