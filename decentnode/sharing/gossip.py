"""Model averaging with the neighbors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import accumulator
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import live_weights
from decentnode.options import Positive, Probability
from decentnode.sharing.base import Incoming, Promises, Setup, Sharing
from decentnode.sharing.blocks.outer import OptimizerMaker, OuterOptimizer, SavesOuter
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.transforms.chain import Chain

CHANGED_BY_OUTER = "share", "mix", "accept", "adjust_gradient"
"""The hooks that are those of gossip in all schemes that take an outer optimizer."""
MOST_ERROR = 0.5
"""The most error relative to the model's norm; beyond it models soon differ without bound."""


@SHARINGS.register(
    "gossip",
    "dpsgd",
    "dsgd",
    "decentralized_sgd",
    "mean",
    "average",
    "plain_average",
    "neighbor_allreduce",
    top_k="transforms: [top_k]",
    random_k="transforms: [random_k]",
    sub_sampling="transforms: [random_k]",
    partial_model="transforms: [top_k]",
    noloco="outer: {name: SGD, ...}",
)
@dataclass
class Gossip(SavesOuter, Sharing):
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
    it. With `sent` a coordinate is averaged over those that sent it and the node itself, by their weights
    divided by the sum of these. Where the chain starts with a change of basis, coefficients are mixed and
    transformed back once.

    With `outer`, a step of that optimizer leads from phi_i, the model before the local steps, to the new
    model: phi_i minus the mix is its gradient. On random pairs, SGD with lr eta and momentum beta is NoLoCo
    (Kolehmainen et al., 2025, arXiv 2506.10911): m_i <- beta m_i + eta (sum_j w_ij y_j - phi_i),
    x_i <- phi_i + m_i. With `outer_every: k` it makes a step in each k-th round, and phi_i is the model k
    rounds before. State: phi and the moments.

    `blend` is alpha of Streaming DiLoCo (Douillard et al., 2025, arXiv 2501.18512, Alg. 2): the new model is
    alpha times the local model plus 1 - alpha times what the step gives. With `communication.overlap` the
    local model has the steps that were made during the exchange. With `fragments` in the chain all this is so
    in the fragment of the round, and the rest of the model stays as the local steps leave it.
    """

    promises = Promises(
        by_coordinate=True,
        overlaps=True,
        takes_correction=True,
        takes_strength=True,
        shows_models=True,
        about_mean=(
            "keeps the mean of all models, but not where transforms select other coordinates on each node, "
            "clip, add noise, or stand behind error_feedback"
        ),
    )

    fill: Literal["own", "zero", "sent"] = "own"
    outer: OptimizerMaker | None = None
    """The optimizer of one step in each round, after the mix; null: the mix is the new model."""
    outer_every: Positive = 1
    """Rounds from one step of the outer optimizer to the next."""
    blend: Probability = 0.0
    """The weight of the local model against what the outer optimizer's step gives."""
    _coefficients: Tensor | None = field(default=None, init=False, repr=False)
    """The model in the chain's basis, from `outgoing` until `mix`, because a change of basis takes long."""
    _sent: Payload | None = field(default=None, init=False, repr=False)
    """The payload for all targets, when `mix` needs it."""
    _watched_weight: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.fill == "sent" and type(self).mix is not Gossip.mix:
            raise BadInput.at("fill", f"sent is for a weighted mean, which {name_of(self)} is not; use own")
        if self.outer is None:
            if self.outer_every > 1:
                raise BadInput.at(
                    "outer_every", "there is no outer optimizer; name one in outer, or leave it out"
                )
            if self.blend:
                raise BadInput.at(
                    "blend", "is for the step of `outer`, and there is none; use mixing_strength"
                )
            return
        own = [name for name in CHANGED_BY_OUTER if getattr(type(self), name) != getattr(Gossip, name)]
        if own:
            raise BadInput.at(
                "outer", f"{name_of(self)} has equations of its own, which it would break; use gossip"
            )
        self._outer = OuterOptimizer(self.outer)
        self.promises = replace(self.promises, keeps_change=self.blend > 0, lost_every=self.outer_every)

    @property
    def only_averages(self) -> bool:
        # Momentum would extrapolate variances; other schemes that derive from this one mix otherwise.
        return type(self) is Gossip and self.outer is None

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        if self._outer is not None:
            self._outer.turns = setup.chain.turns

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        if self._outer is not None:
            self._outer.begin(vector)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        if self._outer is not None:
            self._outer.rests = self._outer.rests and view.rests
            if self._steps_in(view.round) and not self._outer.rests:
                self._outer.step(mixed, view.round)
                for part in self._outer.due(view.round):
                    mixed[part] = self._outer.phi[part]
                    if self.blend:
                        mixed[part].lerp_(vector[part], self.blend)
        super().accept(vector, view, mixed)

    def _steps_in(self, round: int) -> bool:
        """Whether the outer optimizer makes a step in a round, unless the node has rested since the last."""
        return (round + 1) % self.outer_every == 0

    def adjust_change(self, change: Tensor, view: View) -> None:
        if self._outer is not None and self._steps_in(view.round) and not view.rests:
            for part in self._outer.due(view.round):
                change[part].mul_(self.blend)

    def check_chain(self, chain: Chain) -> None:
        if self.outer_every > 1 and len(chain.turns) > 1:
            raise BadInput("each round has the outer step of its fragment; leave outer_every out")
        if self.fill == "zero" and len(chain.turns) > 1:
            raise BadInput(
                "fill: zero would set the fragments to 0 that a round does not send; leave fill out"
            )
        if chain.corrects and chain.selects:
            raise BadInput(
                f"{name_of(self)} takes error feedback before transforms that round, not before one that "
                "selects; leave it out"
            )

    def preserves_mean(self, chain: Chain) -> bool:
        if self.outer is not None:
            return False
        if chain.rounds and (not chain.only_rounds or self.fill == "sent"):
            return False
        return not chain.selects or (self.fill == "own" and chain.same_coordinates)

    @property
    def watched_weight(self) -> float | None:
        return self._watched_weight

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        coefficients = self.chain.to_basis(vector)
        self._coefficients = coefficients if self.chain.basis else None
        sent = self.encode(coefficients, view, in_basis=True)
        # Where the chain rounds and does nothing else: there C(y_j) - C(y_i) keeps the mean.
        only_rounds = self.chain.only_rounds and self.fill != "sent"
        self._sent = next(iter(sent.values()), None) if only_rounds else None
        return sent

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        signals = self.models_to_mix(vector, incoming, view)
        local = signals[view.rank]
        are_sent: dict[int, Tensor] = {}
        if self.fill == "sent":
            are_sent = {j: ~signal.isnan() for j, signal in signals.items() if j != view.rank}
            signals |= {j: signals[j].nan_to_num(0.0, math.inf, -math.inf) for j in are_sent}
        # C(y_i), as the neighbors decode it, where the chain rounds.
        rounded = None if self._sent is None else self._as_received(self._sent, local, view)
        self._sent = None

        def terms(signals: Mapping[int, Tensor]) -> Terms:
            weights = self.weights(signals, view)
            if rounded is None:
                return ((weight, signals[j]) for j, weight in weights.items())
            differences = [(1.0, local), (weights[view.rank] - 1, rounded)]
            return differences + [(weight, signals[j]) for j, weight in weights.items() if j != view.rank]

        mixed = torch.empty_like(local) if self.chain.basis else out
        self.weighted_mix(signals, view, mixed, terms=terms)
        if self.fill == "sent":
            weights = self.weights(signals, view)
            total = torch.full_like(local, weights[view.rank], dtype=accumulator(local.dtype))
            for j in weights.keys() - {view.rank}:
                total.add_(are_sent[j], alpha=weights[j])
            # Where nobody sent a coordinate and the own weight is 0, the own value stays.
            mixed.copy_(torch.where(total > 0, mixed / total, local))
        if self.setup.watched:
            weights = self.weights(signals, view)
            self._watched_weight = sum(w for j, w in weights.items() if j in self.setup.watched)
        if self.chain.basis:
            out.copy_(self.chain.from_basis(mixed, view.context(view.rank)))

    def weights(self, signals: Mapping[int, Tensor], view: View) -> dict[int, float]:
        """The weights of these signals by rank, the node's own included; they sum to 1."""
        return live_weights(view.weights, view.rank, signals)

    def models_to_mix(self, vector: Tensor, incoming: Incoming, view: View) -> dict[int, Tensor]:
        """The models to mix by rank, the node's own first, in the chain's basis."""
        local = self.chain.to_basis(vector) if self._coefficients is None else self._coefficients
        self._coefficients = None
        fill = local if self.fill == "own" else None
        if self.fill == "sent":
            fill = torch.full_like(local, math.nan)
        return {view.rank: local, **self.decode(incoming, view, fill=fill, in_basis=True)}

    def _as_received(self, sent: Payload, local: Tensor, view: View) -> Tensor | None:
        """The local model as its neighbors decode it; None where it is not finite, so that they refuse it."""
        context = view.context(view.rank, view.rank, fill=local if self.fill == "own" else None)
        received = self.chain.decode_coefficients(sent.to(local.device), context)
        error, norm = (float(torch.linalg.vector_norm(x)) for x in (received - local, local))
        if not math.isfinite(error):
            return None
        if error > MOST_ERROR * norm:
            raise RunFailed(
                f"rank {view.rank}, round {view.round + 1}: the transforms are too coarse for models of "
                f"{name_of(self)}: they err by {error / norm:.2g} of its norm, and {MOST_ERROR} is "
                "the most; let them keep more, put error_feedback before them, or use choco"
            )
        return received
