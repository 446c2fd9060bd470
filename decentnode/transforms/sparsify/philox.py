"""The stream of numpy's Philox generator, computed on the device that uses its numbers, to the bit.

Philox4x64-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3): word i is word
i mod 4 of the block whose counter is i div 4 + 1. Whole numbers are exact, so they are equal on all devices;
int64 stands for unsigned words, because torch has it everywhere.
"""

import numpy as np
import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
LOW = 0xFFFFFFFF
STEP = 1 << 20
"""Blocks at once, to limit the memory of intermediate results."""


class Stream:
    """A new numpy generator over Philox as a stream that continues from draw to draw."""

    def __init__(self, generator: np.random.Generator) -> None:
        low, high = generator.bit_generator.state["state"]["key"]
        self._key = int(low), int(high)
        self._halves = 0
        """How many 32-bit numbers have been drawn."""

    def uniform(self, count: int, device: torch.device) -> Tensor:
        """The next `count` fp32 numbers of [0, 1), multiples of 2^-24, as of `generator.random`."""
        first, skipped = divmod(self._halves, 2)
        self._halves += count
        halves = words(self._key, first, (skipped + count + 1) // 2, device=device).view(torch.int32)
        drawn = (halves[skipped : skipped + count] >> 8) & 0xFFFFFF
        return drawn.to(torch.float32).mul_(2.0**-24)

    def words(self, count: int, device: torch.device) -> Tensor:
        """The next `count` 64-bit words, as int64; only for a stream of which nothing else is drawn."""
        first, self._halves = self._halves // 2, self._halves + 2 * count
        return words(self._key, first, count, device=device)

    def below(self, n: int, count: int, device: torch.device) -> Tensor:
        """The next `count` whole numbers floor(u n), with u equal to that of `generator.random` in fp64."""
        u = ((self.words(count, device) >> 11) & ((1 << 53) - 1)).to(torch.float64).mul_(2.0**-53)
        return u.mul_(n).long()


def words(key: tuple[int, int], first: int, count: int, device: torch.device) -> Tensor:
    """Words `first`, `first` + 1, ... of the stream with that key, as int64 (count,)."""
    skipped = first % 4
    blocks = -(-(skipped + count) // 4)
    lanes = torch.empty((blocks, 4), dtype=torch.int64, device=device)
    for start in range(0, blocks, STEP):
        stop = min(start + STEP, blocks)
        counters = torch.arange(first // 4 + start + 1, first // 4 + stop + 1, device=device)
        for lane, column in zip(_encrypted(counters, key), lanes[start:stop].unbind(1), strict=True):
            column.copy_(lane)
    return lanes.view(-1)[skipped : skipped + count]


def _encrypted(counters: Tensor, key: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of each block; the upper three words of its counter are 0."""
    zeros = torch.zeros_like(counters)
    a, b, c, d = counters, zeros, zeros, zeros
    for i in range(ROUNDS):
        k0, k1 = (_signed(k + i * weyl) for k, weyl in zip(key, WEYL, strict=True))
        (high0, low0), (high1, low1) = _product(a, MULTIPLIERS[0]), _product(c, MULTIPLIERS[1])
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
    return a, b, c, d


def _product(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 64 bits of x m, from products of 32-bit halves."""
    x0, x1, m0, m1 = x & LOW, _upper(x), m & LOW, m >> 32
    p00, p01, p10 = x0 * m0, x0 * m1, x1 * m0
    middle = _upper(p00) + (p01 & LOW) + (p10 & LOW)
    return x1 * m1 + _upper(p01) + _upper(p10) + (middle >> 32), x * _signed(m)


def _upper(x: Tensor) -> Tensor:
    """The upper 32 bits as a number; a shift alone would keep the sign."""
    return (x >> 32) & LOW


def _signed(number: int) -> int:
    """The int64 with the same 64 lowest bits."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
