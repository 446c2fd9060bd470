"""A module's tensors in buckets: views of flat blocks that neighbors read in place.

Every block has two slots that take turns: while neighbors still read the one that was sent, the next model is
written into the other. The order is usually that of the gradients: the last registered tensor first. It
follows from the module alone, so all ranks use the same order without communication.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from decentnode.core.payload import Payload
from decentnode.core.vector import Entry, ParameterLayout, TwoSlots, adopt, has_mean, location
from decentnode.errors import BadInput

ALIGNMENT = 64
"""Each tensor starts at a multiple of so many bytes, the size of a cache line."""
LEAST_BYTES = 1 << 16
"""The least size of a slot: the initial broadcast sends its pieces through it."""
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Bucket(ParameterLayout):
    """The tensors of a bucket, and their places in a slot; offsets count elements of `dtype`."""

    start: int
    """The first byte of the bucket in a slot."""
    is_buffers: bool
    """Whether it holds copies of buffers; a forward pass may write to the buffers themselves at any time."""

    @cached_property
    def numel(self) -> int:
        """The length, with the gaps between the tensors, which are zero on all ranks and stay zero."""
        last, size = self.entries[-1], self.dtype.itemsize
        return _aligned((last.offset + last.shape.numel()) * size) // size


@dataclass(frozen=True)
class Plan:
    """All buckets of a module."""

    buckets: tuple[Bucket, ...]

    @property
    def nbytes(self) -> int:
        """The length of a slot."""
        return max(LEAST_BYTES, sum(_aligned(bucket.nbytes) for bucket in self.buckets))

    @classmethod
    def of(cls, module: nn.Module, most_bytes: int, with_buffers: bool) -> "Plan":
        """Plans trainable parameters in buckets closed at `most_bytes`, then float buffers; raises BadInput.

        Sparse buffers, and those that are not finite, such as masks for attention, have no average: they are
        left out.
        """
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if nn.parameter.is_lazy(tensor):
                raise BadInput(
                    f"'{name}' has no shape yet; run the module once on a batch before it is wrapped"
                )
        for buffer in module.buffers():
            if (
                buffer.layout is torch.strided and 0 in buffer.stride()
            ):  # made by `expand`, so it is not writable
                buffer.data = buffer.contiguous()
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        for name, tensor in parameters:
            if tensor.layout is not torch.strided:
                raise BadInput(f"parameter '{name}' is sparse; make it dense, or a buffer")
            if number_type(tensor) not in FLOATS:
                raise BadInput(f"parameter '{name}' is {tensor.dtype}; those that can be averaged are floats")
        if len({tensor.device for _, tensor in parameters}) > 1:
            raise BadInput("the parameters are on several devices; a replica lives on one")
        buffers = [(name, b) for name, b in module.named_buffers() if b.dtype in FLOATS and has_mean(b)]
        buckets: list[Bucket] = []
        for tensors, is_buffers in ((parameters, False), (buffers if with_buffers else [], True)):
            for group in _groups(list(reversed(tensors)), most_bytes):
                buckets.append(_bucket(group, _end(buckets), is_buffers))
        return cls(tuple(buckets))

    def describe(self) -> str:
        """Returns all that two ranks must agree on to read each other's blocks."""
        return "\n".join(
            f"{e.name} {tuple(e.shape)} {bucket.dtype} {bucket.start}+{e.offset} {e.channels_last}"
            for bucket in self.buckets
            for e in bucket.entries
        )


def number_type(tensor: Tensor) -> torch.dtype:
    """The type of a tensor's numbers; of complex ones that of their parts."""
    return tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype


def _groups(tensors: list[tuple[str, Tensor]], most_bytes: int) -> list[list[tuple[str, Tensor]]]:
    """Groups consecutive tensors of one type, until they are `most_bytes` long."""
    groups: list[list[tuple[str, Tensor]]] = []
    open_groups: dict[torch.dtype, tuple[list[tuple[str, Tensor]], int]] = {}
    for name, tensor in tensors:
        size = tensor.numel() * tensor.dtype.itemsize
        dtype = number_type(tensor)
        group, used = open_groups.get(dtype, ([], most_bytes))
        if used >= most_bytes:
            group, used = [], 0
            groups.append(group)
        group.append((name, tensor))
        open_groups[dtype] = group, used + size
    return groups


def _bucket(tensors: list[tuple[str, Tensor]], start: int, is_buffers: bool) -> Bucket:
    dtype = number_type(tensors[0][1])
    entries, offset = [], 0
    for name, tensor in tensors:
        entries.append(Entry.of(name, tensor, offset, is_buffers, _is_channels_last(tensor)))
        offset += _aligned(entries[-1].shape.numel() * dtype.itemsize) // dtype.itemsize
    return Bucket(tuple(entries), dtype, start=start, is_buffers=is_buffers)


def _is_channels_last(tensor: Tensor) -> bool:
    if tensor.dim() != 4 or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last)


def _end(buckets: Sequence[Bucket]) -> int:
    return buckets[-1].start + _aligned(buckets[-1].nbytes) if buckets else 0


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class BucketMemory(TwoSlots):
    """One bucket in memory."""

    layout: Bucket

    def __init__(self, bucket: Bucket, module: nn.Module, slots: tuple[Tensor, Tensor]) -> None:
        """Moves the tensors into the first slot; `slots` are bytes, long enough for all buckets."""
        end = bucket.start + bucket.nbytes
        first, second = (slot[bucket.start : end].view(bucket.dtype).zero_() for slot in slots)
        super().__init__(bucket, (first, second))
        self._payloads = (Payload.dense(first), Payload.dense(second))
        self._locations = [location(module, entry.name, entry.is_buffer) for entry in bucket.entries]
        self.tensors = self._current_tensors()
        self._changed = set[str]()
        """Names of buffers that no longer fit."""
        self.adopt_replaced()
        self.show()

    @property
    def payload(self) -> Payload:
        """Returns `values` as a payload."""
        return self._payloads[self._slot]

    def adopt_replaced(self, spare: bool = False) -> None:
        """Copies the tensors that are not views of the current slot, or the spare one, into it.

        Buffers never are, and a forward pass may have replaced them; one that got another shape stays with
        its rank. A parameter may have other memory through its `data`, as after torch's
        `vector_to_parameters`; afterwards it is a view again. Raises BadInput if it no longer fits.
        """
        views = self._views[self._slot ^ spare]
        if self.layout.is_buffers:
            self.tensors = self._current_tensors()
        for entry, tensor, view in zip(self.layout.entries, self.tensors, views, strict=True):
            if self.layout.is_buffers:
                if self._fits(entry, tensor, view):
                    view.copy_(tensor.detach())
            elif not tensor.is_set_to(view) and (misfit := adopt(tensor, view)):
                raise BadInput(f"parameter '{entry.name}' {misfit}; wrap it again")

    def _fits(self, entry: Entry, buffer: Tensor | None, view: Tensor) -> bool:
        """Whether a buffer is exchanged; warns once where it no longer is."""
        if buffer is not None and buffer.shape == view.shape and buffer.dtype == view.dtype:
            return True
        if entry.name not in self._changed:
            self._changed.add(entry.name)
            warnings.warn(
                f"buffer '{entry.name}' got another shape, so it is no part of averages on this rank any "
                "more; buffers='local' leaves out all",
                stacklevel=2,
            )
        return False

    def _current_tensors(self) -> list[Tensor]:
        return [tensors.get(key) for tensors, key in self._locations]  # type: ignore[misc]

    def show(self) -> None:
        """Points the module to the current slot: parameters are views of it, buffers get copies."""
        views = self._views[self._slot]
        for entry, tensor, view in zip(self.layout.entries, self.tensors, views, strict=True):
            if self.layout.is_buffers:
                if self._fits(entry, tensor, view):
                    tensor.copy_(view)
            else:
                tensor.data = view
        if not self.layout.is_buffers:
            # Makes a second backward through an old graph an error, as after any in-place change.
            torch.autograd.graph.increment_version(self.tensors)
