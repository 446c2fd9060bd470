"""Workers compute gradients, and the server makes the steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.core.vector import AdjustGradient
from decentnode.graph.base import View
from decentnode.options import PositiveFloat
from decentnode.sharing.base import Setup
from decentnode.sharing.blocks.momentum import Decay
from decentnode.sharing.blocks.server import ServerSharing


@SHARINGS.register("parameter_server", "fed_sgd")
@dataclass
class ParameterServer(ServerSharing):
    """Sends gradients up and the model down (parameter server: Li et al., OSDI 2014, Alg. 1).

    u_i = mean of the K gradients of i at x,   g = sum_i p_i C(u_i)
    sgd: m <- momentum m + g, x <- x - eta m;   adam: as Kingma and Ba, 2015

    eta is the learning rate of the server's own schedule. Workers make no steps: they compute their gradients
    on K minibatches (`steps_per_round`) at the same x. State: x, the moments.
    """

    requirements = replace(ServerSharing.requirements, plain_sgd=True)
    state: ClassVar[tuple[str, ...]] = (*ServerSharing.state, "_m", "_v", "_t")

    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: Decay = 0.0
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: PositiveFloat = 1e-8

    _t: int = field(default=0, init=False, repr=False)

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._steps = 0
        self._sum: Tensor | None = None

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._m, self._v = torch.zeros_like(vector), torch.zeros_like(vector)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._collect

    def _collect(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        self._sum = gradient.clone() if self._sum is None else self._sum.add_(gradient)
        self._steps += 1
        gradient.zero_()

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        super().accept(vector, view, mixed)
        self._sum, self._steps = None, 0

    def signal(self, vector: Tensor, view: View) -> Tensor:
        return torch.zeros_like(vector) if self._sum is None else self._sum / self._steps

    def step(self, u: Tensor, parts: Mapping[int, Tensor], view: View) -> None:
        if self.optimizer == "sgd":
            self._m.mul_(self.momentum).add_(u)
            self._x.add_(self._m, alpha=-view.learning_rate)
            return
        self._t += 1
        self._m.mul_(self.beta1).add_(u, alpha=1 - self.beta1)
        self._v.mul_(self.beta2).addcmul_(u, u, value=1 - self.beta2)
        scale = (self._v / (1 - self.beta2**self._t)).sqrt_().add_(self.epsilon)
        self._x.addcdiv_(self._m, scale, value=-view.learning_rate / (1 - self.beta1**self._t))
