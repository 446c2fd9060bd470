"""Memory that this process shares with those that it forks later, such as workers that compute steps.

Threads: the main thread allocates, before it forks; who writes where is said by the modules that use it.
"""

import mmap

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes, as torch aligns tensors: matrix products differ in their last bits with the alignment."""


class Arena:
    """One anonymous shared mapping, given out in pieces; it has no name, so nobody has to remove it."""

    def __init__(self, pieces: int, nbytes: int) -> None:
        """Has room for so many pieces of `nbytes` bytes; raises MemoryError. Unused pages cost nothing."""
        length = max(1, pieces * -(-nbytes // ALIGNMENT) * ALIGNMENT)
        try:
            self._memory = torch.frombuffer(mmap.mmap(-1, length), dtype=torch.uint8)
        except OSError as error:
            raise MemoryError(f"no room for {length} bytes") from error
        self._used = 0

    @property
    def nbytes(self) -> int:
        """The bytes that are given out."""
        return self._used

    def new_bytes(self, length: int) -> Tensor:
        """Zeros, shape (length,) and uint8."""
        start = self._used
        assert start + length <= len(self._memory), "an arena has room for all vectors of its process"
        self._used = start + -(-length // ALIGNMENT) * ALIGNMENT
        return self._memory[start : start + length]
