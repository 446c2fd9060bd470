"""Public copies of one signal for each pair of nodes, which may meet in some rounds alone."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from decentnode.core.payload import Layout, NotFinite, Payload
from decentnode.core.registry import name_of
from decentnode.core.vector import accumulator, is_finite
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard
from decentnode.sharing.blocks.public_copy import Copies
from decentnode.sharing.blocks.scalar_field import ScalarField
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

BASIS = ScalarField("basis", torch.int64)
"""The base of the sender's copies of a pair: the round that changed them last, or their start."""
ZERO = -1
"""The basis of a pair that starts from zero."""


class PairDifference(NamedTuple):
    """A payload of the other end of a pair."""

    basis: int
    q: Tensor | None
    """The difference; None where the two ends build on different copies."""


class PairCopies(Copies):
    """The copies of CHOCO (Koloskova et al., ICML 2019, Alg. 2) for each pair, for any sequence of graphs.

    q_ij = C(z_i - h_ij),   h_ij <- h_ij + q_ij,   p_i = sum_j w_ij (h_ji - h_ij)

    h_ij is what j knows of z_i. It changes only in rounds in which i and j exchange, so both ends have h_ij
    and h_ji to the bit. Their two contributions p are opposite, so symmetric weights keep the sum of all z_i.
    While the graph stays the same, all h_ij of a node are the h_i of CHOCO.

    A payload has the basis of its copies. Where the two ends differ, because one missed a payload, both skip
    the exchange and start the pair again, from the initial signal. A node that was given another model does
    not have that signal. Then the pair starts from zero. After `memory` rounds without an exchange both ends
    forget a pair. State: the initial signal, p_i and 2 d for each pair.
    """

    state: ClassVar = ("reference", "mark", "from_zero", "last", "own", "theirs", "p", "guard")

    def __init__(self, guard: DivergenceGuard | None = None, memory: int | None = None) -> None:
        super().__init__(guard)
        self.memory = memory
        self.from_zero: list[int] = []
        """Peers whose initial signal is another one."""
        self.last: dict[int, int] = {}
        """The round of the last exchange with each peer whose copies are kept."""
        self.own: dict[int, Tensor] = {}
        """The own copies h_ij by neighbor j."""
        self.theirs: dict[int, Tensor] = {}
        """The neighbors' copies h_ji by neighbor j."""
        self._sent: dict[int, Payload] = {}

    def begin(self, z: Tensor) -> None:
        if self.guard is not None:
            self.guard.begin(z)
        self.reference = z.to(accumulator(z.dtype), copy=True)
        digest = blake2b(self.reference.cpu().numpy().tobytes(), digest_size=7).digest()
        self.p = torch.zeros_like(self.reference)
        self.mark = ZERO - 1 - int.from_bytes(digest, "little")

    def layout(self, inner_layout: Layout) -> Layout:
        return BASIS.layout(inner_layout)

    def send(
        self, sharing: Sharing, z: Tensor, view: View, chain: Chain, phase: int = 0
    ) -> dict[int, Payload]:
        self._forget(view.round)
        self._sent = {}
        for j in view.targets:
            difference = z - self._copy(self.own, j)
            if not is_finite(difference):
                raise sharing.own_error(difference, view)
            context = view.context(view.rank, j, phase=phase)
            self._sent[j] = chain.encode(difference, context)
        return {j: BASIS.join(payload, self._basis(j)) for j, payload in self._sent.items()}

    def learn(
        self, sharing: Sharing, incoming: Incoming, view: View, chain: Chain, phase: int = 0,
        scratch: Tensor | None = None,
    ) -> None:  # fmt: skip
        p = self.p = torch.zeros_like(self.reference)
        arrived = sharing.decode_each(
            incoming,
            view,
            lambda j, payload: self._difference(payload, chain, view.context(j, view.rank, phase=phase)),
        )
        for j in view.sources:
            difference = arrived.get(j)
            if difference is None or difference.q is None:
                self._part(j, difference)
                continue
            context = view.context(view.rank, j, phase=phase)
            sent = chain.decode(self._sent[j].to(p.device), context)
            self._advance(self.own, j, sent)
            self._advance(self.theirs, j, difference.q)
            self.last[j] = view.round
            p.add_(self.theirs[j] - self.own[j], alpha=view.weights[j])
        if self.guard is not None:
            self.guard.check(p, sharing, view)

    def check_chain(self, sharing: Sharing, chain: Chain) -> None:
        for index, stage in enumerate(chain.stages):
            if stage.remembers:
                raise BadInput.at(
                    f"transforms[{index}]",
                    f"{name_of(stage)} remembers one thing that was sent to all, but "
                    f"{name_of(sharing)} sends each neighbor another payload; leave it out",
                )

    def drop(self, j: int) -> None:
        for known in (self.last, self.own, self.theirs):
            known.pop(j, None)

    def _difference(self, payload: Payload, chain: Chain, context: Context) -> PairDifference:
        inner, numbers = BASIS.split(payload, chain.layout)
        basis = int(numbers)
        if basis != self._basis(context.sender):
            return PairDifference(basis, None)
        q = chain.decode(inner, context)
        if not is_finite(q):
            raise NotFinite("a difference is not finite")
        return PairDifference(basis, q)

    def _part(self, j: int, difference: PairDifference | None) -> None:
        """Starts the pair again, from zero where the two initial signals differ."""
        if difference is not None and max(difference.basis, self._basis(j)) < 0 and j not in self.from_zero:
            self.from_zero.append(j)
        self.drop(j)

    def _forget(self, round: int) -> None:
        if self.memory is not None:
            for j in [j for j, last in self.last.items() if round - last > self.memory]:
                self.drop(j)

    def _basis(self, j: int) -> int:
        return self.last.get(j, ZERO if j in self.from_zero else self.mark)

    def _advance(self, copies: dict[int, Tensor], j: int, q: Tensor) -> None:
        if j not in copies:
            copies[j] = self._copy(copies, j).clone()
        copies[j] += q

    def _copy(self, copies: Mapping[int, Tensor], j: int) -> Tensor:
        if j in copies:
            return copies[j]
        return torch.zeros_like(self.reference) if j in self.from_zero else self.reference
