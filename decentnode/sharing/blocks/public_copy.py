"""The part of a node's signal that its neighbors know, updated by compressed differences."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import fsum
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import name_of
from decentnode.core.state import Stateful
from decentnode.core.vector import accumulator
from decentnode.graph.base import View
from decentnode.graph.mixing import Weights
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.transforms.chain import Chain, refuse_own_payloads


class Copies(Stateful, ABC):
    """Copies of one signal z_i, and the neighbors' pull on them (Koloskova et al., ICML 2019, Alg. 2)."""

    p: Tensor
    """The pull sum_j w_ij (h_j - h_i), shape (d,), from `begin` on."""

    def __init__(self, guard: DivergenceGuard | None = None) -> None:
        self.guard = guard
        """Ends a run in which the signal diverges."""

    @abstractmethod
    def begin(self, z: Tensor) -> None:
        """Starts from a signal that all nodes have in common, shape (d,), so that no node sends it."""

    @abstractmethod
    def send(
        self, sharing: Sharing, z: Tensor, view: View, chain: Chain, phase: int = 0
    ) -> dict[int, Payload]:
        """Encodes for each target how z_i, shape (d,), differs from what the target knows of it."""

    @abstractmethod
    def learn(
        self, sharing: Sharing, incoming: Incoming, view: View, chain: Chain, phase: int = 0,
        scratch: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Advances copies and p by what was sent and what arrived; may overwrite `scratch`, shape (d,)."""

    @abstractmethod
    def check_chain(self, sharing: Sharing, chain: Chain) -> None:
        """Raises BadInput when a chain cannot encode these differences."""

    def layout(self, inner_layout: Layout) -> Layout:
        """The layout of a payload, given that of an encoded difference."""
        return inner_layout

    def drop(self, j: int) -> None:
        """Starts what node j and this one know of each other again, where that is kept by pairs."""


class PublicCopy(Copies):
    """The public copy of one signal, and the neighbors' pull on it (Koloskova et al., ICML 2019, App. E).

    h_i <- h_i + q_i,   p_i <- p_i + sum_j w_ij (q_j - q_i) = sum_j w_ij (h_j - h_i),   q_i = C(z_i - h_i)

    State: h_i and p_i, 2 d whatever the degree. So p_i is right only while W stays the same and every q_j
    arrives exactly once. Its rounding errors shrink with the q_j; those of a sum of all h_j would not. For
    signals in bfloat16 both are float32: other nodes know h_i only as sums of its q_i, so h_i must not be
    rounded separately.
    """

    state: ClassVar = ("h", "p", "guard")

    h: Tensor
    _sent: Payload | None = None

    def begin(self, z: Tensor) -> None:
        if self.guard is not None:
            self.guard.begin(z)
        self.h = z.to(accumulator(z.dtype), copy=True)
        self.p = torch.zeros_like(self.h)

    def send(
        self, sharing: Sharing, z: Tensor, view: View, chain: Chain, phase: int = 0
    ) -> dict[int, Payload]:
        difference = z - self.h
        if self.guard is not None:
            self.guard.check(difference, sharing, view)
        sent = sharing.encode(difference, view, chain=chain, phase=phase)
        self._sent = next((payload.to(difference.device) for payload in sent.values()), None)
        return sent

    def learn(
        self, sharing: Sharing, incoming: Incoming, view: View, chain: Chain, phase: int = 0,
        scratch: Tensor | None = None,
    ) -> None:  # fmt: skip
        if self._sent is None:
            return
        q = sharing.decode({**incoming, view.rank: self._sent}, view, chain=chain, phase=phase)
        pulled = torch.empty_like(self.p) if scratch is None or scratch.dtype != self.p.dtype else scratch

        def terms(q: Mapping[int, Tensor]) -> Terms:
            weights = differences_weights(view.weights, view.rank, q)
            return ((weights[j], q_j) for j, q_j in q.items())

        sharing.weighted_mix(q, view, pulled, terms=terms)
        self.p += pulled
        self.h += q[view.rank]

    def check_chain(self, sharing: Sharing, chain: Chain) -> None:
        refuse_own_payloads(chain.stages, f"{name_of(sharing)} needs the same payload for all")


def differences_weights(weights: Weights, rank: int, senders: Iterable[int]) -> Weights:
    """Weights that make sum_j w_ij (c_j - c_i) over `senders` and this node one weighted sum of all c_j."""
    used = {j: weights[j] for j in senders}
    used[rank] = -fsum(weight for j, weight in used.items() if j != rank)
    return used
