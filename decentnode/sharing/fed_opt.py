"""The server makes steps of an adaptive optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import PositiveFloat
from decentnode.sharing.blocks.momentum import Decay
from decentnode.sharing.fed_avg import FedAvg


@SHARINGS.register("fed_adam")
@dataclass
class FedAdam(FedAvg):
    """FedAvg whose server makes steps of Adam or Yogi, u their gradient (Reddi et al., ICLR 2021, Alg. 2).

    m <- beta1 m + (1 - beta1) u,   x <- x + eta m / (sqrt(v) + tau)
    adam: v <- beta2 v + (1 - beta2) u^2;   yogi: v <- v - (1 - beta2) u^2 sign(v - u^2)

    m starts at 0 and v at tau^2, and nothing corrects their bias, as Adam of torch as `outer` would. With
    yogi v changes by at most (1 - beta2) u^2. tau is the adaptivity: the larger, the more the steps are those
    of FedAvg with momentum. State: x, m and v.
    """

    state: ClassVar[tuple[str, ...]] = (*FedAvg.state, "_m", "_v")

    eta: PositiveFloat = 0.1
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: PositiveFloat = 1e-3
    rule: Literal["adam", "yogi"] = "adam"

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._m = torch.zeros_like(vector)
        self._v = torch.full_like(vector, self.tau**2)

    def step(self, u: Tensor, parts: Mapping[int, Tensor], view: View) -> None:
        self._m.mul_(self.beta1).add_(u, alpha=1 - self.beta1)
        square = u.square()
        if self.rule == "adam":
            self._v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)
        else:
            self._v.addcmul_(square, torch.sign(self._v - square), value=self.beta2 - 1)
        self._x.addcdiv_(self._m, self._v.sqrt().add_(self.tau), value=self.eta)
