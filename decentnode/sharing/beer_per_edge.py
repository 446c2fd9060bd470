"""BEER with public copies for each edge, for graphs that change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import Positive
from decentnode.sharing.base import Exchange, Incoming, Sharing
from decentnode.sharing.beer import Beer
from decentnode.sharing.blocks.pair_copies import PairCopies, refuse_memory
from decentnode.transforms.chain import Chain


@SHARINGS.register("beer_per_edge")
@dataclass
class BeerPerEdge(Beer):
    """BEER on any sequence of graphs (own form, 2026, of Zhao et al., NeurIPS 2022, Alg. 1).

    x_i <- x_i + gamma sum_j w_ij (h_ji - h_ij) - eta v_i,                h_ij <- h_ij + C(x_i - h_ij)
    v_i <- v_i + gamma sum_j w_ij (b_ji - b_ij) + g_i(new) - g_i(old),    b_ij <- b_ij + C(v_i - b_ij)

    The copies h_ij and b_ij change only in rounds in which i and j exchange, as in `choco_per_edge`. What the
    two ends of an edge add is opposite, so the sum of all v_i is the sum of all last gradients on every
    sequence of graphs with symmetric weights. On a graph that stays the same this is `beer`.

    State: v_i, the last g_i, the last sum of the models' copies, the initial x and v, and 4 d for each
    neighbor that is remembered.
    """

    requirements = replace(Beer.requirements, static_graph=False, for_changing_graphs="")
    promises = replace(Beer.promises, sends_one_payload=False, wire="2 deg * (C(d) + 8)")
    state: ClassVar = ("_of_models", "_of_trackers", "_tracker_chain", "_guard", "_v", "_g", "_pull")

    memory: Positive | None = None
    """Rounds without an exchange after which two nodes forget each other; null: never."""

    def __post_init__(self) -> None:
        self._of_models, self._of_trackers = PairCopies(self.memory), PairCopies(self.memory)

    def check_chain(self, chain: Chain) -> None:
        refuse_memory(self, chain)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self._of_models.layout(self.chain.layout)

    def begin(self, vector: Tensor) -> None:
        self._v, self._g, self._pull = (torch.zeros_like(vector) for _ in range(3))
        Sharing.begin(self, self._v)
        self._tracker_chain.begin(self._v)
        self._of_models.begin(vector)
        self._of_trackers.begin(self._v)
        self._guard.begin(vector)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        incoming = await exchange(self.outgoing(vector, view), view.sources)
        self.mix(vector, incoming, view, out)
        pairs, chain = self._of_trackers, self._tracker_chain
        incoming = await exchange(pairs.send(self, self._v, view, chain, phase=1), view.sources)
        self._v.add_(pairs.learn(self, incoming, view, chain, phase=1), alpha=self.gamma)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        self._x = torch.add(vector, self._pull, alpha=self.gamma)
        if not self._has_stepped:
            self._x.sub_(self._v, alpha=view.learning_rate)
        self._has_stepped = False
        return self._of_models.send(self, self._x, view, self.chain)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self._pull = self._of_models.learn(self, incoming, view, self.chain)
        self._guard.check(self._pull, self, view)
        out.copy_(self._x)
