"""Real numbers as integers modulo 2^32 or 2^64, whose sums are exact."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.core.pair_keys import PIECE_BYTES, Mask, scratch_for

INTEGERS = {32: torch.int32, 64: torch.int64}


class OutOfRange(ValueError):
    """A number whose sum with others could wrap, or NaN."""


@dataclass(frozen=True)
class FixedPoint:
    """Encodes by Q(v) = round(scale v)."""

    scale: int
    bits: int

    @property
    def dtype(self) -> torch.dtype:
        """The type of the integers."""
        return INTEGERS[self.bits]

    def most(self, summands: int) -> float:
        """The largest Q(v) for which a sum of so many stays in the range of the integers."""
        return math.nextafter(2.0 ** (self.bits - 1) / summands, 0.0)

    def masked(self, x: Tensor, weight: float, summands: int, masks: Sequence[Mask], out: Tensor) -> None:
        """Writes Q(weight x) and the sum of the masks; raises OutOfRange."""
        factor, most = weight * self.scale, self.most(summands)
        size, scratch = PIECE_BYTES // out.element_size(), scratch_for(out)
        for x_piece, y_piece in zip(torch.split(x, size), torch.split(out, size), strict=True):
            self._quantize(x_piece, factor, most, out=y_piece)
            for mask in masks:
                mask.apply(y_piece, scratch)

    def _quantize(self, x: Tensor, factor: float, most: float, out: Tensor) -> None:
        scaled = (x.double() if self.bits == 64 else x) * factor
        if not scaled.numel():
            return
        lowest, highest = torch.aminmax(scaled.round_())
        out.copy_(scaled)
        # NaN compares false.
        if not (-most <= lowest.item() and highest.item() <= most):
            raise OutOfRange

    def sum(self, received: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
        """Returns the sum times 1 / scale: masks cancel in integers, so the conversion to floats is last."""
        first, *others = received
        summed = first.new_empty(first.shape, dtype=dtype)
        size = PIECE_BYTES // first.element_size()
        for piece, *pieces in zip(*(torch.split(y, size) for y in (summed, first, *others)), strict=True):
            total = pieces[0].clone()
            for y in pieces[1:]:
                total.add_(y)
            piece.copy_(total).div_(self.scale)
        return summed


def apply(masks: Iterable[Mask], y: Tensor) -> None:
    """Changes all elements, by one mask after the other."""
    scratch, size = scratch_for(y), PIECE_BYTES // y.element_size()
    for mask in masks:
        for piece in torch.split(y, size):
            mask.apply(piece, scratch)
