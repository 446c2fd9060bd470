"""Mixing in one pass over memory: every source is read once, the result is written once."""

from collections.abc import Iterable

import torch
from torch import Tensor

CHUNK = 131_072
"""Elements per step: 512 KiB of fp32, so that the partial sums stay in the second-level cache."""


def weighted_sum(terms: Iterable[tuple[float, Tensor]], out: Tensor) -> None:
    """Writes sum_k w_k x_k into `out`, added in the order given; tensors of shape (d,), `out` none of them.

    The x_k may be of lower precision than `out`; sums are made in the precision of `out`.
    """
    (first_weight, first), *rest = terms
    if out.numel() <= 2 * CHUNK:
        _add_up(out, first_weight, first, rest)
        return
    weights = [weight for weight, _ in rest]
    columns = zip(*(torch.split(x, CHUNK) for x in (out, first, *(x for _, x in rest))), strict=True)
    for piece, head, *tail in columns:
        _add_up(piece, first_weight, head, list(zip(weights, tail, strict=True)))


def _add_up(out: Tensor, weight: float, first: Tensor, rest: list[tuple[float, Tensor]]) -> None:
    # Widened first: a product of a half-precision tensor would be rounded to half precision again.
    torch.mul(first if first.dtype == out.dtype else out.copy_(first), weight, out=out)
    for w, x in rest:
        out.add_(x, alpha=w)
