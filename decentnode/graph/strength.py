"""The mixing strength a, and weights of that strength."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from numbers import Real
from typing import Any

import numpy as np

from decentnode.graph.base import Graph
from decentnode.graph.mixing import Mixing, Weights

Strength = float | Sequence[tuple[int, float]] | Callable[[int], float]
"""The strength a, from 0 to 1: a number, points (round, a) with straight lines between, or a function."""


def is_share(a: Any) -> bool:
    """Whether it is a number from 0 to 1, also one of numpy or torch."""
    is_number = isinstance(a, Real) or prod(getattr(a, "shape", (0,))) == 1
    return is_number and 0 <= float(a) <= 1


def are_points(points: Any) -> bool:
    """Whether these are pairs (round, a), in the order of their rounds."""
    if not isinstance(points, Sequence) or not points:
        return False
    if not all(isinstance(p, Sequence) and len(p) == 2 and isinstance(p[0], int) for p in points):
        return False
    rounds = [round for round, _ in points]
    return rounds == sorted(set(rounds)) and all(is_share(a) for _, a in points)


def strength_in(round: int, strength: Strength) -> float:
    """Returns the strength in a round; before the first point and after the last one it is constant."""
    if callable(strength):
        return strength(round)
    if isinstance(strength, Sequence):
        rounds, strengths = zip(*strength, strict=True)
        return float(np.interp(round, rounds, strengths))
    return strength


def at_strength(a: float, weights: Weights, rank: int) -> Weights:
    """Returns row `rank` of (1 - a) I + a W, given that of W."""
    return weights if a == 1 else {j: a * w + (1 - a) * (j == rank) for j, w in weights.items()}


def relative_strength(rates: Sequence[float]) -> Callable[[int], float]:
    """The learning rate of each round, divided by the largest of them; after the last round that of it.

    So models stay as far from each other as at large rates (Wang and Johansson, 2026, DSGD-AC).
    """
    largest = max(rates)
    return lambda round: rates[min(round, len(rates) - 1)] / largest


@dataclass(frozen=True)
class StrengthMixing(Mixing):
    """W' = (1 - a) I + a W, where W are the weights of another rule.

    W' is symmetric or doubly stochastic where W is, and keeps the mean of all models where W does.
    """

    mixing: Mixing
    strength: Strength

    @property
    def static(self) -> bool:  # type: ignore[override]
        return isinstance(self.strength, Real)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self.mixing.symmetric

    def check(self, graph: Graph) -> None:
        self.mixing.check(graph)

    def of_part(self, graph: Graph) -> Mixing:
        return replace(self, mixing=self.mixing.of_part(graph))

    def incoming(self, graph: Graph, rank: int, round: int) -> Weights:
        weights = self.mixing.incoming(graph, rank, round)
        return at_strength(strength_in(round, self.strength), weights, rank)
