"""Model averaging with the neighbors."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from decentnode.graph.base import View
from decentnode.mixing import live_weights
from decentnode.payload import Layout, Payload
from decentnode.registry import SHARINGS
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.weighted_sum import weighted_sum
from decentnode.transforms.base import Context


@SHARINGS.register("gossip")
@dataclass
class Gossip(Sharing):
    """Averages models with the neighbors' (D-PSGD: Lian et al., NeurIPS 2017, Alg. 1).

    x_i <- sum_j w_ij y_j,   y_j the model of j after its local steps

    What did not arrive is replaced by the own model: its weight goes to the node itself.
    """

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self.chain.layout

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        if not view.targets:
            return {}
        payload = self.chain.encode(vector, Context(self.seed, view.round, view.rank))
        return dict.fromkeys(view.targets, payload)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        weights = live_weights(view.weights, view.rank, incoming)
        weighted_sum(
            (
                (weight, vector if j == view.rank else self._decode(incoming[j], j, view))
                for j, weight in weights.items()
            ),
            out,
        )

    def _decode(self, payload: Payload, sender: int, view: View) -> Tensor:
        if not self.chain.transforms:
            return payload["vector"]
        return self.chain.decode(payload, Context(self.seed, view.round, sender, view.rank))
