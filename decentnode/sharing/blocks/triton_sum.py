"""A weighted sum in one pass over a GPU's memory, as a Triton kernel (Tillet et al., MAPL 2019).

Importing this module imports triton, so only `weighted_sum` does it, and only for vectors on a GPU. With
TRITON_INTERPRET=1 set before that, the same kernel runs on the CPU, one program after the other.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

AT_ONCE = 16
"""Sources of one pass; each further pass reads the sum so far and adds as many."""
BLOCK = 2048
"""Elements per program: 8 for each of 256 threads, which is two loads of 16 bytes from a vector of fp32."""
WARPS = 8
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of sources; the sum is fp32."""


def add_up_block(
    out: tl.tensor, flag: tl.tensor, sources: tl.tuple, weights: tl.tuple, n: tl.tensor,
    FIRST: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr,
) -> None:  # fmt: skip
    """Adds up SIZE elements in one program; unless WHOLE, some may be beyond the end."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    # A length that is no multiple of 4 would make every program load its elements one by one.
    inside = tl.full((SIZE,), 1, tl.int1) if WHOLE else i < n
    x = tl.load(sources[0] + i, mask=inside, other=0.0).to(tl.float32)
    if FIRST:
        sums = x * weights[0]
    else:
        sums = tl.fma(x, weights[0], tl.load(out + i, mask=inside, other=0.0))
    for k in tl.static_range(1, len(sources)):
        x = tl.load(sources[k] + i, mask=inside, other=0.0).to(tl.float32)
        sums = tl.fma(x, weights[k], sums)
    tl.store(out + i, sums, mask=inside)
    # A comparison, which rounds nothing: `sums - sums` would become fma(x, w, -sums), the rounding of the
    # product. NaN compares as not smaller. All programs that find such a value write the same 1.
    not_finite = tl.max((tl.abs(sums) < float("inf")).to(tl.int32) ^ 1, axis=0)
    tl.store(flag, not_finite, mask=not_finite != 0)


BLOCK_KERNEL: Any = triton.jit(add_up_block)


def add_up(
    out: tl.tensor, flag: tl.tensor, sources: tl.tuple, weights: tl.tuple, n: tl.tensor,
    FIRST: tl.constexpr, SIZE: tl.constexpr,
) -> None:  # fmt: skip
    """The kernel: out <- w_0 x_0 + w_1 x_1 + ..., in that order.

    After the FIRST pass: out <- out + w_0 x_0 + w_1 x_1 + ...
    Every product but the first is added without prior rounding (fma). Sets `flag` where a sum is not finite,
    which is so wherever a source is not.
    """
    if (tl.program_id(0).to(tl.int64) + 1) * SIZE <= n:
        BLOCK_KERNEL(out, flag, sources, weights, n, FIRST, SIZE, True)
    else:
        BLOCK_KERNEL(out, flag, sources, weights, n, FIRST, SIZE, False)


KERNEL: Any = triton.jit(add_up)


def fused_sum(terms: Sequence[tuple[float, Tensor]], out: Tensor) -> bool | None:
    """Writes the weighted sum of one term or more; returns None where the kernel does not fit (`_fits`).

    The host waits only for the result, which is one number.
    """
    if not _fits(terms, out):
        return None
    if not out.numel():
        return True
    flag = torch.zeros(1, dtype=torch.int32, device=out.device)
    begin_sum(terms, out, flag)
    return not int(flag)


def begin_sum(terms: Sequence[tuple[float, Tensor]], out: Tensor, flag: Tensor) -> None:
    """Starts the kernel and returns; it sets `flag` (int32, one element) to 1 where the sum is not finite."""
    n = out.numel()
    with torch.cuda.device(out.device if out.is_cuda else -1):
        for first in range(0, len(terms), AT_ONCE):
            weights, sources = zip(*terms[first : first + AT_ONCE], strict=True)
            grid = (triton.cdiv(n, BLOCK),)
            KERNEL[grid](out, flag, sources, weights, n, FIRST=not first, SIZE=BLOCK, num_warps=WARPS)


def _fits(terms: Sequence[tuple[float, Tensor]], out: Tensor) -> bool:
    for _, x in terms:
        if x.shape != out.shape:
            raise ValueError(f"a vector of shape {tuple(x.shape)} cannot be mixed into {tuple(out.shape)}")
    sources = [x for _, x in terms]
    are_together = all(x.device == out.device and x.is_contiguous() for x in (out, *sources))
    return are_together and out.dtype == torch.float32 and all(x.dtype in DTYPES for x in sources)
