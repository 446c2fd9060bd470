"""A model's parameters as views of one contiguous tensor, in two slots used in turn.

While peers still read the slot that was sent, the mix is written into the other one, and then the parameters
become views of that. So a vector that is sent from where it was trained is never copied.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import isfinite
from typing import Literal

import torch
from torch import Tensor, nn

from decentnode.core.registry import guess
from decentnode.errors import BadInput, RunFailed

AdjustGradient = Callable[[Tensor, Tensor, int], None]
"""Changes the flat gradient in place, given (gradient, vector, step of the round)."""
Precision = Literal["float64", "float32", "bfloat16"]
"""The number format of a vector."""
DTYPES: dict[Precision, torch.dtype] = {
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16
}  # fmt: skip
COMPLEX_OF = {torch.float32: torch.complex64, torch.float64: torch.complex128}
"""The type of complex numbers whose parts have a format."""
MOST_NAMES = 8
"""Names of parameters in a message, at most."""
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Entry:
    """The place of one tensor of the model in the vector."""

    name: str
    shape: torch.Size
    """The shape of its numbers: a complex tensor has a last dimension of real and imaginary parts."""
    offset: int
    is_buffer: bool = False
    channels_last: bool = False
    is_complex: bool = False
    is_personal: bool = False
    """Whether it is this node's alone: no scheme sends or mixes it."""

    def view(self, flat: Tensor) -> Tensor:
        """Returns this tensor as a view of a whole vector."""
        part = flat[self.offset : self.offset + self.shape.numel()]
        if self.channels_last:
            outs, ins, height, width = self.shape
            return part.view(outs, height, width, ins).permute(0, 3, 1, 2)
        part = part.view(self.shape)
        return torch.view_as_complex(part) if self.is_complex else part

    @classmethod
    def of(
        cls, name: str, tensor: Tensor, offset: int, is_buffer: bool = False, channels_last: bool = False
    ) -> "Entry":
        """Returns the entry of a tensor; `channels_last`: real 4-D tensors have that memory order."""
        is_complex = tensor.is_complex()
        shape = torch.Size((*tensor.shape, 2)) if is_complex else tensor.shape
        permuted = channels_last and tensor.dim() == 4 and not is_complex
        return cls(name, shape, offset, is_buffer, permuted, is_complex)


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and offsets of everything in the vector, in the module's order, complex ones first.

    Personal parameters are last, so what a scheme is given is one contiguous part, and begins at 0.
    """

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
        """Returns this layout without buffers, which are last in the part that is shared."""
        return replace(self, entries=tuple(entry for entry in self.entries if not entry.is_buffer))

    @cached_property
    def shared(self) -> "ParameterLayout":
        """Returns the layout of what schemes are given: all but personal parameters."""
        return replace(self, entries=tuple(entry for entry in self.entries if not entry.is_personal))

    @cached_property
    def personal(self) -> "ParameterLayout":
        """Returns the personal parameters, at their places in the whole vector."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.is_personal))

    @cached_property
    def layers(self) -> dict[str, list[Entry]]:
        """The entries of each layer, by its name: that of a parameter up to its first number, or its module.

        So `blocks.3.mlp.weight` is in layer `blocks.3`, and `embedding.weight` in layer `embedding`.
        """
        layers: dict[str, list[Entry]] = {}
        for entry in self.entries:
            parts = entry.name.split(".")
            numbers = (i + 1 for i, part in enumerate(parts) if part.isdecimal())
            name = ".".join(parts[: next(numbers, len(parts) - 1)])
            layers.setdefault(name or entry.name, []).append(entry)
        return layers

    @cached_property
    def channels_last(self) -> bool:
        """Whether the module's 4-D weights have that memory order."""
        return any(entry.channels_last for entry in self.entries)

    @property
    def size(self) -> str:
        """Returns the number of parameters as text, with that of personal ones."""
        personal = f" ({self.personal.numel:,} personal)" if self.personal.entries else ""
        return f"{self.numel:,} parameters{personal}"

    def name_at(self, index: int) -> str:
        """Returns the module's name of the tensor that an element of the vector belongs to."""
        ends = [entry.offset + entry.shape.numel() for entry in self.entries]
        return next(
            (e.name for e, end in zip(self.entries, ends, strict=True) if index < end), f"element {index}"
        )

    @classmethod
    def of(
        cls, module: nn.Module, mix_buffers: bool = False, channels_last: bool = False,
        dtype: torch.dtype = torch.float32, personal: Sequence[str] = (),
    ) -> "ParameterLayout":  # fmt: skip
        """Returns the layout of a module's parameters and, if `mix_buffers`, of running statistics.

        `personal`: patterns for names of what stays with its node. Such parameters are last in the vector,
        and such buffers are not in it, as without `mix_buffers`.

        It never contains integer buffers (batch counters), whose average has no meaning; sparse or complex
        ones, and masks with infinities; or frozen parameters, equal on all nodes. `channels_last` stores
        4-D weights in that memory order, so that convolutions need no reordering. Raises BadInput.
        """
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        # Torch reads complex numbers from even places alone; the order of all others is the module's.
        trained.sort(key=lambda pair: not pair[1].is_complex())
        tensors: list[tuple[str, Tensor, bool]] = [(name, p, False) for name, p in trained]
        if mix_buffers:
            tensors += [(name, b, True) for name, b in module.named_buffers() if has_mean(b)]
        if not trained:
            raise BadInput.at("model", f"{type(module).__name__} has no parameter to train (requires_grad)")
        kept = _matching(module, tensors, personal)
        tensors = [t for t in tensors if t[0] not in kept] + [(n, p, False) for n, p in trained if n in kept]
        entries, offset = [], 0
        for name, tensor, is_buffer in tensors:
            if defect := _defect(tensor, dtype):
                raise BadInput.at("model", f"'{name}' is {defect}")
            entry = Entry.of(name, tensor, offset, is_buffer, channels_last)
            entries.append(replace(entry, is_personal=name in kept))
            offset += entry.shape.numel()
        return cls(tuple(entries), dtype)


def _matching(
    module: nn.Module, tensors: Sequence[tuple[str, Tensor, bool]], patterns: Sequence[str]
) -> frozenset[str]:
    """Returns the names of the tensors that patterns match under any of their names; raises BadInput."""
    aliases: dict[int, list[str]] = {}
    for name, tensor in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]:
        aliases.setdefault(id(tensor), []).append(name)
    kept: set[str] = set()
    for index, pattern in enumerate(patterns):
        found = {n for n, t, _ in tensors if any(fnmatchcase(a, pattern) for a in aliases[id(t)])}
        if not found:
            names = [name for name, _, _ in tensors]
            known = [*dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in names if "." in name), *names]
            hint = guess(pattern, known) or f" (known: {', '.join(known[:MOST_NAMES])})"
            outside = [n for named in aliases.values() for n in named if fnmatchcase(n, pattern)]
            why = f"no parameter matches '{pattern}'{hint}"
            if outside:
                why = f"'{outside[0]}' stays with its node anyway; leave it out"
            raise BadInput.at(f"sharing.personal[{index}]", why)
        kept |= found
    parameters = [(name, tensor) for name, tensor, is_buffer in tensors if not is_buffer]
    if kept.issuperset(name for name, _ in parameters):
        raise BadInput.at(
            "sharing.personal",
            "all parameters are personal, so nothing is left to share; use sharing.name: none",
        )
    if complex_one := next(
        (name for name, tensor in parameters if name in kept and tensor.is_complex()), None
    ):
        # Torch reads complex numbers from even places alone, and the shared part may have an odd length.
        raise BadInput.at(
            "sharing.personal", f"'{complex_one}' is complex; only real parameters can be personal"
        )
    return frozenset(kept)


def has_mean(buffer: Tensor) -> bool:
    """Whether the mean of such buffers of several nodes is of use."""
    return buffer.layout is torch.strided and buffer.is_floating_point() and bool(buffer.isfinite().all())


def _defect(tensor: Tensor, dtype: torch.dtype) -> str:
    """Returns why a tensor cannot be in a vector of a format, with the remedy; empty where it can."""
    if tensor.layout is not torch.strided:
        return "sparse, and the vector is dense: make it dense, or a buffer"
    wanted = COMPLEX_OF.get(dtype) if tensor.is_complex() else dtype
    if wanted is None:
        return f"{tensor.dtype}; there are no complex numbers of {dtype}: use training.dtype: float32"
    if tensor.dtype == wanted:
        return ""
    fits = next((n for n, dtype in DTYPES.items() if tensor.dtype in (dtype, COMPLEX_OF.get(dtype))), "")
    remedy = f"set training.dtype: {fits}, or call .to({wanted})" if fits else f"call .to({wanted})"
    return f"{tensor.dtype}; the vector is {dtype} (training.dtype), so {remedy}"


class ModuleTensors:
    """The tensors of a module that are in the vector, and their flat gradient.

    The vectors of several nodes may take turns with one module (`Vector.attach`). Then the gradient is that
    of the node whose turn it is, and buffers that are not mixed go with their node.
    """

    def __init__(self, module: nn.Module, layout: ParameterLayout, with_gradient: bool = True) -> None:
        """`layout`: that of this module; `with_gradient`: whether its gradients are views of the flat one."""
        self.module = module
        self.layout = layout
        self.vector: Vector | None = None
        """The vector whose turn it is."""
        self._locations = [
            location(module, entry.name, is_buffer=entry.is_buffer) for entry in layout.entries
        ]
        self.tensors = self.find_tensors()
        in_vector = {entry.name for entry in layout.entries}
        self._unmixed_locations = [
            location(module, name, is_buffer=True)
            for name, _ in module.named_buffers(remove_duplicate=False)
            if name not in in_vector
        ]
        if with_gradient:
            for entry, tensor in zip(layout.entries, self.tensors, strict=True):
                if not entry.is_buffer:
                    tensor.grad = entry.view(self.gradient)

    @cached_property
    def gradient(self) -> Tensor:
        """The flat gradient, shape (d,)."""
        return torch.zeros(self.layout.numel, dtype=self.layout.dtype, device=self.tensors[0].device)

    def gather_gradient(self) -> Tensor:
        """Makes the gradients of all tensors views of the flat one, with what they are; returns that."""
        for entry, tensor in zip(self.layout.entries, self.tensors, strict=True):
            if not entry.is_buffer:
                view = entry.view(self.gradient)
                if tensor.grad is None:
                    view.zero_()
                elif tensor.grad.layout is not torch.strided:
                    raise RunFailed(
                        f"the gradient of '{entry.name}' is sparse, and the scheme changes dense ones; leave "
                        "sparse=True out"
                    )
                elif not tensor.grad.is_set_to(view):
                    view.copy_(tensor.grad)
                tensor.grad = view
        return self.gradient

    def find_tensors(self) -> list[Tensor]:
        """The tensors that the module has now, which it may have replaced."""
        return [tensors.get(key) for tensors, key in self._locations]  # type: ignore[misc]

    def set_views(self, views: list[Tensor]) -> None:
        """Makes the tensors views of a vector."""
        for tensor, view in zip(self.tensors, views, strict=True):
            tensor.data = view

    def scatter_gradient(self) -> None:
        """Gives the tensors the flat gradient, which theirs are views of after `gather_gradient`."""

    def copy_into(self, views: list[Tensor]) -> bool:
        """Copies the tensors into a vector, if they cannot be views of it; returns whether that is so."""
        return False

    def unmixed_buffers(self) -> list[Tensor | None]:
        """The buffers that are not in the vector, as the module has them now."""
        return [tensors.get(key) for tensors, key in self._unmixed_locations]

    def set_unmixed_buffers(self, buffers: list[Tensor | None]) -> None:
        """Gives the module these buffers that are not in the vector."""
        for (tensors, key), buffer in zip(self._unmixed_locations, buffers, strict=True):
            tensors[key] = buffer


def location(module: nn.Module, name: str, is_buffer: bool) -> tuple[dict[str, Tensor | None], str]:
    """The dictionary of a module in which a tensor is, and its key there."""
    path, _, key = name.rpartition(".")
    part = module.get_submodule(path)
    return (part._buffers if is_buffer else part._parameters), key  # type: ignore[return-value]


class TwoSlots(ABC):
    """The values of tensors of a module, flat, in two slots used in turn."""

    def __init__(self, layout: ParameterLayout, slots: tuple[Tensor, Tensor]) -> None:
        """Both slots are 1-D float tensors of `layout.numel`."""
        self.layout = layout
        self._slots = slots
        self._slot = 0
        self._views = [[entry.view(slot) for entry in layout.entries] for slot in slots]

    @property
    def values(self) -> Tensor:
        """The current slot, shape (d,)."""
        return self._slots[self._slot]

    @property
    def spare(self) -> Tensor:
        """The slot for the next mix, shape (d,); its content is undefined."""
        return self._slots[1 - self._slot]

    def flip(self) -> None:
        """Makes the spare slot the current one."""
        self._slot = 1 - self._slot
        self.show()

    @abstractmethod
    def show(self) -> None:
        """Gives the module the values of the current slot."""


class Vector(TwoSlots):
    """The values of one node's model; the module's tensors are views of them while it is attached."""

    def __init__(
        self, module_tensors: ModuleTensors, slots: tuple[Tensor, Tensor], aside: Tensor | None = None
    ) -> None:
        """Copies the module's values into `slots[0]`.

        Attaches itself. Vectors that share a module are all made before the first of them changes. `aside`:
        memory for the copy that is trained instead of the model, by default made when it is needed.
        """
        super().__init__(module_tensors.layout, slots)
        # Made once: what is sent is known by the tensor that it lies in (`Chain.encode_coefficients`).
        self._shared = [slot[: self.layout.shared.numel] for slot in slots]
        self.module = module_tensors.module
        """The module whose tensors are views of it, while it is attached."""
        self._module_tensors = module_tensors
        self._aside: Tensor | None = None
        self._is_aside = False
        if aside is not None:
            self._set_aside(aside)
        self._buffers: list[Tensor | None] = []
        """Those that are not in the vector, while another vector is attached."""
        for tensor, view in zip(module_tensors.tensors, self._views[0], strict=True):
            view.copy_(tensor.detach())
        if module_tensors.vector is not None:
            self._buffers = [b if b is None else b.clone() for b in module_tensors.unmixed_buffers()]
        else:
            self._buffers = module_tensors.unmixed_buffers()
        self.attach()

    @property
    def shared(self) -> Tensor:
        """The part of the current model that a scheme sends and mixes: all but personal parameters."""
        return self._shared[self._slot]

    @property
    def shared_spare(self) -> Tensor:
        """The part of the spare slot for the mix of what a scheme shares; its content is undefined."""
        return self._shared[1 - self._slot]

    def keep_personal(self) -> None:
        """Copies the personal parameters into the spare slot, to the mix of the others."""
        end = self.layout.shared.numel
        if end < self.layout.numel:
            self.spare[end:].copy_(self.values[end:])

    @property
    def trained(self) -> Tensor:
        """The memory of the module's tensors: the model, or the copy that is trained instead."""
        return self.values if self._aside is None or not self._is_aside else self._aside

    @property
    def gradient(self) -> Tensor:
        """The flat gradient of the module, shape (d,)."""
        return self._module_tensors.gradient

    def gather_gradient(self) -> Tensor:
        """Makes the gradients of the module views of the flat one, with what they are; returns that."""
        return self._module_tensors.gather_gradient()

    def scatter_gradient(self) -> None:
        """Gives the module the flat gradient as `gather_gradient` has returned it, changed in place."""
        self._module_tensors.scatter_gradient()

    def tensors(self) -> list[Tensor]:
        """The tensors of the module that are in the vector, in the order of the layout's entries."""
        return self._module_tensors.tensors

    def attach(self) -> None:
        """Makes the module's tensors views of this vector, and gives the module this node's buffers."""
        tensors, before = self._module_tensors, self._module_tensors.vector
        if before is self:
            return
        if before is not None:
            before._buffers = tensors.unmixed_buffers()
        tensors.vector = self
        tensors.set_unmixed_buffers(self._buffers)
        tensors.set_views(self._active_views())

    def adopt_replaced(self) -> None:
        """Copies tensors that have got other memory into the vector, and makes them views again.

        A network may replace a buffer, or assign to `data` of a parameter. Raises RunFailed where it does not
        fit. The vector must be attached.
        """
        tensors, views = self._module_tensors.tensors, self._active_views()
        if self._module_tensors.copy_into(views):
            return
        for index, (tensor, view) in enumerate(zip(self._module_tensors.find_tensors(), views, strict=True)):
            is_same = tensor is tensors[index]
            if is_same and tensor.is_set_to(view):
                continue
            entry = self.layout.entries[index]
            if not is_same and not entry.is_buffer:
                # Its gradient and its optimizer are those of the first one.
                raise RunFailed.at(
                    "model", f"a step replaces the parameter '{entry.name}' by another one; write to its data"
                )
            if misfit := adopt(tensor, view):
                remedy = "; leave training.mix_buffers out" if entry.is_buffer else ""
                raise RunFailed.at("model", f"'{entry.name}' {misfit} after a step{remedy}")
            tensors[index] = tensor

    def step_aside(self) -> None:
        """Makes a copy of the model the one that is trained; `values` does not change."""
        if self._aside is None:
            self._set_aside(torch.empty_like(self.values))
        self._aside.copy_(self.values)  # type: ignore[union-attr]
        self._is_aside = True
        self.show()

    @property
    def active(self) -> tuple[int, bool]:
        """The number of the current slot, and whether the trained copy is in use."""
        return self._slot, self._is_aside

    def activate(self, slot: int, is_aside: bool) -> None:
        """Takes over what is `active` of this vector in the process that has made this one by a fork.

        Both are views of the same memory, if that is shared.
        """
        if self.active != (slot, is_aside):
            self._slot, self._is_aside = slot, is_aside
            self.show()

    def rejoin(self, own_weight: float, adjust_change: Callable[[Tensor], None] | None = None) -> None:
        """Adds the change of the copy to the spare slot: spare <- spare + (copy - values).

        `adjust_change` changes the shared part of that change first, in place.

        Buffers are averages of what a node has seen, and no gradient changes them. Their change is weighted
        by the node's own weight in the mix, as if it had been mixed: so a variance stays positive.
        """
        assert self._aside is not None, "step_aside comes first"
        change = self._aside.sub_(self.values)
        for entry in self.layout.entries:
            if entry.is_buffer:
                entry.view(change).mul_(own_weight)
        if adjust_change is not None:
            adjust_change(change[: self.layout.shared.numel])
        self.spare.add_(change)
        self._is_aside = False

    def _set_aside(self, memory: Tensor) -> None:
        self._aside, self._views_aside = memory, [entry.view(memory) for entry in self.layout.entries]

    def _active_views(self) -> list[Tensor]:
        return self._views_aside if self._is_aside else self._views[self._slot]

    def show(self) -> None:
        """Makes the module's tensors views of the current slot, or of the trained copy, if it is attached."""
        if self._module_tensors.vector is self:
            self._module_tensors.set_views(self._active_views())


def adopt(tensor: Tensor | None, view: Tensor) -> str:
    """Copies a tensor that has got other memory into its view, and makes it that view again.

    Returns how they differ where the tensor no longer fits.
    """
    began, now = (
        "none" if x is None else f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in (view, tensor)
    )
    if tensor is None or now != began:
        return f"began as {began}, and is {now}"
    view.copy_(tensor.detach())
    tensor.data = view
    return ""


def is_finite(x: Tensor) -> bool:
    """Whether all elements are finite; checks single elements only where their sum is not finite."""
    return isfinite(float(x.sum())) or bool(x.isfinite().all())


def first_not_finite(x: Tensor) -> tuple[int, float] | None:
    """Returns index and value of the first element that is not finite, if there is any, of shape (d,)."""
    if is_finite(x):
        return None
    index = int((~x.isfinite()).nonzero()[0])
    return index, float(x[index])


def describe_not_finite(x: Tensor, layout: ParameterLayout | None = None, start: int = 0) -> str:
    """Returns the first element that is not finite, and whose it is; empty where all are finite.

    `layout`: that of the vector in which `x` begins at `start`, where there is one.
    """
    if (found := first_not_finite(x)) is None:
        return ""
    index, value = found[0] + start, found[1]
    return f"{value} in {layout.name_at(index) if layout else f'element {index}'}"


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype for sums of that dtype, also kept between rounds: float32 at least."""
    return torch.float32 if dtype in HALVES else dtype


def needs_float32(dtype: torch.dtype) -> str:
    """Returns the message about a part that does not work in a 16-bit format."""
    name = str(dtype).removeprefix("torch.")
    return f"needs the precision of float32, not {name}; set training.dtype: float32, and cast for the wire"
