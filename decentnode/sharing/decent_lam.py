"""Momentum that does not make heterogeneity's bias larger."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.graph.base import View
from decentnode.registry import SHARINGS
from decentnode.sharing.base import AdjustGradient, Incoming
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.local_steps import LocalSteps
from decentnode.sharing.quasi_global import Decay
from decentnode.transforms.chain import Chain
from decentnode.vector import ParameterLayout


@SHARINGS.register("decent_lam")
@dataclass
class DecentLam(Gossip):
    """Momentum without the bias that it adds to gossip (DecentLaM: Yuan et al., ICCV 2021, Alg. 2).

    ghat = (x - W (x - eta g)) / eta,   m+ = beta m + ghat,   x+ = x - eta m+

    So the limit is that of gossip without momentum, whatever beta, where local momentum would have that of a
    step eta / (1 - beta). In a round of H local steps H eta stands for eta; a node that makes none has g = 0
    and counts one. With eta = 0 models are only mixed.

    State: m, d floats. The mean of the models moves by momentum when they are mixed.
    """

    needs_plain_sgd: ClassVar = True
    preserves_mean: ClassVar = False
    overlaps: ClassVar = False
    state: ClassVar = ("_m",)

    beta: Decay = 0.9

    _m: Tensor = field(init=False, repr=False)

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        super().bind(layout, num_nodes, chain, seed)
        self._steps = LocalSteps(layout)

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._m = torch.zeros_like(vector)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return lambda gradient, vector, step: self._steps.note(vector)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        super().mix(vector, incoming, view, out)
        # x - eta m+ is the mixed model less eta beta m.
        out.sub_(self._m, alpha=self._eta(view) * self.beta)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        eta = self._eta(view)
        _, moved = self._steps.end(vector, mixed)
        if eta:
            torch.mul(moved, 1 / eta, out=self._m)

    def _eta(self, view: View) -> float:
        return max(self._steps.count, 1) * view.learning_rate
