"""Indices as one bit for each coordinate."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.transforms.coding.index_coder import Bytes, IndexCoder, Indices, bits_to_bytes


@TRANSFORMS.register("bitmap")
@dataclass
class Bitmap(IndexCoder):
    """One bit for each coordinate: 1 where it was sent (as in Lemire et al., SPE 2016, section 2).

    The shortest of the index codes when about 4 of 10 coordinates or more are sent.
    """

    wire: ClassVar = "d / 8"

    def most_bytes(self, most_indices: int, n: int) -> int:
        return bits_to_bytes(n) if most_indices else 0

    def coded(self, indices: Indices, n: int) -> Bytes:
        places = indices >> 3
        # Bits of one byte are adjacent in the list, so each byte is the "or" of one run of it.
        first = np.flatnonzero(np.diff(places, prepend=np.int32(-1)))
        code = np.zeros(bits_to_bytes(n), np.uint8)
        code[places[first]] = np.bitwise_or.reduceat(np.uint8(1) << (indices & 7).astype(np.uint8), first)
        return code

    def decoded(self, code: Bytes, count: int, n: int) -> Indices:
        if code.size != bits_to_bytes(n):
            raise PayloadError(f"a bitmap of {code.size} bytes where {n} bits are needed")
        places = np.flatnonzero(code != 0)
        positions = np.flatnonzero(np.unpackbits(code[places], bitorder="little").view(np.bool_))
        indices: Indices = (8 * places[positions >> 3] + (positions & 7)).astype(np.int32)
        if indices.size != count or indices[-1] >= n:
            raise PayloadError(f"a bitmap with {indices.size} bits set where {count} below {n} should be")
        return indices
