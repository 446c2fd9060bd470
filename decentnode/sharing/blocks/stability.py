"""Checks before the start whether a scheme lets disagreement, or the error of its chain, grow."""

from collections.abc import Callable
from functools import partial
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from decentnode.core.payload import Form
from decentnode.core.registry import name_of
from decentnode.core.rng import generator
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import SparseWeights
from decentnode.transforms.chain import Chain
from decentnode.transforms.quantize.cast import Cast

MOST_ROUNDS, LEAST_ROUNDS = 2000, 200
MOST_MULTIPLICATIONS = 10**8
"""Limits the rounds that are tried where W is large, to about a second."""
MOST_ROWS = 1 << 16
"""Limits the rows of all W that are tried, to about a second for a long period, too."""
UNENDING = 64
"""Rounds that are tried of a graph without a period."""
MOST_WHOLE = 64
"""Nodes of a graph whose matrices are used whole."""
MOST_GROWTH = 3.0
"""The logarithm of the most growth over the later half; models that merely oscillate stay below it."""

Array = NDArray[np.float64]
Mix = Callable[[Array], Array]
Advance = Callable[[Mix, Array, Array], Array]
"""The next models without gradients, given W, the models and the momentum u, each of shape (n, 1)."""


def growth(graph: WeightedGraph, advance: Advance, mu: float = 0.0) -> float:
    """The factor by which models grow in a round in the long run; 1 where they reach consensus.

    x+ = advance(W, x, u),   u+ = mu u + (1 - mu) (x - x+),   without any gradient

    For a graph of period P this is the P-th root of the spectral radius of P rounds, by power iteration. For
    a graph without a period, or with a very long one, the first rounds are used as if they were a period. Of
    graphs that hold one after the other it is the largest factor.
    """
    consecutive = graph.graph.changes.spans
    return max(_growth(graph, rounds[: part.period or UNENDING], advance, mu) for rounds, part in consecutive)


def _growth(graph: WeightedGraph, rounds: range, advance: Advance, mu: float) -> float:
    n = graph.num_nodes
    weights = [SparseWeights(graph, round) for round in rounds[: max(1, MOST_ROWS // n)]]
    period = len(weights)
    entries = sum(w.entries for w in weights) // period
    # A small W is faster as a whole matrix.
    mixes: list[Mix] = [
        w.times if n > MOST_WHOLE else partial(np.matmul, w.times(np.eye(n))) for w in weights
    ]
    half = max(LEAST_ROUNDS, min(MOST_ROUNDS, MOST_MULTIPLICATIONS // entries)) // 2
    x, u, total = generator(0, "growth").standard_normal((n, 1)), np.zeros((n, 1)), 0.0
    for round in range(2 * half):
        mixed = advance(mixes[round % period], x, u)
        u = mu * u + (1 - mu) * (x - mixed)
        size = float(np.sqrt(np.square(mixed).sum() + np.square(u).sum()))
        x, u = mixed / size, u / size
        total += log(size) if round >= half else 0.0
    return exp(total / half) if total > MOST_GROWTH else 1.0


def refuse_growth(scheme: object, graph: WeightedGraph, advance: Advance, mu: float, remedy: str) -> None:
    """Raises BadInput, with `remedy`, where mixing with momentum `advance` drives models apart."""
    factor = growth(graph, advance, mu)
    if factor > 1:
        raise BadInput(
            f"{name_of(scheme)} diverges on this graph: even without gradients, what models differ by grows "
            f"{factor:.3g} times a round; {remedy}"
        )


def refuse_coarse(chain: Chain, why: str) -> None:
    """Raises BadInput, with `why`, where a transform selects or quantizes; a cast does not count."""
    for index, stage in enumerate(chain.stages):
        if stage.emits is Form.SPARSE or (stage.emits is Form.QUANTIZED and not isinstance(stage, Cast)):
            raise BadInput.at(
                f"transforms[{index}]", f"{name_of(stage)} is too coarse for {why}, or leave it out"
            )
