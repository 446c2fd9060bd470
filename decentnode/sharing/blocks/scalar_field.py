"""Further numbers in the payload of a signal, not touched by the chain."""

from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.core.payload import Field, Layout, Payload


@dataclass(frozen=True)
class ScalarField:
    """The last field of a payload, with a fixed number of elements."""

    name: str
    dtype: torch.dtype
    elements: int = 1

    def layout(self, inner_layout: Layout) -> Layout:
        """The layout of a payload with this field."""
        return Layout((*inner_layout.fields, Field(self.name, self.dtype, self.elements)), inner_layout.form)

    def join(self, payload: Payload, numbers: float | Tensor) -> Payload:
        """The payload with these numbers."""
        joined = Payload.empty(self.layout(payload.layout), payload.buffer.device, **payload.counts)
        joined.buffer[: payload.nbytes].copy_(payload.buffer)
        joined[self.name][:] = numbers
        return joined

    def split(self, joined: Payload, inner_layout: Layout) -> tuple[Payload, Tensor]:
        """The payload without its numbers, and the numbers, as views of the same memory."""
        size = inner_layout.spans(joined.counts)[1]
        return Payload(inner_layout, joined.buffer[:size], joined.counts), joined[self.name]
