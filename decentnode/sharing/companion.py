"""One number beside a signal in its payload, not touched by the chain."""

from dataclasses import dataclass

import torch

from decentnode.payload import Field, Layout, Payload


@dataclass(frozen=True)
class Companion:
    """The last field of a payload, of one element."""

    name: str
    dtype: torch.dtype

    def layout(self, inner: Layout) -> Layout:
        """The layout of a payload with its companion."""
        return Layout((*inner.fields, Field(self.name, self.dtype, 1)), inner.form)

    def join(self, payload: Payload, number: float) -> Payload:
        """A payload with its companion."""
        joined = Payload.empty(self.layout(payload.layout), payload.buffer.device, **payload.counts)
        joined.buffer[: payload.nbytes].copy_(payload.buffer)
        joined[self.name][0] = number
        return joined

    def split(self, joined: Payload, inner: Layout) -> tuple[Payload, float]:
        """The payload without its companion, as a view of the same memory, and the companion."""
        size = inner.spans(joined.counts)[1]
        return Payload(inner, joined.buffer[:size], joined.counts), joined[self.name].item()
