"""A model's parameters as views of one contiguous tensor, in two slots used in turn.

While peers still read the slot that was sent, the mix is written into the other one, and then the parameters
become views of that. So a vector that is sent from where it was trained is never copied.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from decentnode.errors import BadInput

AdjustGradient = Callable[[Tensor, Tensor, int], None]
"""Changes the flat gradient in place, given (gradient, vector, step of the round)."""
Precision = Literal["float64", "float32", "bfloat16"]
"""The number format of a vector."""
DTYPES: dict[Precision, torch.dtype] = {
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16
}  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Entry:
    """The place of one tensor of the model in the vector."""

    name: str
    shape: torch.Size
    offset: int
    is_buffer: bool = False
    channels_last: bool = False

    def view(self, flat: Tensor) -> Tensor:
        """This tensor as a view of a whole vector."""
        part = flat[self.offset : self.offset + self.shape.numel()]
        if self.channels_last:
            outs, ins, height, width = self.shape
            return part.view(outs, height, width, ins).permute(0, 3, 1, 2)
        return part.view(self.shape)


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and offsets of everything in the vector, in the module's order."""

    entries: tuple[Entry, ...]
    dtype: torch.dtype = torch.float32

    @cached_property
    def numel(self) -> int:
        """The length d of the vector."""
        return sum(entry.shape.numel() for entry in self.entries)

    @property
    def nbytes(self) -> int:
        """The bytes of the vector."""
        return self.numel * self.dtype.itemsize

    @cached_property
    def parameters(self) -> "ParameterLayout":
        """This layout without buffers, which are always last in the vector."""
        return replace(self, entries=tuple(entry for entry in self.entries if not entry.is_buffer))

    @cached_property
    def channels_last(self) -> bool:
        """Whether the module's 4-D weights have that memory order."""
        return any(entry.channels_last for entry in self.entries)

    def name_at(self, index: int) -> str:
        """The module's name of the tensor that an element of the vector belongs to."""
        ends = [entry.offset + entry.shape.numel() for entry in self.entries]
        return next(
            (e.name for e, end in zip(self.entries, ends, strict=True) if index < end), f"element {index}"
        )

    @classmethod
    def of(
        cls, module: nn.Module, mix_buffers: bool = False, channels_last: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> "ParameterLayout":  # fmt: skip
        """The layout of a module's parameters and, if `mix_buffers`, its float buffers (running statistics).

        It never contains integer buffers (batch counters), whose average has no meaning, or frozen
        parameters, which are equal on all nodes. `channels_last` stores 4-D weights in that memory order, so
        that convolutions need no reordering.
        """
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        tensors: list[tuple[str, Tensor, bool]] = [(name, p, False) for name, p in trained]
        if mix_buffers:
            tensors += [(name, b, True) for name, b in module.named_buffers() if b.is_floating_point()]
        entries, offset = [], 0
        for name, tensor, is_buffer in tensors:
            entries.append(Entry(name, tensor.shape, offset, is_buffer, channels_last and tensor.dim() == 4))
            offset += tensor.numel()
            if tensor.dtype != dtype:
                raise BadInput(
                    f"model: '{name}' is {tensor.dtype}; the vector is {dtype} (training.dtype), so call "
                    f".to({dtype})"
                )
        return cls(tuple(entries), dtype)


class Vector:
    """The values and the gradient of one model, both flat; the module's tensors are views of them."""

    def __init__(self, module: nn.Module, layout: ParameterLayout, slots: tuple[Tensor, Tensor]) -> None:
        """Moves the module's values into `slots[0]`; both slots are 1-D float tensors of `layout.numel`."""
        self.layout = layout
        self._slots = slots
        self._current = 0
        self._aside: Tensor | None = None
        self._is_aside = False
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        self._tensors = [tensors[entry.name] for entry in layout.entries]
        self._views = [[entry.view(slot) for entry in layout.entries] for slot in slots]
        self.gradient = torch.zeros_like(slots[0])
        for tensor, view in zip(self._tensors, self._views[0], strict=True):
            view.copy_(tensor.detach())
        self._look_at(self._views[0])
        for entry, tensor in zip(layout.entries, self._tensors, strict=True):
            if not entry.is_buffer:
                tensor.grad = entry.view(self.gradient)

    @property
    def values(self) -> Tensor:
        """The current model, shape (d,)."""
        return self._slots[self._current]

    @property
    def spare(self) -> Tensor:
        """The slot for the next mix, shape (d,); its content is undefined."""
        return self._slots[1 - self._current]

    @property
    def trained(self) -> Tensor:
        """The memory of the module's tensors: the model, or the copy that is trained beside it."""
        return self.values if self._aside is None or not self._is_aside else self._aside

    def flip(self) -> None:
        """Makes the spare slot the model."""
        self._current = 1 - self._current
        self._look_at(self._views[self._current])

    def step_aside(self) -> None:
        """Makes the module's tensors views of a copy of the model; `values` does not change."""
        if self._aside is None:
            self._aside = torch.empty_like(self.values)
            self._views_aside = [entry.view(self._aside) for entry in self.layout.entries]
        self._aside.copy_(self.values)
        self._is_aside = True
        self._look_at(self._views_aside)

    def rejoin(self, own_weight: float) -> None:
        """Adds the change of the copy to the spare slot: spare <- spare + (copy - values).

        Buffers are averages of what a node has seen, and no gradient changes them. Their change is weighted
        by the node's own weight in the mix, as if it had been mixed: so a variance stays positive.
        """
        assert self._aside is not None, "step_aside comes first"
        change = self._aside.sub_(self.values)
        for entry in self.layout.entries:
            if entry.is_buffer:
                entry.view(change).mul_(own_weight)
        self.spare.add_(change)
        self._is_aside = False

    def _look_at(self, views: list[Tensor]) -> None:
        for tensor, view in zip(self._tensors, views, strict=True):
            tensor.data = view


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype for sums of that dtype, also kept between rounds: float32 at least."""
    return torch.float32 if dtype in HALVES else dtype


def needs_float32(dtype: torch.dtype) -> str:
    """The message about a part that does not work in a 16-bit format."""
    name = str(dtype).removeprefix("torch.")
    return f"needs the precision of float32, not {name}; set training.dtype: float32, and cast for the wire"
