"""Random choices keyed by their purpose, independent of the order of draws.

The same (seed, purpose, counters) gives the same numbers in every process and after a resume. The generator
is counter-based, and its key is a hash of those words (Salmon et al., 2011, "Parallel random numbers: as easy
as 1, 2, 3", Philox).

What must protect something comes from a `RandomSource`: from the operating system by default. What a peer
could compute again would protect nothing. Normal numbers are sums of several that Box and Muller's transform
makes, so that the lowest bits of one number tell less about the bits it was made of (Holohan and Braghin,
2021, section 4; Mironov, 2012, describes the attack).
"""

import math
import os
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from decentnode.core.state import Stateful

# torch and cryptography are imported where they are used: a command that draws a graph needs neither.
if TYPE_CHECKING:
    from torch import Tensor

SUMMED = 4
"""The number of normal numbers that are added up for each one drawn."""
MANTISSA = 53
"""Bits of a float64 that are drawn."""


def key(seed: int, purpose: str, *counters: int) -> int:
    """Returns a 63-bit number that depends on every argument; usable as a seed of any generator."""
    words = f"{seed}/{purpose}/" + "/".join(map(str, counters))
    return xxhash.xxh3_64_intdigest(words.encode()) >> 1


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Returns a Philox generator for one purpose, for instance `generator(seed, "shuffle", rank, epoch)`."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *counters)))


def permutation(count: int, seed: int, purpose: str, *counters: int) -> NDArray[np.int64]:
    """Returns `generator(seed, purpose, *counters).permutation(count)`, in a fifth of the time.

    A new generator reads entropy from the operating system, which it does not use.
    """
    philox = _OF_THREAD.philox
    state = philox.state
    state["state"]["key"][:] = key(seed, purpose, *counters), 0
    state["state"]["counter"][:] = 0
    state["buffer_pos"], state["has_uint32"] = len(state["buffer"]), 0
    philox.state = state
    return _OF_THREAD.generator.permutation(count)


class _OfThread(threading.local):
    """A generator for each thread: between setting the state and drawing, another one may run."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.philox)


_OF_THREAD = _OfThread()


def seed_generators(number: int, on_cpu: bool = True) -> None:
    """Seeds the global generators of torch, numpy and `random`, which the code of a plug-in may draw from.

    `on_cpu`: that of torch's devices stay as they are.
    """
    import torch

    (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


@contextmanager
def seeded(seed: int, purpose: str, *counters: int) -> Iterator[None]:
    """Seeds the global generators of the CPU for one purpose within the block, and restores them."""
    with restored_generators():
        seed_generators(key(seed, purpose, *counters))
        yield


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restores the global generators of the CPU after the block."""
    import torch

    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


class RandomSource(Stateful, ABC):
    """Uniform and normal numbers from random bytes."""

    is_secret: ClassVar[bool]
    """Whether no other party can compute the numbers."""

    @abstractmethod
    def bytes(self, count: int) -> bytearray:
        """Returns `count` uniform bytes."""

    def whole(self, count: int) -> "Tensor":
        """Returns uniform whole numbers from 0 to 2^53 - 1, shape (count,), int64."""
        import torch

        if not count:
            return torch.zeros(0, dtype=torch.int64)
        return torch.frombuffer(self.bytes(8 * count), dtype=torch.int64).bitwise_and_(2**MANTISSA - 1)

    def chosen(self, count: int, probability: float) -> "Tensor":
        """Returns the indices below `count` that are chosen, each with this probability by itself."""
        below: Tensor = self.whole(count) < math.floor(probability * 2**MANTISSA)
        return below.nonzero().flatten()

    def normal(self, count: int) -> "Tensor":
        """Returns standard normal numbers, shape (count,), float64 (Box and Muller, 1958)."""
        import torch

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
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        encryptor = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        drawn = bytearray(count + 15)
        encryptor.update_into(bytes(count), drawn)
        return drawn[:count]


class SeededSource(RandomSource):
    """The generators of the run, so that every process with the seed draws the same numbers."""

    is_secret = False
    state: ClassVar = ("drawn",)

    def __init__(self, seed: int, *counters: int, purpose: str = "privacy") -> None:
        self.drawn = 0
        self._purpose = purpose
        self._key = (seed, *counters)

    def bytes(self, count: int) -> bytearray:
        seed, *counters = self._key
        self.drawn += 1
        return bytearray(generator(seed, self._purpose, *counters, self.drawn).bytes(count))


@dataclass(frozen=True)
class Context:
    """The values that both ends of an exchange know of a payload; a scheme gets it from `View.context`.

    It has the counters of shared randomness, and what fills the gaps of what was sent.
    """

    seed: int
    round: int
    sender: int
    receiver: int | None = None
    """The receiver; None when one payload serves all receivers."""
    fill: "Tensor | None" = None
    """The receiver's own signal at this point of the chain, which replaces what was not sent; None: zeros."""
    phase: int = 0
    """The number of the exchange within the round."""

    def generator(self, purpose: str, *more: int) -> np.random.Generator:
        """Randomness of this sender in this exchange, the same at both ends and for all receivers."""
        return generator(self.seed, purpose, self.round, self.phase, self.sender, *more)

    def filled_with(self, fill: "Tensor | None") -> "Context":
        """Returns this context with another signal in place of what was not sent."""
        return self if fill is self.fill else replace(self, fill=fill)
