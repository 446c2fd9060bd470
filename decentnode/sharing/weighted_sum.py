"""Mixing in one pass over memory: every source is read once, the result is written once."""

from collections.abc import Iterable
from math import isfinite

import torch
from torch import Tensor

CHUNK = 131_072
"""Elements per step: 512 KiB of fp32, so that the partial sums stay in the second-level cache."""


Terms = Iterable[tuple[float, Tensor]]


def weighted_sum(terms: Terms, out: Tensor) -> bool:
    """Writes sum_k w_k x_k into `out`, added in the order given; tensors of shape (d,), `out` none of them.

    The x_k may be of lower precision than `out`; sums are made in the precision of `out`. False when some
    element of `out` may not be finite: each piece is summed up while it is in the cache, and one of those
    sums is not finite.
    """
    (first_weight, first), *rest = terms
    if out.numel() <= 2 * CHUNK:
        _add_up(out, first_weight, first, rest)
        return isfinite(float(out.sum()))
    sums = []
    weights = [weight for weight, _ in rest]
    columns = zip(*(torch.split(x, CHUNK) for x in (out, first, *(x for _, x in rest))), strict=True)
    for piece, head, *tail in columns:
        _add_up(piece, first_weight, head, list(zip(weights, tail, strict=True)))
        sums.append(piece.sum())
    return isfinite(float(torch.stack(sums).sum()))


def is_finite(x: Tensor) -> bool:
    """Whether all elements are; they are looked at one by one only where their sum is not."""
    return isfinite(float(x.sum())) or bool(x.isfinite().all())


def _add_up(out: Tensor, weight: float, first: Tensor, rest: list[tuple[float, Tensor]]) -> None:
    # Widened first: a product of a half-precision tensor would be rounded to half precision again.
    torch.mul(first if first.dtype == out.dtype else out.copy_(first), weight, out=out)
    for w, x in rest:
        out.add_(x, alpha=w)
