"""Transforms in sequence, checked when the chain is built."""

from collections.abc import Sequence

import torch
from torch import Tensor

from decentnode.errors import BadInput
from decentnode.payload import Form, Layout, Payload, dense_layout
from decentnode.transforms.base import Context, Transform


class Chain:
    """Encodes a flat signal through all transforms in order, and decodes it in reverse order."""

    def __init__(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """Raises BadInput when a transform cannot take what its predecessor emits."""
        self.transforms = tuple(transforms)
        check_order(self.transforms)
        self._recent: list[tuple[Tensor, Payload]] = []
        self.layouts = [dense_layout(elements, dtype)]
        for transform in self.transforms:
            self.layouts.append(transform.layout(self.layouts[-1]))

    @property
    def layout(self) -> Layout:
        """What the chain puts on the wire."""
        return self.layouts[-1]

    def encode(self, signal: Tensor, context: Context) -> Payload:
        """The payload of a flat signal; without transforms it is the signal itself, not a copy."""
        if not self.transforms:
            return self._wrapped(signal)
        payload = Payload(self.layouts[0], signal.view(torch.uint8))
        for transform in self.transforms:
            payload = transform.encode(payload, context)
        return payload

    def _wrapped(self, signal: Tensor) -> Payload:
        """A payload around the signal's memory; of the two slots that take turns it is made only once."""
        for known, payload in self._recent:
            if known is signal:
                return payload
        payload = Payload(self.layouts[0], signal.view(torch.uint8))
        self._recent = [*self._recent[-1:], (signal, payload)]
        return payload

    def decode(self, payload: Payload, context: Context) -> Tensor:
        """The flat signal of a payload, without a copy where no transform needs one."""
        for transform in reversed(self.transforms):
            payload = transform.decode(payload, context)
        return payload["vector"]


def check_order(transforms: Sequence[Transform]) -> None:
    """Raises BadInput, naming both neighbors, when some transform cannot take what comes before it."""
    form, before = Form.DENSE, "the signal"
    for index, transform in enumerate(transforms):
        name = type(transform).__name__
        if form not in transform.accepts:
            allowed = " or ".join(sorted(transform.accepts))
            raise BadInput(f"transforms[{index}] {name} takes {allowed} but {before} gives {form}")
        form, before = transform.emits, name
