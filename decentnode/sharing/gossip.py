"""Model averaging with the neighbors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import live_weights
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

MOST_ERROR = 0.5
"""Relative to the model's norm. Beyond it models differ by more than that, and soon without bound."""


@SHARINGS.register("gossip")
@dataclass
class Gossip(Sharing):
    """Averages models with the neighbors' (D-PSGD: Lian et al., NeurIPS 2017, Alg. 1).

    x_i <- sum_j w_ij y_j,                            y_j the model of j after its local steps
    x_i <- y_i + sum_j w_ij (C(y_j) - C(y_i))         where the chain C rounds

    The second form keeps the mean of all models whatever rounding loses (Frasca et al., Int. J. Robust
    Nonlinear Control 2009). Let C be unbiased with |C(y) - y|^2 = q |y|^2. Then the mean square of the
    models' distance from the mean model becomes q a / (1 - q a) of its squared norm. Here a is the mean of (1
    - l) / (1 + l) over all eigenvalues l of W. An error of half the model's norm ends the run. After
    `error_feedback`, and where a transform protects models, the first form is used with C(y_j).

    The own model replaces models that did not arrive: the node itself gets their weight. Coordinates that a
    transform did not send are filled from the own model (`own`), or count as zero (`zero`). `own` is partial
    sharing, in which the mean of all models drifts. `zero` is right only for a transform that corrects for
    it. Where the chain starts with a change of basis, coefficients are mixed and transformed back once.
    """

    overlaps: ClassVar = True
    takes_correction: ClassVar = True
    mean: ClassVar = (
        "keeps the mean of all models, but not where transforms select other coordinates on each node, clip, "
        "add noise, or stand behind error_feedback"
    )

    fill: Literal["own", "zero"] = "own"
    _coefficients: Tensor | None = field(default=None, init=False, repr=False)
    """The model in the chain's basis, from `outgoing` until `mix`, because a change of basis takes long."""
    _sent: Payload | None = field(default=None, init=False, repr=False)
    """The payload for all targets, when `mix` needs it."""

    def check_chain(self, chain: Chain) -> None:
        if chain.corrects and chain.selects:
            raise BadInput(
                f"{name_of(self)} takes error feedback before transforms that round, not before one that "
                "selects; leave it out"
            )

    def preserves_mean(self, chain: Chain) -> bool:
        if chain.rounds and not chain.only_rounds:
            return False
        return not chain.selects or (self.fill == "own" and chain.same_coordinates)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        coefficients = self.chain.to_basis(vector)
        self._coefficients = coefficients if self.chain.basis else None
        sent = self._encoded(coefficients, view, in_basis=True)
        # Then C(y_j) - C(y_i) keeps the mean, corrects nothing twice and hides no less.
        self._sent = next(iter(sent.values()), None) if self.chain.only_rounds else None
        return sent

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        own = self.chain.to_basis(vector) if self._coefficients is None else self._coefficients
        heard = self._signals(incoming, view, own)
        decoded = None if self._sent is None else self._own_decoded(self._sent, view, own)
        self._coefficients = self._sent = None

        def terms(heard: Mapping[int, Tensor]) -> Terms:
            weights = self.weights(view, heard)
            if decoded is None:
                return ((weight, own if j == view.rank else heard[j]) for j, weight in weights.items())
            kept = [(1.0, own), (weights[view.rank] - 1, decoded)]
            return kept + [(weight, heard[j]) for j, weight in weights.items() if j != view.rank]

        mixed = own.new_empty(own.shape) if self.chain.basis else out
        self._mix_finite(heard, own, terms, view, mixed)
        if self.watched:
            self.watched_weight = sum(w for j, w in self.weights(view, heard).items() if j in self.watched)
        if self.chain.basis:
            out.copy_(self.chain.from_basis(mixed, Context(self.seed, view.round, view.rank)))

    def weights(self, view: View, heard: Mapping[int, Tensor]) -> dict[int, float]:
        """The weights of the own model and each received one; they sum to 1."""
        return live_weights(view.weights, view.rank, heard)

    def _signals(self, incoming: Incoming, view: View, own: Tensor) -> dict[int, Tensor]:
        if not self.chain.transforms:
            return {j: payload["vector"] for j, payload in incoming.items()}
        return self._read(incoming, view, lambda j, payload: self._signal(payload, j, view, own))

    def _signal(self, payload: Payload, sender: int, view: View, own: Tensor) -> Tensor:
        fill = own if self.fill == "own" else None
        return self.chain.decode_coefficients(
            payload, Context(self.seed, view.round, sender, view.rank, fill)
        )

    def _own_decoded(self, sent: Payload, view: View, own: Tensor) -> Tensor | None:
        """The own model as its receivers decode it, in the chain's basis; None if they refuse it."""
        decoded = self._signal(sent.to(own.device), view.rank, view, own)
        error, norm = (float(torch.linalg.vector_norm(x)) for x in (decoded - own, own))
        if not math.isfinite(error):
            return None
        if error > MOST_ERROR * norm:
            raise RunFailed(
                f"rank {view.rank}, round {view.round + 1}: the transforms are too coarse for models of "
                f"{name_of(self)}: they err by {error / norm:.2g} of its norm, and {MOST_ERROR} is "
                "the most; let them keep more, put error_feedback before them, or use choco"
            )
        return decoded
