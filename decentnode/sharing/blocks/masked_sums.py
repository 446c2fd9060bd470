"""Schemes in which a receiver learns the sum of what several nodes send, and no summand."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor

from decentnode.core.pair_keys import Mask, PairKeys
from decentnode.core.registry import name_of
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.options import Positive
from decentnode.sharing.base import Promises, Requirements, Sharing
from decentnode.sharing.blocks.fixed_point import FixedPoint, OutOfRange

TRIED_ROUNDS = 16
"""Rounds of a graph without period in which enough senders are looked for."""


@dataclass
class MaskedSums(Sharing):
    """Sends integers under masks that two senders share, so that they cancel in the receiver's sum.

    Keys are agreed on between all nodes at each start (X25519), so that no mask is used twice.
    """

    requirements = Requirements(co_senders=True, float32=True)
    # A restarted process has lost its key.
    promises = Promises(allows_rejoin=False, protects=True, sends_one_payload=False)

    scale: Positive = 1 << 16
    bits: Literal[32, 64] = 32
    least_senders: Annotated[int, Ge(2)] = 2
    """The least number k of senders: k - 2 of them may reveal their models, and the others stay hidden."""
    _keys: PairKeys = field(
        default_factory=lambda: PairKeys(os.urandom(32)), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self._fixed = FixedPoint(self.scale, self.bits)

    def check(self, graph: WeightedGraph) -> None:
        senders = all_senders(graph)
        fewest, number = min((len(ranks), number) for number, ranks in enumerate(senders))
        most = max(map(len, senders))
        if most < self.least_senders or (graph.static and fewest < self.least_senders):
            others = ", ".join(map(str, senders[number])) or "nobody"
            raise BadInput(
                f"{name_of(self)} hides models among at least {self.least_senders} senders to each "
                f"node, but rank {number % graph.num_nodes} hears {others} alone"
                + ("" if graph.static else ", and no node ever hears enough")
            )

    def handshake(self) -> bytes:
        return self._keys.public

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        self._keys.receive_handshakes(handshakes)

    def _mask(
        self, x: Tensor, receiver: int, view: View, senders: int, masks: Sequence[Mask], out: Tensor,
        coordinates: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Writes Q(w_ra x) and the sum of the masks; raises RunFailed where a sum of `senders` could wrap.

        `coordinates` are those of x in the signal; None: all that the chain sends.
        """
        weight = view.outgoing_weights[receiver]
        try:
            self._fixed.masked(x, weight, senders, masks=masks, out=out)
        except OutOfRange:
            # NaN counts as the largest.
            index = int(x.abs().argmax())
            place = index if coordinates is None else int(coordinates[index])
            self._refuse(
                float(x[index]), place, weight * self.scale, most=self._fixed.most(senders), view=view
            )

    def _refuse(self, x: float, index: int, factor: float, most: float, view: View) -> None:
        largest = most / factor if factor else math.inf
        where = f"element {index} of the signal" if self.chain.stages else self.setup.layout.name_at(index)
        raise RunFailed(
            f"rank {view.rank}, round {view.round + 1}: {name_of(self)} cannot send {x:g}, "
            f"found in {where}: with scale {self.scale} and {self.bits} bits the most is {largest:g} "
            "here; a smaller scale, or bits: 64, allows more"
        )


def all_senders(graph: WeightedGraph) -> list[tuple[int, ...]]:
    """The sources of each rank, round by round: of one period, or of `TRIED_ROUNDS`."""
    rounds = graph.graph.changes.rounds(TRIED_ROUNDS)
    return [graph.graph.sources(rank, t) for t in rounds for rank in range(graph.num_nodes)]
