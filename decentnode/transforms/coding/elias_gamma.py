"""Indices as Elias gamma codes of their gaps."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.transforms.coding.index_coder import (
    Bytes,
    IndexCoder,
    Indices,
    Numbers,
    bits_to_bytes,
    gaps_of,
    indices_of,
    read_unary,
    unary,
)


@TRANSFORMS.register("elias_gamma", "elias")
@dataclass
class EliasGamma(IndexCoder):
    """Codes the gaps between indices without a parameter (gamma code: Elias, IEEE Trans. Inf. Theory 1975).

    A gap g >= 1 takes N = floor(log2 g) in unary and the N bits of g - 2^N: 2 N + 1 bits. First all unary
    numbers, then all lowest bits, then all second bits, and so on. For k indices below n the sum of the gaps
    is at most n, so the concave log2 makes it at most k (2 log2(n / k) + 1) bits.
    """

    wire: ClassVar = "at most k (2 log2(d / k) + 1) / 8 for k indices"

    def most_bytes(self, most_indices: int, n: int) -> int:
        # The bound grows with k up to n / 2^(1 / ln 2 - 1/2), and a payload may have fewer indices.
        k = min(float(most_indices), n / 2 ** (1 / math.log(2) - 0.5))
        return bits_to_bytes(math.ceil(k * (2 * math.log2(n / k) + 1)) + 1) + 1 if k else 0

    def coded(self, indices: Indices, n: int) -> Bytes:
        g = gaps_of(indices) + 1
        N = np.frexp(g.astype(np.float64))[1] - 1
        return np.concatenate([unary(N), _planes(g, N)])

    def decoded(self, code: Bytes, count: int, n: int) -> Indices:
        # Unary numbers take half of all bits, and one more for each index.
        N, taken = read_unary(code[: (8 * code.size + count) // 16 + 1], count)
        if N.max() >= n.bit_length():
            raise PayloadError(f"a coded gap is 2^{N.max()} or more, but there are {n} coordinates")
        return indices_of((1 << N) - 1 + _read_planes(code[taken:], N), n)


def _planes(g: Indices, N: Indices) -> Bytes:
    """The N lowest bits of each g: bit 0 of all that have it, then bit 1, and so on."""
    planes = []
    for bit in range(int(N.max())):
        kept = bit < N
        g, N = g[kept], N[kept]
        planes.append((g >> bit).astype(np.uint8) & 1)
    return np.packbits(np.concatenate(planes), bitorder="little") if planes else np.zeros(0, np.uint8)


def _read_planes(code: Bytes, N: Numbers) -> Numbers:
    total = int(N.sum())
    if code.size != bits_to_bytes(total):
        raise PayloadError(f"{code.size} bytes of remainders where {bits_to_bytes(total)} should be")
    bits = np.unpackbits(code, bitorder="little")
    remainders, places, start = np.zeros(N.size, np.int64), np.arange(N.size), 0
    for bit in range(int(N.max())):
        places = places[N[places] > bit]
        plane = bits[start : start + places.size].astype(np.int64)
        remainders[places] |= plane << bit
        start += places.size
    return remainders
