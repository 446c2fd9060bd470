"""A few symbols in as few bytes as they need: bits side by side, or several digits in one byte."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.transforms.coding.bits import operand, pack, packed_bytes, padded, unpack


@dataclass(frozen=True)
class Alphabet:
    """Codes 0..size-1 (2 <= size <= 256), each in `width` bits, or `digits` of them in one byte.

    Digits are numbers in base `size`, as 5 trits in a byte (3^5 = 243). n codes are cut into `digits` rows of
    equal length, the last one padded with zeros, and byte j is sum_i row_i[j] size^i.
    """

    size: int

    @cached_property
    def width(self) -> int:
        """Bits that one code needs."""
        return (self.size - 1).bit_length()

    @cached_property
    def digits(self) -> int:
        """How many codes share a byte; 0 where they are packed bit by bit."""
        digits = 1
        while self.size ** (digits + 1) <= 256:
            digits += 1
        return digits if digits * self.width > 8 else 0

    def most(self, size: int) -> int:
        """How many codes `size` bytes can hold."""
        return self.digits * size if self.digits else 8 * size // self.width

    def packed_bytes(self, count: int) -> int:
        """Bytes that `count` codes take."""
        return -(-count // self.digits) if self.digits else packed_bytes(count, self.width)

    def pack(self, codes: Tensor) -> Tensor:
        """Codes (uint8, shape (n,)) as `packed_bytes(n)` bytes."""
        if not self.digits:
            return pack(codes, self.width)
        size = self.packed_bytes(codes.numel())
        packed = codes.new_zeros(size)
        sums = operand(packed)
        for row in reversed(operand(padded(codes, self.digits * size).view(self.digits, size))):
            sums *= self.size
            sums += row
        return packed

    def unpack(self, packed: Tensor, count: int) -> Tensor:
        """The inverse of `pack`; raises PayloadError for codes that are not in the alphabet."""
        if self.digits:
            return self._unpack_digits(packed, count)
        codes = unpack(packed, self.width, count)
        if self.size < 1 << self.width:
            self._check(codes, self.size)
        return codes

    def _unpack_digits(self, packed: Tensor, count: int) -> Tensor:
        self._check(packed, self.size**self.digits)
        codes = packed.new_empty((self.digits, packed.numel()))
        codes[0] = packed
        for row, higher in pairwise(operand(codes)):
            higher[:] = row // self.size
            row -= higher * self.size
        return codes.view(-1)[:count]

    @staticmethod
    def _check(codes: Tensor, limit: int) -> None:
        if codes.numel() and int(codes.max()) >= limit:
            raise PayloadError(f"code {int(codes.max())} where the largest is {limit - 1}")
