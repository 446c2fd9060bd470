"""A few symbols in as few bytes as they need: bits side by side, or several digits in one byte."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from decentnode.core.payload import PayloadError
from decentnode.transforms.coding.bits import Bytes, pack, packed_bytes, unpack


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

    def pack(self, codes: Bytes) -> Bytes:
        """Codes as `packed_bytes(len(codes))` bytes."""
        if not self.digits:
            return pack(codes, self.width)
        rows = np.zeros((self.digits, self.packed_bytes(len(codes))), np.uint8)
        rows.reshape(-1)[: len(codes)] = codes
        packed: Bytes = rows[-1].copy()
        for row in rows[-2::-1]:
            packed *= np.uint8(self.size)
            packed += row
        return packed

    def unpack(self, packed: Bytes, count: int) -> Bytes:
        """The inverse of `pack`; raises PayloadError for codes that are not in the alphabet."""
        if self.digits:
            return self._unpack_digits(packed, count)
        codes: Bytes = unpack(packed, self.width, count).astype(np.uint8, copy=False)
        if self.size < 1 << self.width:
            self._check(codes, self.size)
        return codes

    def _unpack_digits(self, packed: Bytes, count: int) -> Bytes:
        self._check(packed, self.size**self.digits)
        rows = np.empty((self.digits, len(packed)), np.uint8)
        rest = packed
        for row in rows:
            quotient = rest // np.uint8(self.size)
            np.subtract(rest, quotient * np.uint8(self.size), out=row)
            rest = quotient
        codes: Bytes = rows.reshape(-1)[:count]
        return codes

    @staticmethod
    def _check(codes: Bytes, limit: int) -> None:
        if codes.size and codes.max() >= limit:
            raise PayloadError(f"code {codes.max()} where the largest is {limit - 1}")
