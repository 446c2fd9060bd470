"""Order statistics across models, coordinate by coordinate, in pieces that stay in the cache."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

PIECE = 32_768
"""Elements at a time: few enough for a second-level cache, enough to hide the cost of a call."""
Comparator = tuple[int, int, bool, bool]
"""A comparator: two wires, and whether the smaller value, on the first, and the larger one are needed."""


def pieces_of(*tensors: Tensor) -> "zip[tuple[Tensor, ...]]":
    """Yields corresponding pieces of the tensors, each of shape (d,); all of it on a GPU."""
    size = PIECE if tensors[0].device.type == "cpu" else max(1, tensors[0].numel())
    return zip(*(torch.split(x, size) for x in tensors), strict=True)


def middle_values(values: Sequence[Tensor], cut: int) -> list[Tensor]:
    """The values of each coordinate without the `cut` largest and smallest ones, in no certain order."""
    wires = list(values)
    for i, j, needs_low, needs_high in network(len(values), cut):
        a, b = wires[i], wires[j]
        if needs_low:
            wires[i] = torch.minimum(a, b)
        if needs_high:
            wires[j] = torch.maximum(a, b)
    return wires[cut : len(wires) - cut]


@lru_cache(64)
def network(count: int, cut: int) -> tuple[Comparator, ...]:
    """Comparators that bring the `cut` smallest of `count` values to the first wires, the largest to the end.

    The cheaper one of two networks without what the wires at the ends alone need: one that sorts, and one
    that moves the largest and the smallest value outwards `cut` times.
    """
    networks = [
        _without_ends(comparators, count, cut)
        for comparators in (_merge_exchange(count), _outwards(count, cut))
    ]
    return min(networks, key=lambda comparators: sum(low + high for *_, low, high in comparators))


def _without_ends(comparators: list[tuple[int, int]], count: int, cut: int) -> tuple[Comparator, ...]:
    needed, kept = set(range(cut, count - cut)), []
    for i, j in reversed(comparators):
        if i in needed or j in needed:
            kept.append((i, j, i in needed, j in needed))
            needed |= {i, j}
    return tuple(reversed(kept))


def _merge_exchange(count: int) -> list[tuple[int, int]]:
    """Builds Batcher's sort (Knuth, The Art of Computer Programming, vol. 3, 5.2.2, Algorithm M)."""
    top = 1 << (count - 1).bit_length() - 1 if count > 1 else 0
    comparators, p = [], top
    while p:
        q, r, d = top, 0, p
        while d:
            comparators += [(i, i + d) for i in range(count - d) if i & p == r]
            q, r, d = q // 2, p, q - p
        p //= 2
    return comparators


def _outwards(count: int, cut: int) -> list[tuple[int, int]]:
    comparators = []
    for k in range(cut):
        comparators += [(i, i + 1) for i in range(k, count - 1 - k)]
        comparators += [(i, i + 1) for i in range(count - 3 - k, k - 1, -1)]
    return comparators
