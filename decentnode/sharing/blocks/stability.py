"""Whether the momentum of a scheme lets disagreement grow on a graph, found out before the start."""

from collections.abc import Callable
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import name_of
from decentnode.core.rng import generator
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import SparseWeights

MOST_ROUNDS, LEAST_ROUNDS = 2000, 200
MOST_MULTIPLICATIONS = 10**8
"""Fewer rounds are tried where W is large, so that it takes about a second at most."""
MOST_ROWS = 1 << 16
"""Of all W that are looked at, so that a long period takes no longer."""
UNENDING = 64
"""Rounds of a graph without a period that are looked at."""
MOST_GROWTH = 3.0
"""Natural logarithm of the growth over the later half; what only turns does not grow so much."""

Array = NDArray[np.float64]
Mix = Callable[[Array], Array]
Advance = Callable[[Mix, Array, Array], Array]
"""The next models without gradients, given W, the models and the momentum u, each of shape (n, 1)."""


def growth(graph: WeightedGraph, advance: Advance, mu: float = 0.0) -> float:
    """The factor by which models grow in a round in the long run; 1 where they come to agree.

    x+ = advance(W, x, u),   u+ = mu u + (1 - mu) (x - x+),   without any gradient

    For a graph of period P this is the P-th root of the spectral radius of P rounds, by power iteration. A
    graph without a period, or with a very long one, is judged by its first rounds, as if they came again.
    """
    n = graph.num_nodes
    period = min(graph.graph.period or UNENDING, max(1, MOST_ROWS // n))
    weights = [SparseWeights(graph, round) for round in range(period)]
    entries = sum(w.entries for w in weights) // period
    half = max(LEAST_ROUNDS, min(MOST_ROUNDS, MOST_MULTIPLICATIONS // entries)) // 2
    x, u, total = generator(0, "growth").standard_normal((n, 1)), np.zeros((n, 1)), 0.0
    for round in range(2 * half):
        mixed = advance(weights[round % period].times, x, u)
        u = mu * u + (1 - mu) * (x - mixed)
        size = float(np.sqrt(np.square(mixed).sum() + np.square(u).sum()))
        x, u = mixed / size, u / size
        total += log(size) if round >= half else 0.0
    return exp(total / half) if total > MOST_GROWTH else 1.0


def refuse_growth(scheme: object, graph: WeightedGraph, advance: Advance, mu: float, remedy: str) -> None:
    """Raises BadInput where mixing with momentum `advance` drives models apart; `remedy` is said then."""
    factor = growth(graph, advance, mu)
    if factor > 1:
        raise BadInput(
            f"{name_of(scheme)} diverges on this graph: even without gradients, what models differ by grows "
            f"{factor:.3g} times a round; {remedy}"
        )
