"""The common part of all index coders: bytes replace the field `indices`, after their count where it varies.

A code has all unary numbers in one stream of bits and all remainders in another, so that whole arrays are
coded and decoded at once.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from decentnode.core.payload import PayloadError
from decentnode.errors import BadInput
from decentnode.transforms.base import (
    INDICES,
    Context,
    Field,
    Form,
    Layout,
    Payload,
    Role,
    Transform,
    passed_on,
    replaced,
)

CODE = "index_code"
COUNT_BYTES = 4

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int32]
Numbers = NDArray[np.int64]


@dataclass
class IndexCoder(Transform):
    """Replaces `indices` by `index_code`; a coder writes `count` ascending indices below n.

    Behind a selection of all coordinates there are no indices, and nothing to replace.
    """

    accepts: ClassVar = frozenset({Form.SPARSE, Form.QUANTIZED})
    emits: ClassVar = None
    lossless = True

    def layout(self, input_layout: Layout) -> Layout:
        index_fields = [f for f in input_layout.fields if f.name == INDICES]
        self._passes = not index_fields and self.selects_all
        if self._passes:
            return input_layout
        if not index_fields:
            if any(f.name == CODE for f in input_layout.fields):
                raise BadInput(
                    "codes indices, but those before it are coded already; leave one of them out, or set "
                    "packed: false in chunk_top_k"
                )
            raise BadInput("codes indices, but what comes before gives none")
        (self._indices,) = index_fields
        most = self.most_bytes(self._indices.elements, self.dimension)
        most += COUNT_BYTES if self._indices.variable else 0
        code = Field(CODE, torch.uint8, most, variable=True, role=Role.INDEX)
        return replaced(input_layout, INDICES, code)

    def encode(self, payload: Payload, context: Context) -> Payload:
        if self._passes:
            return payload
        indices: Indices = payload[INDICES].cpu().numpy()
        code = self.coded(indices, self.dimension) if indices.size else np.zeros(0, np.uint8)
        if self._indices.variable:
            count = np.array([indices.size], "<u4").view(np.uint8)
            code = np.concatenate([count, code])
        return Payload.of(
            self.output_layout, {**passed_on(payload, self.output_layout), CODE: torch.from_numpy(code)}
        )

    def decode(self, payload: Payload, context: Context) -> Payload:
        if self._passes:
            return payload
        code: Bytes = payload[CODE].cpu().numpy()
        count = self._indices.elements
        if self._indices.variable:
            if code.size < COUNT_BYTES:
                raise PayloadError(f"{code.size} bytes of coded indices are too few for their number")
            count, code = int.from_bytes(code[:COUNT_BYTES].tobytes(), "little"), code[COUNT_BYTES:]
        indices = torch.from_numpy(self._checked(code, count))
        return Payload.of(self.input_layout, {**passed_on(payload, self.input_layout), INDICES: indices})

    def _checked(self, code: Bytes, count: int) -> Indices:
        if count > min(self._indices.elements, self.dimension):
            raise PayloadError(f"{count} coded indices where at most {self._indices.elements} can be")
        if not count:
            if code.size:
                raise PayloadError(f"{code.size} bytes for no indices")
            return np.zeros(0, np.int32)
        return self.decoded(code, count, self.dimension)

    @abstractmethod
    def most_bytes(self, most_indices: int, n: int) -> int:
        """The longest code of up to `most_indices` distinct indices below n."""

    @abstractmethod
    def coded(self, indices: Indices, n: int) -> Bytes:
        """The code of one or more ascending indices below n."""

    @abstractmethod
    def decoded(self, code: Bytes, count: int, n: int) -> Indices:
        """The `count` indices of a code; PayloadError unless they are ascending and below n."""


def gaps_of(indices: Indices) -> Indices:
    """How many indices are left out before each one."""
    gaps = np.diff(indices, prepend=np.int32(-1))
    gaps -= 1
    return gaps


def indices_of(gaps: Numbers, n: int) -> Indices:
    """The inverse of `gaps_of`; the gaps are below 2 n and not negative, so the indices ascend."""
    indices = np.cumsum(gaps + 1) - 1
    if indices[-1] >= n:
        raise PayloadError(f"a coded index is {indices[-1]}, but there are {n} coordinates")
    return indices.astype(np.int32)


def unary(numbers: Indices) -> Bytes:
    """Each number as that many zeros and a one, packed."""
    ones = np.cumsum(numbers, dtype=np.int64)
    ones += np.arange(numbers.size)
    bits = np.zeros(int(ones[-1]) + 1, np.uint8)
    bits[ones] = 1
    return np.packbits(bits, bitorder="little")


def read_unary(code: Bytes, count: int) -> tuple[Numbers, int]:
    """The first `count` unary numbers of a code, and how many bytes they take."""
    bits = np.unpackbits(code, bitorder="little")
    ones = np.flatnonzero(bits.view(np.bool_))[:count]
    if ones.size < count:
        raise PayloadError(f"{ones.size} coded indices where {count} should be")
    return np.diff(ones, prepend=-1) - 1, int(ones[-1]) // 8 + 1


def bits_to_bytes(bits: int) -> int:
    """Bytes that this many bits fill."""
    return -(-bits // 8)
