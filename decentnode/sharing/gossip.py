"""Model averaging with the neighbors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from decentnode.graph.base import View
from decentnode.mixing import live_weights
from decentnode.payload import Layout, Payload, PayloadError
from decentnode.registry import SHARINGS
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.weighted_sum import Terms
from decentnode.transforms.base import Context


@SHARINGS.register("gossip")
@dataclass
class Gossip(Sharing):
    """Averages models with the neighbors' (D-PSGD: Lian et al., NeurIPS 2017, Alg. 1).

    x_i <- sum_j w_ij y_j,   y_j the model of j after its local steps

    What did not arrive is replaced by the own model: its weight goes to the node itself. Coordinates that a
    transform did not send are filled from the own model (`own`: partial sharing, and the mean of all models
    drifts), or count as zero (`zero`: right only for a transform that makes up for it). Where the chain
    begins with a change of basis, coefficients are mixed, and brought back once.
    """

    overlaps: ClassVar = True

    fill: Literal["own", "zero"] = "own"
    _coefficients: Tensor | None = field(default=None, init=False, repr=False)
    """The model in the chain's basis, from `outgoing` until `mix`, because a change of basis takes long."""

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self.chain.layout

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        coefficients = self.chain.to_basis(vector)
        self._coefficients = coefficients if self.chain.basis else None
        return self._encoded_coefficients(coefficients, view, self.chain)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        own = self.chain.to_basis(vector) if self._coefficients is None else self._coefficients
        self._coefficients = None
        heard = self._signals(incoming, view, own)

        def terms(heard: Mapping[int, Tensor]) -> Terms:
            weights = self.weights(view, heard)
            return ((weight, own if j == view.rank else heard[j]) for j, weight in weights.items())

        if not self.chain.basis:
            self._mix_finite(heard, own, terms, view, out)
            return
        mixed = own.new_empty(own.shape)
        self._mix_finite(heard, own, terms, view, mixed)
        out.copy_(self.chain.from_basis(mixed, Context(self.seed, view.round, view.rank)))

    def weights(self, view: View, heard: Mapping[int, Tensor]) -> dict[int, float]:
        """What the own model and each that was heard counts; they sum to 1."""
        return live_weights(view.weights, view.rank, heard)

    def _signals(self, incoming: Incoming, view: View, own: Tensor) -> dict[int, Tensor]:
        if not self.chain.transforms:
            return {j: payload["vector"] for j, payload in incoming.items()}
        found: dict[int, Tensor] = {}
        fill = own if self.fill == "own" else None
        for j, payload in incoming.items():
            try:
                context = Context(self.seed, view.round, j, view.rank, fill)
                found[j] = self.chain.decode_coefficients(payload, context)
            except PayloadError as error:
                self._refused(j, view, error)
        return found
