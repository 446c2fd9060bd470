"""The common part of all quantizers: numbers become small codes, with a few scales for each block."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.core.payload import HOST, PayloadError
from decentnode.core.vector import accumulator
from decentnode.transforms.base import (
    Context,
    Field,
    Form,
    Layout,
    Payload,
    Transform,
    passed_on,
    replaced,
    values_field,
)
from decentnode.transforms.coding.alphabet import Alphabet
from decentnode.transforms.sparsify.philox import Stream

SCALES, CODES = "scales", "codes"
TILE = 1 << 16
"""Elements per step, so that intermediate results stay in the second-level cache."""
DEVICE_TILE = 1 << 24
"""Elements per step on a GPU: few steps, because the start of each operation takes time."""

Random = np.random.Generator | Stream
"""The source of numbers for stochastic rounding: numpy on the CPU, elsewhere the same numbers."""
Tile = tuple[slice, slice]
"""The elements of a tile and its blocks, which have one length."""


@dataclass
class Quantizer(Transform):
    """Replaces `vector` or `values` by `scales` (of their dtype, halves: fp32) and `codes` (packed bytes).

    Where the number of values varies, the last byte of `codes` has the number of unused codes, unless that is
    always 0. A quantizer defines how one tile, some blocks of equal length, is coded and decoded.
    """

    accepts: ClassVar = frozenset({Form.DENSE, Form.SPARSE})
    emits: ClassVar = Form.QUANTIZED
    scales_per_block: ClassVar[int] = 1

    @property
    @abstractmethod
    def alphabet(self) -> Alphabet:
        """The possible codes."""

    @abstractmethod
    def quantize(self, tile: Tensor, codes: Tensor, random: Random) -> Tensor:
        """Fills `codes` (blocks, length) uint8 for a `tile` of that shape; returns scales (blocks, each)."""

    @abstractmethod
    def dequantize(self, codes: Tensor, scales: Tensor, tile: Tensor) -> None:
        """Fills `tile` (blocks, length) with the values of `codes`."""

    @abstractmethod
    def block_length(self, count: int) -> int:
        """How many of `count` values have scales in common, at least 1; the last block may be shorter."""

    def blocks(self, count: int) -> int:
        """The number of blocks of `count` values."""
        return -(-count // self.block_length(count))

    def tiles(self, count: int, most: int) -> Iterator[Tile]:
        """Cuts `count` values into tiles of about `most` elements: blocks of one length.

        The last block may be shorter, and is then a tile of its own.
        """
        length = self.block_length(count)
        whole, rows = count // length, max(1, most // length)
        for first in range(0, whole, rows):
            last = min(first + rows, whole)
            yield slice(first * length, last * length), slice(first, last)
        if count % length:
            yield slice(whole * length, count), slice(whole, whole + 1)

    def layout(self, input_layout: Layout) -> Layout:
        values = self._values = values_field(input_layout)
        scales = self.blocks(values.elements) * self.scales_per_block
        size = self.alphabet.packed_bytes(values.elements) + self._tells_count
        return replaced(
            input_layout,
            values.name,
            Field(SCALES, accumulator(values.dtype), scales, variable=values.variable),
            Field(CODES, torch.uint8, size, variable=values.variable),
            form=self.emits,
        )

    @property
    def _tells_count(self) -> bool:
        return self._values.variable and self.alphabet.width < 8

    def encode(self, payload: Payload, context: Context) -> Payload:
        values = payload[self._values.name].to(accumulator(self._values.dtype))
        count, on_host = values.numel(), values.device == HOST
        codes = torch.empty(count, dtype=torch.uint8, device=values.device)
        scales = values.new_empty((self.blocks(count), self.scales_per_block))
        generator = context.generator(type(self).__name__)
        random = generator if on_host else Stream(generator)
        for elements, blocks in self.tiles(count, TILE if on_host else DEVICE_TILE):
            shape = (blocks.stop - blocks.start, -1)
            scales[blocks] = self.quantize(values[elements].view(shape), codes[elements].view(shape), random)
        fields = {SCALES: scales.view(-1), CODES: self._packed(codes)}
        return Payload.of(self.output_layout, {**passed_on(payload, self.output_layout), **fields})

    def decode(self, payload: Payload, context: Context) -> Payload:
        count = self._count(payload)
        packed = payload[CODES][: self.alphabet.packed_bytes(count)]
        codes, on_host = self.alphabet.unpack(packed, count), packed.device == HOST
        scales = payload[SCALES].view(-1, self.scales_per_block)
        if not bool(torch.isfinite(scales).all()):
            raise PayloadError("a scale of the codes is not finite")
        values = scales.new_empty(count)
        for elements, blocks in self.tiles(count, TILE if on_host else DEVICE_TILE):
            shape = (blocks.stop - blocks.start, -1)
            self.dequantize(codes[elements].view(shape), scales[blocks], values[elements].view(shape))
        if len(self.input_layout.fields) == 1 and not self._values.variable:
            return Payload.dense(values, self._values.name)
        return Payload.of(
            self.input_layout, {**passed_on(payload, self.input_layout), self._values.name: values}
        )

    def _packed(self, codes: Tensor) -> Tensor:
        packed = self.alphabet.pack(codes)
        if not self._tells_count:
            return packed
        spare = self.alphabet.most(packed.numel()) - codes.numel()
        return torch.cat([packed, packed.new_full((1,), spare)])

    def _count(self, payload: Payload) -> int:
        """The number of values of a payload; raises PayloadError when the number of scales does not match."""
        if not self._values.variable:
            return self._values.elements
        size, spare = payload[CODES].numel(), 0
        if self._tells_count:
            size, spare = size - 1, int(payload[CODES][-1]) if size else 0
        count = self.alphabet.most(max(size, 0)) - spare
        if not 0 <= count <= self._values.elements or self.alphabet.packed_bytes(count) != size:
            raise PayloadError(f"{size} bytes of codes, {spare} of them to spare, are no number of values")
        if payload[SCALES].numel() != self.blocks(count) * self.scales_per_block:
            raise PayloadError(f"{payload[SCALES].numel()} scales for {count} values")
        return count


def largest(tile: Tensor) -> Tensor:
    """The largest magnitude in each block, (blocks, 1)."""
    return torch.maximum(tile.amax(1, keepdim=True), -tile.amin(1, keepdim=True))


def norms(tile: Tensor, order: int) -> Tensor:
    """The l1 or l2 norm of each block, (blocks, 1), summed in double precision: squares overflow early."""
    sums: Tensor = torch.linalg.vector_norm(tile, order, dim=1, keepdim=True, dtype=torch.float64)
    return sums


def uniform_like(tile: Tensor, random: Random) -> Tensor:
    """Numbers from [0, 1), multiples of 2^-24, in the shape of a tile, for stochastic rounding.

    floor(x + u) has the expectation x to within 2^-24 max(1, |x|), and is x where x is 0.
    """
    if isinstance(random, Stream):
        return random.uniform(tile.numel(), tile.device).view(tile.shape)
    return torch.from_numpy(random.random(tuple(tile.shape), dtype=np.float32))


def positive(scales: Tensor) -> Tensor:
    """Scales to divide by: 1 in the place of 0."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))
