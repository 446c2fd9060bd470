"""A weighted sum in one pass over memory, by the compiled `weighted_sum.c`, where an installation has it."""

import ctypes
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("libweighted_sum.so")
"""What the build of the wheel compiles where it finds a compiler (eval/build_native.py)."""
LEAST_FOR_THREADS = 32_768
"""Elements up to which torch's operations use one thread (at::internal::GRAIN_SIZE)."""
MOST_THREADS = 2
"""With more threads than this, longer vectors are left to torch, which divides them."""
TRIALS = ((1, 1), (2, 15), (5, 64), (6, 100), (11, 2_049))
"""Numbers of terms and lengths: all cases of the code, with and without a rest."""

NativeSum = Callable[[Sequence[tuple[float, Tensor]], Tensor], bool | None]


def loaded(library: Path, expected: NativeSum) -> NativeSum | None:
    """Returns the sum by a compiled library; None where there is none, or its bits are not as `expected`.

    A trial compares the bits: on a processor without fma, torch rounds every product.
    """
    try:
        function = ctypes.CDLL(str(library)).weighted_sum_fp32
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

    def native_sum(terms: Sequence[tuple[float, Tensor]], out: Tensor) -> bool | None:
        """Writes sum_k w_k x_k into `out`, shape (d,); returns whether it is finite, None if it does not fit.

        It fits vectors of fp32 on the CPU, contiguous and of one length.
        """
        n, count = out.numel(), len(terms)
        if not count or (n > LEAST_FOR_THREADS and torch.get_num_threads() > MOST_THREADS):
            return None
        for x in (out, *[x for _, x in terms]):
            if x.dtype is not torch.float32 or not x.is_cpu or x.numel() != n or not x.is_contiguous():
                return None
        weights = (ctypes.c_float * count)(*[w for w, _ in terms])
        sources = (ctypes.c_void_p * count)(*[x.data_ptr() for _, x in terms])
        return bool(function(n, count, weights, sources, out.data_ptr()))

    return native_sum if _has_bits_of(expected, native_sum) else None


def _has_bits_of(expected: NativeSum, native_sum: NativeSum) -> bool:
    numbers = torch.linspace(-1, 1, 11 * 2_049).reshape(11, 2_049)
    for count, length in TRIALS:
        terms = [(1 / (k + 3), numbers[k, :length]) for k in range(count)]
        ours, theirs = torch.empty(2, length)
        if not (native_sum(terms, ours) and expected(terms, theirs) and torch.equal(ours, theirs)):
            return False
    return native_sum([(math.inf, numbers[0, :2])], torch.empty(2)) is False
