"""Exact averages on trees: each node forwards the sums of its other neighbors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload, PayloadError
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming, Promises, Requirements, Sharing
from decentnode.sharing.blocks.scalar_field import ScalarField
from decentnode.sharing.blocks.weighted_sum import Terms, weighted_sum
from decentnode.transforms.chain import Chain

COUNT = ScalarField("count", torch.int64)


@SHARINGS.register("relay_sum", "relay_sgd")
@dataclass
class RelaySum(Sharing):
    """Forwards sums of models along a tree: exact, but late (RelaySGD: Vogels et al., NeurIPS 2021, Alg. 1).

    m_{i->j} = x_i + sum_{k in N(i) \\ j} m_{k->i} of the round before, with the number of models in it;
    x_i <- (x_i + sum_j m_{j->i} + (n - n_i) x_i) / n,   n_i how many models have arrived, the own included

    After as many rounds as the tree's diameter every model has arrived everywhere, one round old per edge of
    its path. Until then, or when a message is late, the own model or the initial one replaces missing models.
    With `missing: initial` a round is that of the published code; no mode of that code is `own`. The graph's
    weights are not used. A node without samples counts as one that does not move.

    State: a message and its count per neighbor, deg * d floats. Chains that select or have state are refused.
    """

    requirements = Requirements(tree=True, float32=True)
    promises = Promises(
        by_coordinate=True,
        tolerates_loss=False,
        sends_one_payload=False,
        wire="deg * (C(d) + 8)",
    )
    state: ClassVar = ("_messages", "_counts", "_initial")

    missing: Literal["own", "initial"] = "own"

    _messages: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _counts: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """The number of models in the last message of each neighbor."""
    _initial: Tensor | None = field(default=None, init=False, repr=False)

    def check_chain(self, chain: Chain) -> None:
        if chain.selects:
            raise BadInput(f"{name_of(self)} sends sums of models, but a transform selects coordinates")
        remembering = [name_of(transform) for transform in chain.stages if transform.remembers]
        if remembering:
            raise BadInput(
                f"{name_of(self)} sends each neighbor another sum, but {remembering[0]} remembers one thing "
                "that was sent to all"
            )

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        if self.missing == "initial":
            self._initial = vector.clone()

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return COUNT.layout(self.chain.layout)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        arrived = 1 + sum(self._counts.values())
        total = torch.empty_like(vector)
        weighted_sum([(1.0, vector), *((1.0, self._messages[j]) for j in self._counts)], total)
        payloads = {}
        for j in view.targets:
            message = total - self._messages[j] if j in self._counts else total
            payload = self.chain.encode(message, view.context(view.rank, j))
            payloads[j] = COUNT.join(payload, arrived - self._counts.get(j, 0))
        return payloads

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self._counts = self.decode_each(
            incoming, view, lambda j, payload: self._keep(j, payload, view, vector=vector)
        )
        n = self.setup.num_nodes
        missing = n - 1 - sum(self._counts.values())
        local_models = 1 + missing if self._initial is None else 1

        def terms(signals: Mapping[int, Tensor]) -> Terms:
            weights = {j: 1 / n for j in signals} | {view.rank: local_models / n}
            present = [(weights[j], signal) for j, signal in signals.items()]
            return present if self._initial is None else [*present, (missing / n, self._initial)]

        messages = {j: self._messages[j] for j in self._counts}
        self.weighted_mix({view.rank: vector, **messages}, view, out, terms=terms)

    def _keep(self, j: int, payload: Payload, view: View, vector: Tensor) -> int:
        """Stores the message of j; returns the number of models in it."""
        inner, companion = COUNT.split(payload, self.chain.layout)
        count = companion.item()
        if not 1 <= count < self.setup.num_nodes:
            others = f"models of {self.setup.num_nodes} nodes, the receiver left out"
            raise PayloadError(f"a sum of {count:g} {others}")
        message = self.chain.decode(inner, view.context(j, view.rank))
        kept = self._messages.setdefault(j, torch.empty_like(vector))
        kept.copy_(message)
        return int(count)
