"""Figures of a graph with its mixing weights: size, distances, speed of mixing."""

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decentnode.core.rng import generator
from decentnode.graph.base import Graph, RedrawnGraph
from decentnode.graph.connectivity import rounds_to_reach
from decentnode.graph.mixing import WeightedGraph

MOST_DENSE_NODES = 2000
MOST_MULTIPLICATIONS = 10**10
"""Limit for the product of all W of a period."""
MEASURED_ROUNDS = 200
"""Rounds of a graph without a period over which its contraction is measured, each with random models."""
MEASURED_MODELS = 20
TARGET = 1e-6
ZERO = 1e-12
"""The value below which 1 - lambda and lambda are rounding errors."""
KRYLOV_STEPS = 200
EXHAUSTED = 1e-9
"""A next Lanczos direction shorter than this is noise: all distinct values have been found."""

Array = NDArray[Any]


@dataclass(frozen=True)
class GraphFigures:
    """The output of `decentnode graph`; degrees count the targets of a node in one round."""

    nodes: int
    period: int | None
    """Rounds after which the graph repeats; None: all but the contraction are figures of round 0."""
    edges: int
    """Pairs that exchange in any round."""
    directed: bool
    degree_min: int
    degree_mean: float
    degree_max: int
    connected: bool
    diameter: int | None
    """Rounds until every node has information from every other; in a static graph the most hops."""
    doubly_stochastic: bool
    exact_after: int | None
    """Rounds after which all have the exact mean, at most a period; None: never, or unknown."""
    contraction: float | None
    """The factor by which disagreement shrinks per round in the long run; None where W is too large.

    Second largest |eigenvalue| of W, or the spectral norm of W - J; for a period of P rounds the P-th root of
    the second largest |eigenvalue| of their product; without a period as in `mean_contraction`.
    """
    rounds_to_target: int | None
    """Rounds until disagreement is at most 1e-6 of what it was; None when it does not shrink."""
    expected: float | None = None
    """The expectation of `contraction`; None where it is not known or the graph repeats."""


def measure(weighted: WeightedGraph) -> GraphFigures:
    """The figures of a graph over its period; of the first rounds where it has none."""
    graph, ranks = weighted.graph, range(weighted.num_nodes)
    rounds = [tuple(graph.targets(rank, round) for rank in ranks) for round in graph.changes.rounds()]
    degrees = [len(targets) for adjacency in rounds for targets in adjacency]
    edges = {(i, j) for adjacency in rounds for i, targets in enumerate(adjacency) for j in targets}
    waited = rounds_to_reach(rounds)
    exact, factor = convergence(weighted)
    within = rounds_to(TARGET, factor) if factor is not None else None
    return GraphFigures(
        nodes=len(ranks),
        period=graph.period,
        edges=len(edges) if weighted.directed else len(edges) // 2,
        directed=weighted.directed,
        degree_min=min(degrees),
        degree_mean=sum(degrees) / len(degrees),
        degree_max=max(degrees),
        connected=waited is not None,
        diameter=waited,
        doubly_stochastic=keeps_mean(weighted),
        exact_after=exact,
        contraction=factor,
        rounds_to_target=within if exact is None else exact,
        expected=_expected(graph),
    )


def _expected(graph: Graph) -> float | None:
    factor = graph.expected_factor if isinstance(graph, RedrawnGraph) and graph.period is None else None
    return None if factor is None else sqrt(factor)


def mean_contraction(weighted: WeightedGraph) -> float:
    """The factor by which the disagreement of random models shrinks in a round, as a mean of squares over
    the first rounds of a graph that never repeats.
    """
    random, ratios = generator(0, "mean_contraction"), []
    for round in range(MEASURED_ROUNDS):
        x = random.standard_normal((weighted.num_nodes, MEASURED_MODELS))
        x -= x.mean(0)
        y = SparseWeights(weighted, round).times(x)
        ratios.append(((y - y.mean(0)) ** 2).sum() / max((x**2).sum(), EXHAUSTED))
    return float(np.sqrt(np.mean(ratios)))


def keeps_mean(weighted: WeightedGraph) -> bool:
    """Whether W is doubly stochastic in every round of the graph's period, so that mixing keeps the mean."""
    return all(SparseWeights(weighted, round).doubly_stochastic for round in weighted.graph.changes.rounds())


def convergence(weighted: WeightedGraph) -> tuple[int | None, float | None]:
    """Rounds after which all have the exact mean, and the factor by which disagreement shrinks per round."""
    cycle = weighted.graph.changes.rounds()
    if weighted.graph.period is None:
        return None, mean_contraction(weighted)
    if len(cycle) == 1:
        factor = contraction(weighted)
        return (1 if factor is not None and factor < ZERO else None), factor
    rounds = [SparseWeights(weighted, round) for round in cycle]
    n = weighted.num_nodes
    if n > MOST_DENSE_NODES or n * sum(w.entries for w in rounds) > MOST_MULTIPLICATIONS:
        return None, None
    product = np.eye(n)
    for done, w in enumerate(rounds, 1):
        product = w.times(product)
        if np.abs(product - 1 / n).max() < ZERO:
            return done, 0.0
    return None, float(np.sort(np.abs(np.linalg.eigvals(product)))[-2] ** (1 / len(rounds)))


def rounds_to(target: float, factor: float) -> int | None:
    """The smallest t with factor^t <= target; None when disagreement does not shrink."""
    if factor >= 1 - ZERO:
        return None
    if factor <= target:
        return 1
    return ceil(log(target) / log(factor) - ZERO)


class SparseWeights:
    """W of one round as its entries, for graphs whose full matrix would be large."""

    def __init__(self, weighted: WeightedGraph, round: int) -> None:
        self.nodes = weighted.num_nodes
        rows = [weighted.mixing.incoming(weighted.graph, rank, round) for rank in range(self.nodes)]
        self._rows = np.repeat(np.arange(self.nodes), [len(row) for row in rows])
        self._columns = np.array([j for row in rows for j in row])
        self._values = np.array([weight for row in rows for weight in row.values()])
        self._first = np.flatnonzero(np.diff(self._rows, prepend=-1))

    @property
    def doubly_stochastic(self) -> bool:
        """Whether columns sum to 1 as rows do, so that mixing keeps the mean."""
        return bool(np.abs(self._sums(self._columns, self._values) - 1).max() <= self.nodes * ZERO)

    @property
    def symmetric(self) -> bool:
        """Whether w_ij = w_ji for all pairs."""
        by_row, by_column = np.lexsort((self._columns, self._rows)), np.lexsort((self._rows, self._columns))
        same = np.array_equal(self._rows[by_row], self._columns[by_column])
        same = same and np.array_equal(self._columns[by_row], self._rows[by_column])
        return same and bool(np.abs(self._values[by_row] - self._values[by_column]).max() <= ZERO)

    @property
    def entries(self) -> int:
        """The number of weights, self weights included."""
        return len(self._values)

    def times(self, x: Array) -> Array:
        """Returns W x for x of shape (n, d)."""
        y: Array = np.add.reduceat(self._values[:, None] * x[self._columns], self._first)
        return y

    def gram(self, x: Array) -> Array:
        """Returns (W - J)^T (W - J) x for x of shape (n,)."""
        y = self._sums(self._rows, self._values * x[self._columns]) - x.mean()
        z: Array = self._sums(self._columns, self._values * y[self._rows]) - y.mean()
        return z

    def _sums(self, at: Array, values: Array) -> Array:
        sums: Array = np.bincount(at, values, minlength=self.nodes)
        return sums


def contraction(weighted: WeightedGraph) -> float | None:
    """The factor by which disagreement shrinks in round 0, if all rounds are like it.

    Where W is doubly stochastic this is the spectral norm of W - J, which for symmetric W is its second
    largest |eigenvalue|. Otherwise it is the second largest |eigenvalue|, right in the long run.
    """
    w, n = SparseWeights(weighted, 0), weighted.num_nodes
    if n > MOST_DENSE_NODES:
        return largest_singular_value(w) if w.doubly_stochastic else None
    W = weighted.matrix()
    if not w.doubly_stochastic:
        return float(np.sort(np.abs(np.linalg.eigvals(W)))[-2])
    if np.array_equal(W, W.T):
        return float(np.abs(np.linalg.eigvalsh(W - 1 / n)).max())
    return float(np.linalg.norm(W - 1 / n, 2))


def largest_singular_value(weights: SparseWeights) -> float:
    """The spectral norm of W - J by Lanczos (1950) on its Gram matrix, from below.

    Unlike power iteration it is accurate where the largest values lie close together, as in large sparse
    graphs. All earlier directions are kept and subtracted again, because rounding adds them.
    """
    basis = np.zeros((KRYLOV_STEPS, weights.nodes))
    tridiagonal = np.zeros((KRYLOV_STEPS, KRYLOV_STEPS))
    x = generator(0, "lanczos").standard_normal(weights.nodes)
    x /= np.linalg.norm(x)
    for k in range(KRYLOV_STEPS):
        basis[k] = x
        x = weights.gram(x)
        tridiagonal[k, k] = basis[k] @ x
        for _ in range(2):  # rounding in the first subtraction leaves a rest, which the second removes
            x -= basis[: k + 1].T @ (basis[: k + 1] @ x)
        length = np.linalg.norm(x)
        if length < EXHAUSTED or k + 1 == KRYLOV_STEPS:
            break
        tridiagonal[k, k + 1] = tridiagonal[k + 1, k] = length
        x /= length
    return float(np.sqrt(max(np.linalg.eigvalsh(tridiagonal).max(), 0.0)))
