"""Random numbers of private steps: from the operating system by default, or from the seed of the run.

What a peer could compute again would protect nothing, so by default neither the noise nor the samples of a
step come from the seed. Normal numbers are sums of several that Box and Muller's transform makes, so that the
lowest bits of one number tell less about the bits it was made of (Holohan and Braghin, 2021, section 4;
Mironov, 2012, describes the attack).
"""

import math
import os
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from decentnode.core.rng import generator
from decentnode.core.state import Stateful

SUMMED = 4
"""Normal numbers whose sum is one of those that are drawn."""
MANTISSA = 53
"""Bits of a float64 that are drawn."""


class RandomSource(Stateful, ABC):
    """Uniform and normal numbers from random bytes."""

    is_secret: ClassVar[bool]
    """Whether nobody else can compute the numbers."""

    @abstractmethod
    def bytes(self, count: int) -> bytearray:
        """So many uniform bytes."""

    def whole(self, count: int) -> Tensor:
        """Uniform whole numbers from 0 to 2^53 - 1, shape (count,), int64."""
        if not count:
            return torch.zeros(0, dtype=torch.int64)
        return torch.frombuffer(self.bytes(8 * count), dtype=torch.int64).bitwise_and_(2**MANTISSA - 1)

    def chosen(self, count: int, probability: float) -> Tensor:
        """The indices below `count` that are chosen, each with this probability by itself."""
        below: Tensor = self.whole(count) < math.floor(probability * 2**MANTISSA)
        return below.nonzero().flatten()

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers, shape (count,), float64 (Box and Muller, 1958)."""
        pairs = SUMMED * count // 2
        uniform = self.whole(2 * pairs).double()
        # From above 0, which has no logarithm, to 1.
        radius = uniform[:pairs].add_(1).mul_(2.0**-MANTISSA).log_().mul_(-2).sqrt_()
        angle = uniform[pairs:].mul_(2 * math.pi * 2.0**-MANTISSA)
        # Each sum takes the two numbers of a pair from different pairs.
        both = torch.cat([radius * angle.cos(), (radius * angle.sin()).flip(0)])
        drawn: Tensor = both.view(SUMMED, count).sum(0).div_(SUMMED**0.5)
        return drawn


class SecureSource(RandomSource):
    """AES in counter mode with a new key of the operating system for each request (NIST SP 800-38A, 6.5)."""

    is_secret = True

    def bytes(self, count: int) -> bytearray:
        encryptor = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        drawn = bytearray(count + 15)
        encryptor.update_into(bytes(count), drawn)
        return drawn[:count]


class SeededSource(RandomSource):
    """The generators of the run, so that every process with the seed draws the same numbers."""

    is_secret = False
    state: ClassVar = ("drawn",)

    def __init__(self, seed: int, rank: int) -> None:
        self.drawn = 0
        self._key = (seed, rank)

    def bytes(self, count: int) -> bytearray:
        seed, rank = self._key
        self.drawn += 1
        return bytearray(generator(seed, "privacy", rank, self.drawn).bytes(count))
