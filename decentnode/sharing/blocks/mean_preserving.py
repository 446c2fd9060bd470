"""Mixing that keeps the sum over all nodes, whatever the chain loses."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.core.payload import Form, Payload
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain


@dataclass
class MeanPreserving:
    """Mixes what was received against what was sent, both as receivers decode it.

    out_i = s_i + sum_j w_ij C(s_j) - sum_j w_ji C(s_i),   so that sum_i out_i = sum_i s_i

    Without loss in C and with columns of W that sum to 1 this is W s.
    """

    sharing: Sharing
    chain: Chain
    phase: int = 0

    def outgoing(self, signal: Tensor, view: View) -> Mapping[int, Payload]:
        """The payload for each target; pass it to `mix`."""
        return self.sharing._encoded(signal, view, self.chain, self.phase)

    def mix(
        self, signal: Tensor, sent: Mapping[int, Payload], incoming: Incoming, view: View, out: Tensor
    ) -> None:
        """Writes the mixed signal into `out`; an edge without a received payload has no weight."""
        heard = self.sharing._decoded(incoming, view, self.chain, self.phase)

        def terms(heard: Mapping[int, Tensor]) -> Terms:
            lost = set(view.sources) - heard.keys()
            given = {j: view.outgoing_weights[j] for j in view.targets if j not in lost}
            if not self.chain.transforms:
                kept = [(1 - sum(given.values()), signal)]
            else:
                kept = [(1.0, signal), *self._taken(sent, given, view, signal.device)]
            return kept + [(view.weights[j], s) for j, s in heard.items()]

        self.sharing._mix_finite(heard, signal, terms, view, out)

    def _taken(
        self, sent: Mapping[int, Payload], given: Mapping[int, float], view: View, device: torch.device
    ) -> list[tuple[float, Tensor]]:
        """What leaves this node, with negative weights: one term for all targets of the same payload."""
        payloads, weights = {}, dict[int, float]()
        for j, weight in given.items():
            payloads[id(sent[j])] = (j, sent[j])
            weights[id(sent[j])] = weights.get(id(sent[j]), 0.0) + weight
        found = []
        for key, (j, payload) in payloads.items():
            receiver = j if self.chain.per_receiver else None
            context = Context(self.sharing.seed, view.round, view.rank, receiver, phase=self.phase)
            found.append((-weights[key], self.chain.decode(payload.to(device), context)))
        return found


def selects(chain: Chain) -> bool:
    """Whether some coordinates are not sent."""
    return any(transform.emits is Form.SPARSE for transform in chain.stages)
