"""The part of a node's signal that its neighbors know, updated by compressed differences."""

from collections.abc import Iterable, Mapping
from math import fsum
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.state import Stateful
from decentnode.core.vector import accumulator
from decentnode.graph.base import View
from decentnode.graph.mixing import Weights
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.transforms.chain import Chain


class PublicCopy(Stateful):
    """The public copy of one signal, and the neighbors' pull on it (Koloskova et al., ICML 2019, App. E).

    h_i <- h_i + q_i,   p_i <- p_i + sum_j w_ij (q_j - q_i) = sum_j w_ij (h_j - h_i),   q_i = C(z_i - h_i)

    State: h_i and p_i, 2 d whatever the degree. So p_i is right only while W stays the same and every q_j
    arrives exactly once. Its rounding errors shrink with the q_j; those of a sum of all h_j would not. For
    signals in bfloat16 both are float32: other nodes know h_i only as sums of its q_i, so h_i must not be
    rounded separately.
    """

    state: ClassVar = ("h", "p")

    h: Tensor
    p: Tensor
    _sent: Payload | None = None

    def begin(self, z: Tensor) -> None:
        """Starts from a signal that all nodes have in common, shape (d,), so that no node sends it."""
        self.h = z.to(accumulator(z.dtype), copy=True)
        self.p = torch.zeros_like(self.h)

    def send(
        self, sharing: Sharing, difference: Tensor, view: View, chain: Chain | None = None, phase: int = 0
    ) -> dict[int, Payload]:
        """Encodes z_i - h_i for each target, with a chain of its own or that of the scheme."""
        sent = sharing.encode(difference, view, chain=chain, phase=phase)
        self._sent = next((payload.to(difference.device) for payload in sent.values()), None)
        return sent

    def learn(
        self, sharing: Sharing, incoming: Incoming, view: View, scratch: Tensor, chain: Chain | None = None,
        phase: int = 0,
    ) -> None:  # fmt: skip
        """Adds the differences of the neighbors and its own; overwrites `scratch`."""
        if self._sent is None:
            return
        q = sharing.decode({**incoming, view.rank: self._sent}, view, chain=chain, phase=phase)
        pulled = scratch if scratch.dtype == self.p.dtype else torch.empty_like(self.p)

        def terms(q: Mapping[int, Tensor]) -> Terms:
            weights = differences_weights(view.weights, view.rank, q)
            return ((weights[j], q_j) for j, q_j in q.items())

        sharing.weighted_mix(q, view, pulled, terms=terms)
        self.p += pulled
        self.h += q[view.rank]


def differences_weights(weights: Weights, rank: int, senders: Iterable[int]) -> Weights:
    """Weights that make sum_j w_ij (c_j - c_i) over `senders` and this node one weighted sum of all c_j."""
    used = {j: weights[j] for j in senders}
    used[rank] = -fsum(weight for j, weight in used.items() if j != rank)
    return used
