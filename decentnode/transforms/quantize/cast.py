"""Half-precision values on the wire."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from decentnode.core.payload import Form, Layout, Payload
from decentnode.core.registry import TRANSFORMS
from decentnode.transforms.base import Context, Transform, passed_on, replaced, values_field

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@TRANSFORMS.register(
    "cast",
    "half",
    "half_precision",
    fp16="dtype: fp16",
    float16="dtype: fp16",
    bf16="dtype: bf16",
    bfloat16="dtype: bf16",
)
@dataclass
class Cast(Transform):
    """Rounds values to fp16 or bf16 on the wire (IEEE 754-2008, section 4.3.1; bfloat16 likewise).

    Error per value: at most 2^-11 (fp16) or 2^-8 (bf16) of its magnitude. In fp16, magnitudes over 65504
    become infinite, and those under 2^-14 have an error of at most 2^-25.
    """

    by_coordinate: ClassVar = True
    accepts: ClassVar = frozenset({Form.DENSE, Form.SPARSE})
    emits: ClassVar = Form.QUANTIZED
    wire: ClassVar = "2 d"

    dtype: Literal["fp16", "bf16"] = "bf16"

    def layout(self, input_layout: Layout) -> Layout:
        field = values_field(input_layout)
        return replaced(input_layout, field.name, replace(field, dtype=DTYPES[self.dtype]), form=self.emits)

    def encode(self, payload: Payload, context: Context) -> Payload:
        outgoing, name = self.layout(payload.layout), values_field(payload.layout).name
        rounded = payload[name].to(DTYPES[self.dtype])
        if len(outgoing.fields) == 1 and not outgoing.variable:
            return Payload(outgoing, rounded.view(torch.uint8))
        return Payload.of(outgoing, {**passed_on(payload, outgoing), name: rounded})

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Leaves the values in half precision: mixing converts them in its own pass over memory."""
        return payload
