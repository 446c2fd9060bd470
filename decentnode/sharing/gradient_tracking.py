"""Steps along an estimate of the mean gradient of all nodes instead of the node's own gradient."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import AdjustGradient
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import keeps_mean
from decentnode.sharing.base import Exchange, Requirements, Setup
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard, of_a_sum
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.sharing.gossip import Gossip


@SHARINGS.register("gradient_tracking", "dsgt", "diging")
@dataclass
class GradientTracking(Gossip):
    """Tracks the mean gradient, so that heterogeneous data leaves no bias (Nedic et al., SIAM J. Opt. 2017).

    x+ = W (x - eta y),   y+ = W y + g(x+) - g(x),   y_0 = g(x_0)   (DIGing; x adapts, then combines)

    The invariant sum_i y_i = sum_i g_i holds after every step. In a round of several local steps W is the
    identity except in the last one (FlexGT: Huang and Xu, CDC 2023). Each step adds g - g_prev to y and
    follows y. A node without samples makes one step along y per round. Its f_i adds nothing to the sum, but
    its model must move with the others'.

    State: y and the last g, 2 d floats. Needs columns of W that sum to 1. Mixing keeps the sum of the
    trackers whatever the transforms lose; models are mixed as in gossip.
    """

    requirements = Requirements(float32=True, plain_sgd=True)
    promises = replace(
        Gossip.promises,
        tolerates_loss=False,
        overlaps=False,
        takes_correction=False,
        phases=2,
        wire="2 deg * C(d)",
    )
    state: ClassVar = ("_y", "_g", "_chain_of_y", "_guard")

    _guard: DivergenceGuard = field(default_factory=of_a_sum("its tracker"), init=False, repr=False)

    def check(self, graph: WeightedGraph) -> None:
        if not keeps_mean(graph):
            raise BadInput(
                f"{name_of(self)} needs weights whose columns sum to 1, too, such as metropolis_hastings; "
                "these do not"
            )

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._chain_of_y = setup.chain.copy()
        self._stepped = False
        self._spare: Tensor | None = None

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._y, self._g = torch.zeros_like(vector), torch.zeros_like(vector)
        self._chain_of_y.begin(self._y)
        self._guard.begin(vector)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._track

    def _track(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        self._y.add_(gradient).sub_(self._g)
        self._g.copy_(gradient)
        gradient.copy_(self._y)
        self._stepped = True

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Exchanges models first, then trackers."""
        model = vector if self._stepped else torch.sub(vector, self._y, alpha=view.learning_rate)
        self._stepped = False
        self.mix(model, await exchange(self.outgoing(model, view), view.sources), view, out)
        await self._mix_trackers(view, exchange)

    async def _mix_trackers(self, view: View, exchange: Exchange) -> None:
        sent = self.encode(self._y, view, chain=self._chain_of_y, phase=1)
        incoming = await exchange(sent, view.sources)
        mixed = torch.empty_like(self._y) if self._spare is None else self._spare
        y = {view.rank: self._y, **self.decode(incoming, view, chain=self._chain_of_y, phase=1)}
        self.weighted_mix(y, view, mixed, terms=lambda y: self._terms(sent, y, view))
        self._guard.check(mixed, self, view)
        # Two buffers by turns: peers may still read what was sent while the next gradients change the mixed
        # one.
        self._y, self._spare = mixed, self._y

    def _terms(self, sent: Mapping[int, Payload], y: Mapping[int, Tensor], view: View) -> Terms:
        """Returns y_i + sum_j w_ij C(y_j) - sum_j w_ji C(y_i), both C as receivers decode them.

        An edge without a received payload has no weight. Without loss in C this is W y.
        """
        lost = set(view.sources) - y.keys()
        leaving = {j: view.outgoing_weights[j] for j in view.targets if j not in lost}
        arriving = [(view.weights[j], y_j) for j, y_j in y.items() if j != view.rank]
        chain = self._chain_of_y
        if not chain.transforms:
            return [(1 - sum(leaving.values()), self._y), *arriving]
        # One term for all targets of the same payload.
        payloads, weights = {}, dict[int, float]()
        for j, weight in leaving.items():
            payloads[id(sent[j])] = (j if chain.per_receiver else None, sent[j])
            weights[id(sent[j])] = weights.get(id(sent[j]), 0.0) + weight
        subtracted = []
        for key, (receiver, payload) in payloads.items():
            context = view.context(view.rank, receiver, phase=1)
            subtracted.append((-weights[key], chain.decode(payload.to(self._y.device), context)))
        return [(1.0, self._y), *subtracted, *arriving]
