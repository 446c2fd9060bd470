"""Mixing weights of a given strength."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decentnode.graph.base import Graph
from decentnode.graph.mixing import Mixing, Weights

Strength = Callable[[int], float]
"""Returns the strength a of a round, from 0 to 1."""


def linear_strength(points: Sequence[tuple[int, float]]) -> Strength:
    """The strength through points (round, a), in the order of their rounds: linear between, then constant."""
    rounds, strengths = zip(*points, strict=True)
    return lambda round: float(np.interp(round, rounds, strengths))


def relative_strength(rates: Sequence[float]) -> Strength:
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
    static: bool = False  # type: ignore[misc]

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self.mixing.symmetric

    def check(self, graph: Graph) -> None:
        self.mixing.check(graph)

    def of_part(self, graph: Graph) -> Mixing:
        return replace(self, mixing=self.mixing.of_part(graph))

    def incoming(self, graph: Graph, rank: int, round: int) -> Weights:
        weights, a = self.mixing.incoming(graph, rank, round), self.strength(round)
        if a == 1:
            return weights
        return {j: a * w + (1 - a) * (j == rank) for j, w in weights.items()}
