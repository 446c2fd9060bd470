"""Mixing in one pass over memory: every source is read once, the result is written once.

On the CPU by a function in C (`native_sum.py`) if it was compiled, on a GPU by a Triton kernel
(`triton_sum.py`) if triton is there; else by torch's own operations, by pieces that stay in a CPU's cache.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from decentnode.core.vector import HALVES, accumulator
from decentnode.sharing.blocks.native_sum import LIBRARY, loaded


def pieces(second_level_bytes: int) -> tuple[int, int]:
    """Elements per step, and the size up to which one step is used, for that size of second-level cache.

    In a large cache the partial sums, 512 KiB of fp32, stay. For a small one, long streams of 1 MiB are
    faster, or one step for a vector that fits in the third-level cache (docs/benchmarks.md, "Figures").
    """
    return (131_072, 262_144) if second_level_bytes >= 2 << 20 else (262_144, 1_048_576)


def _second_level_bytes() -> int:
    """Returns the size of the second-level cache of a core; 0 where the system does not report it."""
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().rstrip("K\n")) << 10
    except (OSError, ValueError):
        return 0


CHUNK, WHOLE = pieces(_second_level_bytes())


Terms = Iterable[tuple[float, Tensor]]
Sum = Callable[[Sequence[tuple[float, Tensor]], Tensor], bool | None]
"""A function like `weighted_sum`; returns None where it does not apply to these terms."""


def weighted_sum(terms: Terms, out: Tensor, origin: Tensor | None = None) -> bool:
    """Writes sum_k w_k x_k into `out`, added in the order given; tensors of shape (d,), `out` none of them.

    With `origin`: sum_k w_k (x_k - origin), each difference taken before it is weighted. Then two nodes that
    mix with the same weight move by opposite numbers, however weights and products are rounded.

    The x_k may be of another precision than `out`. Sums use the precision of `out`, or float32 where that is
    a half. A sum is rounded once, because rounding each term to a half would lose most of what the term adds.
    Returns False when some element of `out` may not be finite.
    """
    listed = list(terms)
    if out.dtype in HALVES:
        return _rounded_sum(listed, out, origin)
    fused = fused_on(out.device) if out.is_cuda else native()
    finite = fused(listed, out) if fused and origin is None else None
    return plain_sum(listed, out, origin) if finite is None else finite


def _rounded_sum(terms: Sequence[tuple[float, Tensor]], out: Tensor, origin: Tensor | None) -> bool:
    weights, sources = zip(*terms, strict=True)
    finite, origins = True, () if origin is None else (origin,)
    for piece, *parts in in_pieces(out, *sources, *origins):
        wide = torch.empty_like(piece, dtype=accumulator(out.dtype))
        start = None if origin is None else parts.pop()
        finite &= weighted_sum(zip(weights, parts, strict=True), wide, start)
        piece.copy_(wide)
    return finite


def in_pieces(*tensors: Tensor) -> "zip[tuple[Tensor, ...]]":
    """Yields the same piece of each tensor: small enough for a cache, or all of it on a GPU."""
    size = CHUNK if tensors[0].device.type == "cpu" else max(1, tensors[0].numel())
    return zip(*(torch.split(x, size) for x in tensors), strict=True)


def plain_sum(terms: Sequence[tuple[float, Tensor]], out: Tensor, origin: Tensor | None = None) -> bool:
    """Computes `weighted_sum` by torch's own operations, on any device.

    Whether all is finite is known from one sum per piece, computed while the piece is in the cache.
    """
    weights, sources = zip(*terms, strict=True)
    add_up = _add_up
    if origin is not None:
        add_up, sources = _add_up_differences, (origin.to(out.dtype), *sources)
    if out.numel() <= WHOLE or out.device.type != "cpu":
        add_up(out, weights, sources)
        return isfinite(float(out.sum()))
    sums = []
    for piece, *parts in zip(*(torch.split(x, CHUNK) for x in (out, *sources)), strict=True):
        add_up(piece, weights, parts)
        sums.append(piece.sum())
    return isfinite(float(torch.stack(sums).sum()))


@cache
def native() -> Sum | None:
    """The sum in C on the CPU, after a trial; None where it was not compiled."""
    return loaded(LIBRARY, plain_sum)


@cache
def fused_on(device: torch.device) -> Sum | None:
    """The sum by the kernel, after a trial on that GPU; None without triton."""
    if find_spec("triton") is None:
        return None
    try:
        from decentnode.sharing.blocks.triton_sum import fused_sum

        trial = torch.ones(1, device=device)
        fused_sum([(1.0, trial)], torch.empty_like(trial))
    except Exception as error:
        # Triton needs a compiler and a driver that suit it. Without them, torch computes the sum.
        reason = str(error).strip().splitlines()[-1:] or [""]
        print(f"mixing on {device}: without triton ({type(error).__name__}: {reason[0][:200]})", flush=True)
        return None
    return fused_sum


def _add_up(out: Tensor, weights: Sequence[float], sources: Sequence[Tensor]) -> None:
    first = sources[0]
    # Widened first: a product of a half-precision tensor would be rounded to half precision again.
    torch.mul(first if first.dtype == out.dtype else out.copy_(first), weights[0], out=out)
    for w, x in zip(weights[1:], sources[1:], strict=True):
        out.add_(x, alpha=w)


def _add_up_differences(out: Tensor, weights: Sequence[float], sources: Sequence[Tensor]) -> None:
    origin, first, *others = sources
    torch.sub(first, origin, out=out).mul_(weights[0])
    difference = torch.empty_like(out)
    for w, x in zip(weights[1:], others, strict=True):
        out.add_(torch.sub(x, origin, out=difference), alpha=w)
