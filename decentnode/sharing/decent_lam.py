"""Momentum that does not increase the bias of heterogeneous data."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import AdjustGradient
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.base import Incoming
from decentnode.sharing.blocks.momentum import MomentumGossip
from decentnode.sharing.blocks.stability import refuse_coarse, refuse_growth
from decentnode.transforms.chain import Chain


@SHARINGS.register("decent_lam")
@dataclass
class DecentLam(MomentumGossip):
    """Momentum without the bias that it adds to gossip (DecentLaM: Yuan et al., ICCV 2021, Alg. 2).

    ghat = (x - W (x - eta g)) / eta,   m+ = beta m + ghat,   x+ = x - eta m+

    So the limit is that of gossip without momentum, whatever beta is. Local momentum would have the limit of
    a step eta / (1 - beta). In a round of H local steps H eta stands for eta. A node without samples has g =
    0 and counts one step. With eta = 0 models are only mixed.

    Its analysis assumes one symmetric W and exact models. All differences between models enter the momentum.
    It may grow without bound where W changes or is not symmetric, or where transforms select or quantize.
    Such graphs and chains are refused; casts and lossless stages are not. `quasi_global` adds only 1 - mu of
    the differences.

    State: m, d floats. The mean of the models moves by momentum when they are mixed.
    """

    promises = replace(MomentumGossip.promises, about_mean="", takes_strength=False)

    def check(self, graph: WeightedGraph) -> None:
        remedy = f"use quasi_global, a beta below {self.beta:g}, or an undirected graph that stays the same"
        refuse_growth(self, graph, lambda mix, x, u: mix(x) - self.beta * u, mu=0.0, remedy=remedy)

    def check_chain(self, chain: Chain) -> None:
        refuse_coarse(chain, f"{name_of(self)}, whose momentum makes the error grow; use quasi_global")

    def preserves_mean(self, chain: Chain) -> bool:
        return False

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return lambda gradient, vector, step: self._note(vector)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        super().mix(vector, incoming, view, out)
        # x - eta m+ is the mixed model less eta beta m.
        out.sub_(self._m, alpha=self._eta(view) * self.beta)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        super().accept(vector, view, mixed)
        eta = self._eta(view)
        moved = self._moved(vector, mixed)
        self._guard.check(moved, self, view)
        if eta:
            torch.mul(moved, 1 / eta, out=self._m)

    def _eta(self, view: View) -> float:
        return max(self._steps, 1) * view.learning_rate
