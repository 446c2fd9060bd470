"""Mixing in one pass over memory: every source is read once, the result is written once.

On the CPU by pieces that stay in the cache; on a GPU by a Triton kernel (`fused_mix.py`) if triton is there.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor


def pieces(second_level_bytes: int) -> tuple[int, int]:
    """Elements per step, and up to how many there is one step, for a core with such a second-level cache.

    Where it is large the partial sums, 512 KiB of fp32, stay in it. Where it is not, long streams of 1 MiB
    are faster, and as a whole what a third-level cache holds (docs/benchmarks.md, "Figures").
    """
    return (131_072, 262_144) if second_level_bytes >= 2 << 20 else (262_144, 1_048_576)


def _second_level_bytes() -> int:
    """Of a core of this machine; 0 where it does not say."""
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().rstrip("K\n")) << 10
    except (OSError, ValueError):
        return 0


CHUNK, WHOLE = pieces(_second_level_bytes())


Terms = Iterable[tuple[float, Tensor]]
Sum = Callable[[Sequence[tuple[float, Tensor]], Tensor], bool | None]
"""Like `weighted_sum`; None where it cannot sum these up."""


def weighted_sum(terms: Terms, out: Tensor) -> bool:
    """Writes sum_k w_k x_k into `out`, added in the order given; tensors of shape (d,), `out` none of them.

    The x_k may be of lower precision than `out`; sums are made in the precision of `out`. False when some
    element of `out` may not be finite: each piece is summed up while it is in the cache, and one of those
    sums is not finite.
    """
    listed = list(terms)
    finite = fused_on(out.device)(listed, out) if out.is_cuda else None
    return plain_sum(listed, out) if finite is None else finite


def plain_sum(terms: Sequence[tuple[float, Tensor]], out: Tensor) -> bool:
    """`weighted_sum` by torch's own operations, on any device."""
    (first_weight, first), *rest = terms
    if out.numel() <= WHOLE or out.device.type != "cpu":
        _add_up(out, first_weight, first, rest)
        return isfinite(float(out.sum()))
    sums = []
    weights = [weight for weight, _ in rest]
    columns = zip(*(torch.split(x, CHUNK) for x in (out, first, *(x for _, x in rest))), strict=True)
    for piece, head, *tail in columns:
        _add_up(piece, first_weight, head, list(zip(weights, tail, strict=True)))
        sums.append(piece.sum())
    return isfinite(float(torch.stack(sums).sum()))


@cache
def fused_on(device: torch.device) -> Sum:
    """The sum by the kernel, tried out on that GPU; where there is no triton, one that can sum up nothing."""
    if find_spec("triton") is None:
        return _nothing
    try:
        from decentnode.sharing.fused_mix import fused_sum

        one = torch.ones(1, device=device)
        fused_sum([(1.0, one)], torch.empty_like(one))
    except Exception as error:
        # Triton needs a compiler and a driver that suit it. Whatever it lacks, torch can add.
        reason = str(error).strip().splitlines()[-1:] or [""]
        print(f"mixing on {device}: without triton ({type(error).__name__}: {reason[0][:200]})", flush=True)
        return _nothing
    return fused_sum


def is_finite(x: Tensor) -> bool:
    """Whether all elements are; they are looked at one by one only where their sum is not."""
    return isfinite(float(x.sum())) or bool(x.isfinite().all())


def _nothing(terms: Sequence[tuple[float, Tensor]], out: Tensor) -> None:
    return None


def _add_up(out: Tensor, weight: float, first: Tensor, rest: list[tuple[float, Tensor]]) -> None:
    # Widened first: a product of a half-precision tensor would be rounded to half precision again.
    torch.mul(first if first.dtype == out.dtype else out.copy_(first), weight, out=out)
    for w, x in rest:
        out.add_(x, alpha=w)
