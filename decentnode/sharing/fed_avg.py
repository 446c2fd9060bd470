"""The server averages what its clients learned."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import PositiveFloat
from decentnode.sharing.blocks.server import ServerSharing


@SHARINGS.register("fed_avg")
@dataclass
class FedAvg(ServerSharing):
    """Averages the clients' models at a server (McMahan et al., AISTATS 2017, Alg. 1).

    x <- x + eta sum_i p_i C(y_i - x),   y_i the model of client i after its local steps

    p_i = n_i / sum of all n_j that arrived, n_i the samples of i, or equal. Without transforms and with eta 1
    this is sum_i p_i y_i. Clients send differences, so every transform may be used. The optimizers of the
    clients keep their own state.
    """

    eta: PositiveFloat = 1.0

    def signal(self, vector: Tensor, view: View) -> Tensor:
        return torch.sub(vector, self._x)

    def step(self, u: Tensor, parts: Mapping[int, Tensor], view: View) -> None:
        self._x.add_(u, alpha=self.eta)
