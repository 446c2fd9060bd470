"""Memory shared by a launcher and the processes of its nodes: freed with the last of them.

Processes that the launcher forks inherit it. Those that somebody else has started get its descriptor, and
make the same arrays in the same order.

Threads: the launcher's main thread makes it; who writes where is said by the modules that use it.
"""

import math
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


class SharedMemory:
    """A file without a name, in which arrays follow each other; no process has to remove it."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: that of the memory that another process has made."""
        self.is_new = fd is None
        """Whether its arrays are all zeros yet."""
        self.fd = os.memfd_create("decentnode-launcher") if fd is None else fd
        # Arrays keep the memory; a process may take part in several runs, one after the other.
        finalizer = weakref.finalize(self, os.close, self.fd)
        finalizer.atexit = False
        self._end = 0

    def array(self, shape: tuple[int, ...], dtype: str = "int64") -> NDArray[Any]:
        """The next array, which all processes read and write in place; zeros at first."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        start = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._end = start + max(1, size)
        if self.is_new:
            os.ftruncate(self.fd, self._end)
        return np.ndarray(shape, dtype, mmap.mmap(self.fd, max(1, size), offset=start))
