"""Memory shared by a launcher and the processes it forks: made before the fork, freed with the last one.

Threads: the launcher's main thread makes it; who writes where is said by the modules that use it.
"""

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def shared_array(shape: tuple[int, ...], dtype: str = "int64") -> NDArray[Any]:
    """Zeros that every process forked from this one reads and writes in place."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    # An anonymous shared mapping has no name, so no process has to remove it.
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(1, size)))
