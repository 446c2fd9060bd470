"""BEER: CHOCO with gradient tracking."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS
from decentnode.core.vector import AdjustGradient
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import keeps_mean
from decentnode.sharing.base import Exchange, Incoming, Promises, Setup
from decentnode.sharing.blocks.copies import CopySharing


@SHARINGS.register("beer")
@dataclass
class Beer(CopySharing):
    """Compressed gossip of models and of gradient trackers (BEER: Zhao et al., NeurIPS 2022, Alg. 1).

    x_i <- x_i + gamma sum_j w_ij (h_j - h_i) - eta v_i,                h_i <- h_i + C(x_i - h_i)
    v_i <- v_i + gamma sum_j w_ij (b_j - b_i) + g_i(new) - g_i(old),    b_i <- b_i + C(v_i - b_i)

    (b_i is the G_i of the paper.) Reaches the optimum of the mean loss however different the losses of the
    nodes are, where CHOCO stalls. The sum of all v_i is the sum of all last gradients. Each local step of a
    round follows v_i, to which every change of g_i is added. A node without samples has g_i = 0 and makes one
    step along v_i per round. State: h_i, b_i, their mixed sums, v_i and the last g_i, 6 d. Two exchanges a
    round. Needs a static graph, doubly stochastic weights and plain SGD.

    With `copies: edge` (own form, 2026) h_ij and b_ij are what j knows of i, as in `choco`. What the two ends
    of an edge add is opposite, so the sum of all v_i is the sum of all last gradients on every sequence of
    graphs with symmetric weights. State: v_i, the last g_i, the two sums, the initial x and v, and 4 d for
    each neighbor that is remembered.
    """

    requirements = replace(CopySharing.requirements, float32=True, plain_sgd=True)
    promises = Promises(
        by_coordinate=True,
        keeps_mean=True,
        tolerates_loss=False,
        carries_errors=True,
        sends="differences",
        phases=2,
        wire="2 deg * C(d)",
    )
    state: ClassVar[tuple[str, ...]] = ("_models", "_trackers", "_tracker_chain", "_v", "_g")

    _has_stepped: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._trackers = self._copies()

    def check(self, graph: WeightedGraph) -> None:
        if not keeps_mean(graph):
            raise BadInput("beer needs doubly stochastic weights, such as metropolis_hastings")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._tracker_chain = setup.chain.copy()

    def begin(self, vector: Tensor) -> None:
        self._v, self._g = torch.zeros_like(vector), torch.zeros_like(vector)
        super().begin(self._v)
        self._tracker_chain.begin(self._v)
        self._models.begin(vector)
        self._trackers.begin(self._v)

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        return self._track

    def _track(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        self._v.add_(gradient).sub_(self._g)
        self._g.copy_(gradient)
        gradient.copy_(self._v)
        self._has_stepped = True

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        incoming = await exchange(self.outgoing(vector, view), view.sources)
        self.mix(vector, incoming, view, out)
        trackers, chain = self._trackers, self._tracker_chain
        incoming = await exchange(trackers.send(self, self._v, view, chain, phase=1), view.sources)
        trackers.learn(self, incoming, view, chain, phase=1)
        self._v.add_(trackers.p, alpha=self.gamma)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        self._x = torch.add(vector, self._models.p, alpha=self.gamma)
        if not self._has_stepped:
            self._x.sub_(self._v, alpha=view.learning_rate)
        self._has_stepped = False
        return self._models.send(self, self._x, view, self.chain)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self._models.learn(self, incoming, view, self.chain, scratch=out)
        out.copy_(self._x)
