"""The common part of all byte coders: each field is compressed separately and keeps its name and role."""

import importlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.errors import BadInput
from decentnode.transforms.base import Context, Field, Form, Layout, Payload, Transform

Bytes = NDArray[np.uint8]
RAW, CODED = 0, 1
CPU = torch.device("cpu")
STEP = 1 << 14
"""Elements per step of the byte shuffle, which fit in the first-level cache."""


@dataclass
class ByteCoder(Transform):
    """Makes bytes of every field: its code and a last byte 1, or itself and a last byte 0 if that is shorter.

    So a field of n bytes takes at most n + 1, and an empty one none. A code is never decoded to more bytes
    than the field has in the layout.
    """

    accepts: ClassVar = frozenset(Form) - {Form.MASKED, Form.BYTES}
    emits: ClassVar = Form.BYTES
    wire: ClassVar = "depends on the content, at most 16 more for each field"
    lossless = True

    @abstractmethod
    def compressed(self, content: Bytes, field: Field) -> bytes | None:
        """The code of a field's bytes, at least one; None for fields that it cannot code."""

    @abstractmethod
    def decompressed(self, code: Bytes, field: Field) -> Bytes:
        """The inverse of `compressed`; raises PayloadError when there are more bytes than `field` has."""

    def layout(self, input_layout: Layout) -> Layout:
        fields = tuple(
            Field(f.name, torch.uint8, size(f) + 1 if f.elements else 0, variable=True, role=f.role)
            for f in input_layout.fields
        )
        return Layout(fields, Form.BYTES)

    def encode(self, payload: Payload, context: Context) -> Payload:
        codes = {f.name: self._coded(payload[f.name], f) for f in self.input_layout.fields}
        return Payload.of(self.output_layout, codes)

    def decode(self, payload: Payload, context: Context) -> Payload:
        fields = {f.name: self._decoded(payload[f.name], f) for f in self.input_layout.fields}
        (first, *others) = self.input_layout.fields
        if not others and not first.variable:
            return Payload(self.input_layout, fields[first.name].view(torch.uint8))
        return Payload.of(self.input_layout, fields)

    def _coded(self, values: Tensor, field: Field) -> Tensor:
        content: Bytes = values.to(CPU).contiguous().view(torch.uint8).numpy()
        if not content.size:
            return torch.empty(0, dtype=torch.uint8)
        code = self.compressed(content, field)
        short = code is not None and len(code) < content.size
        chosen = np.frombuffer(code, np.uint8) if short and code is not None else content
        out = np.empty(chosen.size + 1, np.uint8)
        out[:-1], out[-1] = chosen, CODED if short else RAW
        return torch.from_numpy(out)

    def _decoded(self, code: Tensor, field: Field) -> Tensor:
        content = self._content(code.to(CPU).numpy(), field)
        count, remainder = divmod(content.size, field.dtype.itemsize)
        if remainder or count > field.elements or (count < field.elements and not field.variable):
            raise PayloadError(f"field '{field.name}' has {content.size} bytes, not those of its elements")
        # A view of an empty array fails: torch refuses its stride.
        return torch.from_numpy(content).view(field.dtype) if count else torch.empty(0, dtype=field.dtype)

    def _content(self, code: Bytes, field: Field) -> Bytes:
        if not code.size:
            return np.empty(0, np.uint8)
        if code[-1] == RAW:
            return code[:-1].copy()
        if code[-1] != CODED or code.size == 1:
            raise PayloadError(f"field '{field.name}' is neither coded nor raw")
        return self.decompressed(code[:-1], field)


def size(field: Field) -> int:
    """The most bytes that a field has."""
    return field.elements * field.dtype.itemsize


def library(name: str, package: str) -> Any:
    """An optional library; raises BadInput with the way to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(f"needs {package}: pip install 'decentnode[compression]'") from error


def shuffled(content: Bytes, itemsize: int) -> Bytes:
    """The first bytes of all elements, then the second ones, and so on, so similar bytes are adjacent."""
    return np.ascontiguousarray(content.reshape(-1, itemsize).T).reshape(-1)


def unshuffled(content: Bytes, itemsize: int) -> Bytes:
    """The inverse of `shuffled`; raises PayloadError when the last element is incomplete."""
    if content.size % itemsize:
        raise PayloadError(f"{content.size} bytes are no elements of {itemsize}")
    if itemsize == 1:
        return content.copy()
    planes = content.reshape(itemsize, -1)
    elements = np.empty((planes.shape[1], itemsize), np.uint8)
    for start in range(0, len(elements), STEP):
        for byte, plane in enumerate(planes):
            elements[start : start + STEP, byte] = plane[start : start + STEP]
    return elements.reshape(-1)
