"""Every value above a bound."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from decentnode.core.payload import Field, Form, Layout, Payload, Role
from decentnode.core.registry import TRANSFORMS
from decentnode.errors import BadInput
from decentnode.options import NonNegativeFloat
from decentnode.transforms.base import INDICES, VALUES, VECTOR, Context, Transform
from decentnode.transforms.sparsify.selection import check_indices, filled, positions


@TRANSFORMS.register("threshold")
@dataclass
class Threshold(Transform):
    """Sends all values over a bound, with their indices (hard threshold: Sahu et al., NeurIPS 2021).

    sent: all i with |x_i| > value;   `relative`: with |x_i| > value max_j |x_j|

    The number of values depends on the signal. All d values need no indices. Where gaps are filled with
    zeros, no value has a larger error than the bound.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.SPARSE
    depends_on_signal: ClassVar = True
    wire: ClassVar = "b + 4 per value over the bound"
    lossless = True

    value: NonNegativeFloat
    relative: bool = False

    def layout(self, input_layout: Layout) -> Layout:
        if self.relative and self.value >= 1:
            raise BadInput(f"would never send anything: relative to the largest, {self.value} is not below 1")
        n, dtype = self.dimension, input_layout.fields[0].dtype
        fields = (
            Field(VALUES, dtype, n, variable=True),
            Field(INDICES, torch.int32, n, variable=True, role=Role.INDEX),
        )
        return Layout(fields, self.emits)

    def encode(self, payload: Payload, context: Context) -> Payload:
        x = payload[VECTOR]
        magnitude = x.abs()
        scale = float(magnitude.max()) if self.relative and x.numel() else 1.0
        indices = positions(magnitude > self.value * scale)
        if indices.numel() == self.dimension:
            return Payload.of(self.output_layout, {VALUES: x, INDICES: indices[:0]})
        return Payload.of(self.output_layout, {VALUES: x.index_select(0, indices), INDICES: indices})

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact for what was sent; PayloadError unless the indices ascend within the signal."""
        values, indices = payload[VALUES], payload[INDICES]
        if values.numel() == self.dimension and not indices.numel():
            return Payload.dense(values.to(self.input_layout.fields[0].dtype))
        check_indices(indices, values, self.dimension)
        return filled(self.input_layout, values, indices, fill=context.fill)
