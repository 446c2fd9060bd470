"""DeepSqueeze: compressed models, with the error of one round added to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import accumulator
from decentnode.graph.base import View
from decentnode.options import Fraction
from decentnode.sharing.base import Incoming, Promises, Sharing
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard
from decentnode.sharing.blocks.public_copy import differences_weights
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.transforms.chain import Chain, refuse_own_payloads


@SHARINGS.register("deep_squeeze")
@dataclass
class DeepSqueeze(Sharing):
    """Sends compressed models and corrects the error later (DeepSqueeze: Tang et al., 2019, Alg. 1).

    v_i = y_i + e_i,   c_i = C(v_i),   e_i <- v_i - c_i,   x_i <- y_i + gamma sum_j w_ij (c_j - c_i)

    State: the error e_i, d. It keeps no state per neighbor, so the graph may change and nodes may be lost.
    The stronger C, the smaller gamma must be; `decentnode tune` finds it. At equal bytes CHOCO is closer to
    the mean. A run that diverges is ended.
    """

    promises = Promises(by_coordinate=True, keeps_mean=True, carries_errors=True, overlaps=True)
    state: ClassVar = ("_e", "_guard")

    gamma: Fraction = 0.01
    _guard: DivergenceGuard = field(default_factory=DivergenceGuard, init=False, repr=False)
    _c: Tensor | None = field(default=None, init=False, repr=False)

    def check_chain(self, chain: Chain) -> None:
        refuse_own_payloads(chain.stages, f"{name_of(self)} needs the same payload for all")

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        # bfloat16 would lose the small errors against what they are added to.
        self._e = torch.zeros_like(vector, dtype=accumulator(vector.dtype))
        self._guard.begin(vector)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        v = vector + self._e
        sent = self.encode(v, view)
        self._c = None
        if sent:
            own_payload = sent[view.targets[0]].to(v.device)
            self._c = self.decode({view.rank: own_payload}, view)[view.rank]
            torch.sub(v, self._c, out=self._e)
            self._guard.check(self._e, self, view)
        return sent

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        if self._c is None:
            out.copy_(vector)
            return
        c = {**self.decode(incoming, view), view.rank: self._c}

        def terms(c: Mapping[int, Tensor]) -> Terms:
            weights = differences_weights(view.weights, view.rank, c)
            return [(1.0, vector), *((self.gamma * weights[j], c_j) for j, c_j in c.items())]

        self.weighted_mix(c, view, out, terms=terms)
