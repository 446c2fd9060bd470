"""The largest values, or those that changed most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError, Role
from decentnode.core.registry import TRANSFORMS
from decentnode.errors import BadInput
from decentnode.options import Fraction
from decentnode.transforms.base import INDICES, VALUES, VECTOR, Context, Transform
from decentnode.transforms.sparsify.selection import (
    check_indices,
    count,
    filled,
    largest,
    spans,
)


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
    model.

    State except by magnitude: h, d floats. Where gaps are filled with the receiver's own values, a round
    moves the mean of all models. For models apart by normal noise and a tenth of the values, it moves by .16
    of their rms distance from it on a ring of 8, and by .05 with 96 nodes of degree 4.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.SPARSE
    depends_on_signal: ClassVar = True
    wire: ClassVar = "(b + 4) k, k = fraction d"
    lossless = True
    state: ClassVar = ("_reference",)

    fraction: Fraction | list[Fraction] = 0.1
    by: Literal["magnitude", "change", "training", "round"] | None = None
    per_layer: bool = False
    metadata_cap: Fraction = 1.0

    @property
    def remembers(self) -> bool:
        """Returns True for the selection by a change."""
        return self.of_models if self.by is None else self.by != "magnitude"

    @property
    def follows_mixing(self) -> bool:
        return self.by in ("training", "round")

    @property
    def same_coordinates(self) -> bool:
        return all(fraction >= self.metadata_cap for fraction in self._fractions)

    def layout(self, input_layout: Layout) -> Layout:
        n, dtype = self.dimension, input_layout.fields[0].dtype
        self._spans = spans(n, self.per_layer, self.parameters)
        self._reference = torch.zeros(n if self.remembers else 0, dtype=dtype)
        fractions = self._fractions
        if not fractions:
            raise BadInput("needs one fraction or more")
        coded = [sum(count(f, n) for _, n in self._spans) for f in fractions if not self._is_whole(f)]
        variable = len(fractions) > 1
        most = n if len(coded) < len(fractions) else max(coded)
        fields = [Field(VALUES, dtype, most, variable=variable)]
        if coded:
            fields.append(Field(INDICES, torch.int32, max(coded), variable=variable, role=Role.INDEX))
        return Layout(tuple(fields), self.emits)

    def begin(self, signal: Tensor) -> Tensor:
        if self.remembers:
            self._reference = signal.clone()
        return signal

    def encode(self, payload: Payload, context: Context) -> Payload:
        x, fraction = payload[VECTOR], self._drawn(context)
        if self._is_whole(fraction):
            if self.remembers:
                self._reference.copy_(x)
            return self._packed(x, x.new_empty(0, dtype=torch.int32))
        score = (x - self._reference).abs_() if self.remembers else x.abs()
        parts = [largest(score[i : i + n], count(fraction, n)).add_(i) for i, n in self._spans]
        indices = torch.cat(parts) if len(parts) != 1 else parts[0]
        values = x.index_select(0, indices)
        if self.remembers:
            self._reference.index_copy_(0, indices, values)
        return self._packed(values, indices)

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
        return self.fraction if isinstance(self.fraction, list) else (self.fraction,)

    def _is_whole(self, fraction: float) -> bool:
        """Whether all values are sent, and so no indices."""
        selected = sum(count(fraction, n) for _, n in self._spans)
        return fraction >= self.metadata_cap or selected == self.dimension

    def _drawn(self, context: Context) -> float:
        if len(self._fractions) == 1:
            return self._fractions[0]
        return self._fractions[int(context.generator("top_k").random() * len(self._fractions))]

    def _packed(self, values: Tensor, indices: Tensor) -> Payload:
        return Payload.of(self.output_layout, {VALUES: values, INDICES: indices})
