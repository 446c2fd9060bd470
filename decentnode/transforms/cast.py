"""Half-precision values on the wire."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from decentnode.payload import Form, Layout, Payload, dense_layout
from decentnode.registry import TRANSFORMS
from decentnode.transforms.base import Context, Transform

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@TRANSFORMS.register("cast")
@dataclass
class Cast(Transform):
    """Rounds values to fp16 or bf16 on the wire (IEEE 754-2008, section 4.3.1; bfloat16 likewise).

    Error per value: at most 2^-11 (fp16) or 2^-8 (bf16) of its magnitude. In fp16, magnitudes over 65504
    become infinite, and those under 2^-14 have an error of at most 2^-25.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.QUANTIZED

    dtype: Literal["fp16", "bf16"] = "bf16"

    def layout(self, incoming: Layout) -> Layout:
        (field,) = incoming.fields
        return Layout(dense_layout(field.elements, DTYPES[self.dtype]).fields, self.emits)

    def encode(self, payload: Payload, context: Context) -> Payload:
        rounded = payload["vector"].to(DTYPES[self.dtype])
        return Payload(self.layout(payload.layout), rounded.view(torch.uint8))

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Leaves the values in half precision: mixing widens them in the pass it makes anyway."""
        return payload
