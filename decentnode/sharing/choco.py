"""CHOCO-SGD: compressed differences to public copies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.graph.base import View
from decentnode.options import Fraction
from decentnode.sharing.base import Incoming, Promises, Requirements, Sharing
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard
from decentnode.sharing.blocks.public_copy import PublicCopy
from decentnode.transforms.chain import Chain, refuse_own_payloads


@SHARINGS.register("choco", "choco_sgd", "choco_gossip")
@dataclass
class Choco(Sharing):
    """Sends compressed differences to public copies (CHOCO-SGD: Koloskova et al., ICML 2019, Alg. 2).

    q_i = C(y_i - h_i),   h_i <- h_i + q_i,   x_i <- y_i + gamma sum_j w_ij (h_j - h_i)

    y_i is the model after the local steps; all h_i start at the common initial model. What was not sent stays
    in y_i - h_i, so every chain may be lossy, and needs no error feedback. State: h_i and the sum, 2 d. Needs
    a static graph. gamma must fit W and C: on a ring of 8, for 10 % of all coordinates, 0.2 is good and 0.4
    diverges. `decentnode tune` finds it. A run that diverges is ended.
    """

    requirements = Requirements(
        static_graph=True, for_changing_graphs="use choco_per_edge", undirected_graph=True
    )
    promises = Promises(
        keeps_mean=True, tolerates_loss=False, carries_errors=True, sends="differences", overlaps=True
    )
    state: ClassVar = ("_public", "_guard")

    gamma: Fraction = 0.1
    _public: PublicCopy = field(default_factory=PublicCopy, init=False, repr=False)
    _guard: DivergenceGuard = field(default_factory=DivergenceGuard, init=False, repr=False)

    def check_chain(self, chain: Chain) -> None:
        refuse_own_payloads(chain.stages, f"{name_of(self)} needs the same payload for all")

    def begin(self, vector: Tensor) -> None:
        super().begin(torch.zeros_like(vector))
        self._public.begin(vector)
        self._guard.begin(vector)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        difference = vector - self._public.h
        self._guard.check(difference, self, view)
        return self._public.send(self, difference, view)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self._public.learn(self, incoming, view, out)
        torch.add(vector, self._public.p, alpha=self.gamma, out=out)
