"""What the contract tests must know of each registered transform: a chain that exercises it, and its error.

Add yours with one entry (or several: the transform's name is the first word of the key):

    "top_k": Case(lambda: [TopK(0.1)], lambda v: 0.9**0.5 * v.norm()),
    "rice": Case(lambda: [TopK(0.1), Rice()], reference=lambda: [TopK(0.1)]),
    "cast fp16": Case(lambda: [Cast("fp16")], lambda v: 2.0**-11 * v.abs() + 2.0**-25),
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.transforms import Cast
from decentnode.transforms.base import Transform
from decentnode.vector import ParameterLayout

Bound = Callable[[Tensor], Tensor | float]


@dataclass(frozen=True)
class Case:
    """One chain of fresh transforms, and how far what it decodes may be from what went in."""

    chain: Callable[[], list[Transform]]
    bound: Bound | None = None
    """Of the signal, in its own dtype: its error at most, by element (a tensor of its shape) or the error's
    Euclidean norm (one number); None: exact. Lengths of 0, 1 and 2 and the zero signal included."""
    reference: Callable[[], list[Transform]] = list
    """The same chain without what is tested: the error is counted from what this one decodes."""
    parameters: Callable[[int], ParameterLayout | None] = lambda length: None
    """Which parameters a signal of that length has, for transforms that work by parameter."""
    may_alias: bool = False
    """What is encoded may be a view of the signal; say why beside the entry."""


def by_element(factor: float, least: float = 0.0) -> Bound:
    """An error of each element of at most `factor` times its magnitude, plus `least`."""
    return lambda v: factor * v.abs() + least


def by_norm(factor: float) -> Bound:
    """An error whose norm is at most `factor` times the signal's."""
    return lambda v: factor * float(torch.linalg.vector_norm(v)) + 1e-12


CASES: dict[str, Case] = {
    "cast fp16": Case(lambda: [Cast("fp16")], by_element(2.0**-11, 2.0**-25)),
    "cast bf16": Case(lambda: [Cast("bf16")], by_element(2.0**-8, 2.0**-134)),
}
