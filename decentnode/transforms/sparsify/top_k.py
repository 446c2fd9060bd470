"""The largest values, or those that changed most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError, Role
from decentnode.core.registry import TRANSFORMS
from decentnode.core.vector import accumulator
from decentnode.errors import BadInput
from decentnode.options import Fraction, Positive, PositiveFloat, Probability
from decentnode.transforms.base import INDICES, VALUES, VECTOR, Context, Transform
from decentnode.transforms.sparsify.selection import (
    check_indices,
    count,
    filled,
    largest,
    positions,
    spans,
)

Fractions = Fraction | list[Fraction]
"""One fraction, or several of which each node draws one in each round."""


@TRANSFORMS.register("top_k")
@dataclass
class TopK(Transform):
    """Sends the k values that are largest, or changed most, with their indices (Stich et al., NeurIPS 2018).

    by magnitude:  the k largest |x_i|;  the default for differences and gradients
    by change:     the k largest |x_i - h_i|, then h_i <- x_i for those;   h_i: x_i when last shared;  the
                   default where the scheme sends models: small coordinates would never agree by magnitude
    by training:   the same, and h <- h + (m - x) where the mix replaces x by m
    by round:      the same with h <- m alone: the change of this round's local steps

    h starts as the signal that all nodes start from. So |x_i - h_i| is all change since x_i was last sent, by
    training and by mixing, or by training alone. Exactly k = max(1, round(fraction n)) are sent; of equal
    scores the lower index is sent. Of several fractions each node draws one in each round. From
    `metadata_cap` on a fraction sends all n values (Dhasade et al., ICDCS 2023, Alg. 1). Without indices
    travel all n values, also where rounding selects them all. `per_layer` selects k of each tensor of the
    model. `relative: e` ranks by |x_i - h_i| / (|x_i| + e).

    `random` adds that fraction of all n values, drawn among the others. With `random_below: b` only values
    that were sent in fewer than b r of the rounds before round r are drawn, from round 1 / b on.

    State except by magnitude: h, d floats; with `random_below` d counts. Where gaps are filled with the
    receiver's own values, a round moves the mean of all models. For models apart by normal noise and a tenth
    of the values, it moves by .16 of their rms distance from it on a ring of 8, and by .05 with 96 nodes of
    degree 4.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.SPARSE
    depends_on_signal: ClassVar = True
    wire: ClassVar = "(b + 4) k, k = (fraction + random) d"
    lossless = True
    state: ClassVar = ("_reference", "_times_sent")

    fraction: Fractions = 0.1
    by: Literal["magnitude", "change", "training", "round"] | None = None
    per_layer: bool = False
    metadata_cap: Fraction = 1.0
    fraction_from: tuple[tuple[Positive, Fractions], ...] = ()
    """Pairs of a round, counted from 0, and what replaces `fraction` from it on."""
    relative: PositiveFloat | None = None
    """Ranks changes in relation to |x_i| plus this number; null: by their size."""
    random: Probability = 0.0
    """The fraction of all values that are sent in addition, drawn at random among the others."""
    random_below: Probability = 0.0
    """Draws only values that were sent in a smaller share of the rounds; 0: any of the others."""

    def __post_init__(self) -> None:
        rounds = [round for round, _ in self.fraction_from]
        if rounds != sorted(set(rounds)):
            given = ", ".join(map(str, rounds))
            raise BadInput.at("fraction_from", f"must have its rounds in ascending order, not {given}")
        if self.random_below and not self.random:
            raise BadInput.at("random_below", "is for the values that `random` adds, and it adds none")

    @property
    def remembers(self) -> bool:
        """Returns True for the selection by a change, or by how often values were sent."""
        return self._by_change or self.random_below > 0

    @property
    def _by_change(self) -> bool:
        return self.of_models if self.by is None else self.by != "magnitude"

    @property
    def counts_rounds(self) -> bool:
        return bool(self.fraction_from) or self.random_below > 0

    @property
    def follows_mixing(self) -> bool:
        return self.by in ("training", "round")

    @property
    def same_coordinates(self) -> bool:
        return all(fraction >= self.metadata_cap for fraction in self._fractions)

    def layout(self, input_layout: Layout) -> Layout:
        n, dtype = self.dimension, input_layout.fields[0].dtype
        self._spans = spans(n, self.per_layer, self.parameters)
        self._reference = torch.zeros(n if self._by_change else 0, dtype=dtype)
        self._times_sent = torch.zeros(n if self.random_below else 0, dtype=torch.int32)
        fractions = self._fractions
        if not all(map(_listed, self._of_rounds)):
            raise BadInput("needs one fraction or more")
        coded = [sum(count(f, n) for _, n in self._spans) for f in fractions if not self._is_whole(f)]
        coded = [min(n, k + self._drawn_values) for k in coded]
        variable = len(fractions) > 1 or self.random_below > 0
        most = n if len(coded) < len(fractions) else max(coded)
        fields = [Field(VALUES, dtype, most, variable=variable)]
        if coded:
            fields.append(Field(INDICES, torch.int32, max(coded), variable=variable, role=Role.INDEX))
        return Layout(tuple(fields), self.emits)

    def begin(self, signal: Tensor) -> Tensor:
        if self._by_change:
            self._reference = signal.clone()
        return signal

    def encode(self, payload: Payload, context: Context) -> Payload:
        x, fraction = payload[VECTOR], self._drawn(context)
        if self._is_whole(fraction):
            if self._by_change:
                self._reference.copy_(x)
            self._times_sent += 1
            return self._packed(x, x.new_empty(0, dtype=torch.int32))
        score = (x - self._reference).abs_() if self._by_change else x.abs()
        if self.relative is not None:
            # A quotient of halves would be rounded to ties.
            score = score.to(accumulator(x.dtype)) / (x.abs().to(accumulator(x.dtype)) + self.relative)
        parts = [largest(score[i : i + n], count(fraction, n)).add_(i) for i, n in self._spans]
        indices = torch.cat(parts) if len(parts) != 1 else parts[0]
        if self.random:
            indices = self._with_random(indices, context)
        values = x.index_select(0, indices)
        if self._by_change:
            self._reference.index_copy_(0, indices, values)
        return self._packed(values, indices)

    def _with_random(self, indices: Tensor, context: Context) -> Tensor:
        """Returns the indices, ascending, and those of `random` others."""
        is_free = torch.ones(self.dimension, dtype=torch.bool, device=indices.device)
        is_free[indices] = False
        if self.random_below:
            self._times_sent = self._times_sent.to(indices.device)
            self._times_sent[indices] += 1
            # Before that round none was sent too rarely.
            has_begun = context.round * self.random_below > 1
            is_free &= (self._times_sent < context.round * self.random_below) & has_begun
        others = positions(is_free)
        drawn = context.generator("top_k_random").choice(
            others.numel(), min(self._drawn_values, others.numel()), replace=False
        )
        added = others[torch.from_numpy(drawn).to(others.device)]
        if self.random_below:
            self._times_sent[added] += 1
        return torch.cat([indices, added]).sort().values

    def mixed(self, signal: Tensor, mix: Tensor) -> None:
        if self.by == "training":
            self._reference += mix - signal
        elif self.by == "round":
            self._reference.copy_(mix)

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact for what was sent; PayloadError unless the indices ascend within the signal."""
        values, n = payload[VALUES], self.dimension
        indices = payload[INDICES] if self.output_layout.has_indices else values[:0]
        if indices.numel() or not any(map(self._is_whole, self._fractions)):
            check_indices(indices, values, n)
            return filled(self.input_layout, values, indices, fill=context.fill)
        if values.numel() != n:
            raise PayloadError(f"{values.numel()} values without indices where there are {n}")
        return Payload.dense(values.to(self.input_layout.fields[0].dtype))

    @property
    def _fractions(self) -> Sequence[float]:
        """The fractions of all rounds."""
        return [f for fractions in self._of_rounds for f in _listed(fractions)]

    @property
    def _of_rounds(self) -> list[Fractions]:
        return [self.fraction, *(later for _, later in self.fraction_from)]

    @property
    def _drawn_values(self) -> int:
        return round(self.random * self.dimension)

    def _is_whole(self, fraction: float) -> bool:
        """Whether all values are sent, and so no indices."""
        selected = sum(count(fraction, n) for _, n in self._spans)
        return fraction >= self.metadata_cap or selected == self.dimension

    def _drawn(self, context: Context) -> float:
        """The fraction of a round."""
        begun = [later for first, later in self.fraction_from if first <= context.round]
        fractions = _listed(begun[-1] if begun else self.fraction)
        if len(fractions) == 1:
            return fractions[0]
        return fractions[int(context.generator("top_k").random() * len(fractions))]

    def _packed(self, values: Tensor, indices: Tensor) -> Payload:
        return Payload.of(self.output_layout, {VALUES: values, INDICES: indices})


def _listed(fractions: Fractions) -> list[float]:
    return fractions if isinstance(fractions, list) else [fractions]
