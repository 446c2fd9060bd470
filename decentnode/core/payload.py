"""What a neighbor receives in one round: one buffer, read through a Layout.

Both ends compute the Layout from the same settings. So nothing in a payload describes itself, and no received
byte can name a type, a shape or a class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

import torch
import xxhash
from torch import Tensor

ALIGNMENT = 8
COUNT_BYTES = 8
HOST = torch.device("cpu")


class Form(StrEnum):
    """The kind of numbers in a payload, so that a chain of transforms can be checked when it is built."""

    DENSE = "dense"
    SPARSE = "sparse"
    QUANTIZED = "quantized"
    BYTES = "bytes"
    MASKED = "masked"


class Role(StrEnum):
    """How the records count the bytes of a field."""

    VALUES = "payload"
    INDEX = "index"


class PayloadError(ValueError):
    """A buffer that does not fit its Layout, or has invalid content."""

    counted_as: ClassVar[str] = "payload"
    """The name under which records count the error."""


class NotFinite(PayloadError):
    """A payload with an infinity or NaN."""

    counted_as: ClassVar[str] = "not finite"


@dataclass(frozen=True)
class Field:
    """One named array of a payload; a scalar is a field of one element."""

    name: str
    dtype: torch.dtype
    elements: int
    """Number of elements; the maximum if `variable`."""
    variable: bool = False
    role: Role = Role.VALUES


@dataclass(frozen=True)
class Layout:
    """The named fields of a payload in wire order.

    A buffer starts with one little-endian 64-bit count for each variable field. Then the fields follow, each
    at a multiple of 8 bytes. A single fixed field is just its elements.
    """

    fields: tuple[Field, ...]
    form: Form = Form.DENSE

    @cached_property
    def hash(self) -> int:
        """32 bits that two ends compare before they read each other's payloads."""
        words = [f"{f.name}:{f.dtype}:{f.elements}:{f.variable}:{f.role}" for f in self.fields]
        return xxhash.xxh32_intdigest(f"{self.form}|{'|'.join(words)}".encode())

    @cached_property
    def variable(self) -> tuple[Field, ...]:
        """The fields whose length is part of the payload."""
        return tuple(f for f in self.fields if f.variable)

    @cached_property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The types of the fields, by name."""
        return {f.name: f.dtype for f in self.fields}

    @cached_property
    def has_indices(self) -> bool:
        """Whether some bytes are positions, not values."""
        return any(f.role is Role.INDEX for f in self.fields)

    @cached_property
    def max_bytes(self) -> int:
        """The size of the largest payload of this layout."""
        return self.spans({f.name: f.elements for f in self.fields})[1]

    def spans(self, counts: Mapping[str, int]) -> tuple[dict[str, tuple[int, int]], int]:
        """Returns offset and length in bytes of each field, and the total size, for given element counts."""
        return self._spans(counts) if self.variable else self._fixed_spans

    @cached_property
    def _fixed_spans(self) -> tuple[dict[str, tuple[int, int]], int]:
        return self._spans({})

    def _spans(self, counts: Mapping[str, int]) -> tuple[dict[str, tuple[int, int]], int]:
        offset = COUNT_BYTES * len(self.variable)
        spans = {}
        end = offset
        for f in self.fields:
            length = counts.get(f.name, f.elements) * f.dtype.itemsize
            spans[f.name] = (offset, length)
            end = offset + length
            offset = -(-end // ALIGNMENT) * ALIGNMENT
        return spans, end


@dataclass
class Payload:
    """One contiguous buffer (uint8, shape (bytes,)) with views by its Layout."""

    layout: Layout
    buffer: Tensor
    counts: dict[str, int] = field(default_factory=dict)
    _views: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def dense(cls, tensor: Tensor, name: str = "vector") -> "Payload":
        """Wraps a contiguous 1-D tensor without a copy."""
        return cls(dense_layout(tensor.numel(), tensor.dtype, name), as_bytes(tensor))

    @classmethod
    def empty(cls, layout: Layout, device: torch.device = HOST, /, **counts: int) -> "Payload":
        """Returns an unfilled payload in a device's memory; `counts`: the lengths of the variable fields."""
        for f in layout.variable:
            if not 0 <= counts[f.name] <= f.elements:
                raise PayloadError(f"field '{f.name}' takes 0..{f.elements} elements, got {counts[f.name]}")
        spans, size = layout.spans(counts)
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
        if layout.variable:
            numbers = buffer[: COUNT_BYTES * len(layout.variable)].view(torch.int64)
            for i, f in enumerate(layout.variable):
                numbers[i] = counts[f.name]
        for start, length in spans.values():
            # Padding is sent, too: it must not reveal old memory, and must be equal every time.
            end = start + length
            if end % ALIGNMENT:
                buffer[end : end + -end % ALIGNMENT] = 0
        return cls(layout, buffer, dict(counts))

    @classmethod
    def of(cls, layout: Layout, fields: Mapping[str, Tensor]) -> "Payload":
        """Returns a payload with copies of these 1-D tensors, each of its field's dtype.

        It is on their device; in host memory if they are on several.
        """
        counts = {f.name: fields[f.name].numel() for f in layout.variable}
        devices = {x.device for x in fields.values()}
        payload = cls.empty(layout, devices.pop() if len(devices) == 1 else HOST, **counts)
        for f in layout.fields:
            payload[f.name].copy_(fields[f.name])
        return payload

    @classmethod
    def parse(cls, layout: Layout, buffer: Tensor) -> "Payload":
        """Reads a received buffer without a copy; raises PayloadError if it does not fit the layout."""
        prefix = COUNT_BYTES * len(layout.variable)
        if buffer.numel() < prefix:
            raise PayloadError(
                f"{buffer.numel()} bytes are too few for the counts of {len(layout.variable)} fields"
            )
        counts = {}
        if prefix:
            numbers = buffer[:prefix].clone().view(torch.int64).tolist()
            for f, count in zip(layout.variable, numbers, strict=True):
                if not 0 <= count <= f.elements:
                    raise PayloadError(f"field '{f.name}' has {count} elements, allowed are 0..{f.elements}")
                counts[f.name] = count
        size = layout.spans(counts)[1]
        if buffer.numel() != size:
            raise PayloadError(f"{buffer.numel()} bytes where the layout needs {size}")
        return cls(layout, buffer, counts)

    def __getitem__(self, name: str) -> Tensor:
        """Returns the field's elements as a 1-D tensor; a view wherever the buffer's alignment allows it."""
        known = self._views.get(name)
        if known is not None:
            return known
        spans, _ = self.layout.spans(self.counts)
        start, length = spans[name]
        part = self.buffer[start : start + length]
        dtype = self.layout.dtypes[name]
        if part.data_ptr() % dtype.itemsize or part.storage_offset() % dtype.itemsize:
            part = part.clone()
        self._views[name] = part.view(dtype)
        return self._views[name]

    def to(self, device: torch.device) -> "Payload":
        """Returns the payload in that device's memory; itself if it is there already."""
        if self.buffer.device == device:
            return self
        return Payload(self.layout, self.buffer.to(device), self.counts)

    @cached_property
    def nbytes(self) -> int:
        """Bytes on the wire, without the header."""
        return self.buffer.numel()

    @cached_property
    def index_bytes(self) -> int:
        """The part of `nbytes` that is positions, not values."""
        if not self.layout.has_indices:
            return 0
        spans, _ = self.layout.spans(self.counts)
        return sum(spans[f.name][1] for f in self.layout.fields if f.role is Role.INDEX)


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns the memory of a contiguous 1-D tensor, also of empty ones of numpy, which torch cannot view."""
    return tensor.view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)


def dense_layout(elements: int, dtype: torch.dtype = torch.float32, name: str = "vector") -> Layout:
    """Returns the layout of a plain vector."""
    return Layout((Field(name, dtype, elements),))
