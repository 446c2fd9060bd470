"""CHOCO-SGD with public copies for each edge, for graphs that change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import Fraction, Positive
from decentnode.sharing.base import Incoming, Promises, Requirements, Sharing
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard
from decentnode.sharing.blocks.pair_copies import PairCopies, refuse_memory
from decentnode.transforms.chain import Chain


@SHARINGS.register("choco_per_edge")
@dataclass
class ChocoPerEdge(Sharing):
    """CHOCO-SGD on any sequence of graphs (own form, 2026, of Koloskova et al., ICML 2019, Alg. 2).

    q_ij = C(y_i - h_ij),   h_ij <- h_ij + q_ij,   x_i <- y_i + gamma sum_j w_ij (h_ji - h_ij)

    y_i is the model after the local steps. h_ij is what j knows of i: it changes only in rounds in which the
    two exchange, so each neighbor gets a payload of its own. On a graph that stays the same this is `choco`.
    Symmetric weights keep the mean on every sequence of graphs, and nodes may be lost: such a pair starts
    again from the common initial model, as does one that was not used for `memory` rounds.

    gamma as in `choco`: on 8 nodes with 3 random neighbors each, for 10 % of all coordinates, .1 and .2 are
    good, .8 is slow; `decentnode tune` finds it. A run that diverges is ended. State: the initial model and
    2 d for each neighbor that is remembered.
    """

    requirements = Requirements(undirected_graph=True)
    promises = Promises(
        keeps_mean=True,
        carries_errors=True,
        sends_one_payload=False,
        sends="differences",
        overlaps=True,
        wire="deg * (C(d) + 8)",
    )
    state: ClassVar = ("_copies", "_guard")

    gamma: Fraction = 0.1
    memory: Positive | None = None
    """Rounds without an exchange after which two nodes forget each other; null: never."""
    _guard: DivergenceGuard = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._copies = PairCopies(self.memory)
        self._guard = DivergenceGuard("what is mixed in")

    def check_chain(self, chain: Chain) -> None:
        refuse_memory(self, chain)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self._copies.layout(self.chain.layout)

    def begin(self, vector: Tensor) -> None:
        super().begin(torch.zeros_like(vector))
        self._copies.begin(vector)
        self._guard.begin(vector)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self._copies.send(self, vector, view, self.chain)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        pull = self._copies.learn(self, incoming, view, self.chain)
        self._guard.check(pull, self, view)
        torch.add(vector, pull, alpha=self.gamma, out=out)

    def on_peer_lost(self, rank: int) -> None:
        self._copies.drop(rank)
