"""Indices as Golomb-Rice codes of their gaps."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.transforms.coding.bits import pack, packed_bytes, unpack
from decentnode.transforms.coding.index_coder import (
    Bytes,
    IndexCoder,
    Indices,
    bits_to_bytes,
    gaps_of,
    indices_of,
    read_unary,
    unary,
)


@TRANSFORMS.register("rice")
@dataclass
class Rice(IndexCoder):
    """Codes the gaps between indices by quotient and remainder (Rice, JPL Publication 79-22, 1979).

    A gap g >= 0 takes g >> k in unary and its k lowest bits: (g >> k) + 1 + k bits. Each payload uses the k
    with the shortest code. It has k in one byte, then all lowest bits, then all unary numbers. For c indices
    below n the gaps' sum is at most n - c, so they take at most min_k ((n - c) / 2^k + c (k + 1)) bits.
    Within 3 % of the entropy of a random mask.
    """

    wire: ClassVar = "about k (log2(d / k) + 1.5) / 8 for k indices"

    def most_bytes(self, most_indices: int, n: int) -> int:
        c = min(most_indices, n)
        # The rest of the last byte of each of the two streams, and the byte with k.
        return bits_to_bytes(_bound(n - c, c, _best_for(n - c, c))) + 2 if c else 0

    def coded(self, indices: Indices, n: int) -> Bytes:
        gaps = gaps_of(indices)
        k = _best(gaps, int(indices[-1]) + 1 - indices.size)
        remainders = pack(torch.from_numpy(gaps & ((1 << k) - 1)), k)
        return np.concatenate([np.array([k], np.uint8), remainders.numpy(), unary(gaps >> k)])

    def decoded(self, code: Bytes, count: int, n: int) -> Indices:
        k = int(code[0]) if code.size else 0
        start = 1 + packed_bytes(count, k)
        if k > n.bit_length() or code.size < start:
            raise PayloadError(f"{code.size} bytes cannot hold {count} indices with {k} lowest bits each")
        quotients, taken = read_unary(code[start:], count)
        if start + taken != code.size or quotients.max() > n >> k:
            raise PayloadError(f"the coded gaps do not fit {n} coordinates")
        remainders = unpack(torch.from_numpy(code[1:start]), k, count).numpy()
        return indices_of((quotients << k) + remainders, n)


def _bound(total: int, c: int, k: int) -> int:
    """Bits that c gaps of that total take at most."""
    return (total >> k) + c * (k + 1)


def _best_for(total: int, c: int) -> int:
    """The k with the smallest bound: the last one at which a further bit for all still shortens the code."""
    k = 0
    while _bound(total, c, k + 1) < _bound(total, c, k):
        k += 1
    return k


def _best(gaps: Indices, total: int) -> int:
    """The k with the shortest code; rounding may select one slightly larger than for equal gaps."""
    candidates = range(_best_for(total, gaps.size) + 3)
    sizes = [int(np.sum(gaps >> k, dtype=np.int64)) + gaps.size * k for k in candidates]
    return int(np.argmin(sizes))
