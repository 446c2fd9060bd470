"""How fast disagreement shrinks: as measured with random models, and as published for a family of graphs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, cos, exp, inf, log, log2, pi, sqrt
from typing import Any, Literal

import numpy as np

from decentnode.core.registry import name_of
from decentnode.core.rng import generator
from decentnode.graph.base import RedrawnGraph
from decentnode.graph.base_k import BaseKPlusOne
from decentnode.graph.families import Chain, Exponential, FullyConnected, Hypercube, Ring, Star, Torus
from decentnode.graph.mixing import WeightedGraph, default_weights
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EquiTopo, Matcha
from decentnode.graph.spectrum import (
    MEASURED_MODELS,
    MEASURED_ROUNDS,
    MOST_DENSE_NODES,
    MOST_MULTIPLICATIONS,
    Array,
    SparseWeights,
    mean_contraction,
)
from decentnode.graph.time_varying import (
    AlternatingExponentialRing,
    AlternatingRing,
    OnePeerExponential,
    OnePeerHypercube,
    is_power_of_two,
)

AGREED = 1e-13
"""Models that differ in a round by less than this share of before agree but for rounding."""
EQUI_TOPO_RISK = 0.05
"""p of EquiTopo, the share of seeds whose hops are worse than the bound."""
Unit = Literal["round", "period"]


@dataclass(frozen=True)
class KnownDecay:
    """A factor by which disagreement (a norm) shrinks in a round or a period, as the literature has it."""

    per: Unit
    factor: float
    formula: str
    """The formula of the factor, and its source."""
    holds: Literal["", "at most ", "expected ", "mostly below "] = ""
    """The sense in which the factor holds; empty: exactly, in the long run."""


@dataclass(frozen=True)
class MeasuredDecay:
    """Factors of the disagreement of random models that are only mixed; None: not measured."""

    round: float | None
    """The factor of a round: in the long run where the graph repeats, else the root mean square."""
    period: float | None
    """The factor over the first period of a graph that repeats."""
    expected_period: float | None = None
    """The root mean square over a period, |P - J|_F / sqrt(n - 1); P: the product of all its W."""
    worst_period: float | None = None
    """The decay over a period for the models for which it is largest: the spectral norm of P - J."""


def measured_decay(weighted: WeightedGraph) -> MeasuredDecay:
    """Mixes random models: for 200 rounds or two periods; where the graph never repeats, each round alone."""
    period = weighted.graph.period
    if period is None:
        return MeasuredDecay(mean_contraction(weighted), None)
    rounds = 2 * period * max(1, MEASURED_ROUNDS // (2 * period))
    weights = [SparseWeights(weighted, round) for round in weighted.graph.changes.rounds()]
    if rounds * sum(w.entries for w in weights) * MEASURED_MODELS > MOST_MULTIPLICATIONS * period:
        return MeasuredDecay(None, None)
    x = generator(0, "measured_decay").standard_normal((weighted.num_nodes, MEASURED_MODELS))
    x, factors = _scaled(x)[0], list[float]()
    for round in range(rounds):
        x, factor = _scaled(weights[round % period].times(x))
        factors.append(factor)
        if not factor:
            break
    logarithms = [log(factor) if factor else -inf for factor in factors]
    long_run = exp(sum(logarithms[rounds // 2 :]) / (rounds // 2)) if factors[-1] else 0.0
    return MeasuredDecay(long_run, exp(sum(logarithms[:period])), *_of_the_product(weighted, weights))


def _scaled(x: Array) -> tuple[Array, float]:
    """The differences from the mean, of norm 1, and their norm; zeros where nothing but rounding is left."""
    x = x - x.mean(0)
    size = float(np.linalg.norm(x))
    return (x / size, size) if size > AGREED else (x * 0.0, 0.0)


def _of_the_product(
    weighted: WeightedGraph, weights: Sequence[SparseWeights]
) -> tuple[float | None, float | None]:
    """Returns `expected_period` and `worst_period`."""
    n = weighted.num_nodes
    if n > MOST_DENSE_NODES or n * sum(w.entries for w in weights) > MOST_MULTIPLICATIONS:
        return None, None
    product = np.eye(n)
    for w in weights:
        product = w.times(product)
    product -= product.mean(0)
    return float(np.linalg.norm(product)) / sqrt(max(n - 1, 1)), float(np.linalg.norm(product, 2))


def known_decay(weighted: WeightedGraph) -> KnownDecay | None:
    """Returns the published rate of the family and its usual weights; None where none is known."""
    graph = weighted.graph
    if name_of(weighted.mixing) != default_weights(graph) or graph.num_nodes < 3:
        return None
    if isinstance(graph, RedrawnGraph) and graph.period is None and graph.expected_factor is not None:
        return KnownDecay("round", sqrt(graph.expected_factor), _EXPECTED[name_of(graph)], holds="expected ")
    formula = KNOWN.get(type(graph))
    return None if formula is None else formula(graph)


_EXPECTED = {
    "epidemic_oracle": "squared (1/(s+1)) (1 - s/(n-1)) (De Vos et al., 2023)",
    "epidemic_local": "squared (1/s) (1 - (1 - s/(n-1))^n) - 1/(n-1) (De Vos et al., 2023)",
    "random_matching": "squared (n-2)/(2(n-1)) (Boyd et al., 2006)",
}


def _ring(graph: Ring) -> KnownDecay:
    cosine = cos(2 * pi / graph.num_nodes)
    return KnownDecay("round", 1 / 3 + 2 / 3 * cosine, "1/3 + 2/3 cos(2 pi/n) (Xiao and Boyd, 2004)")


def _chain(graph: Chain) -> KnownDecay:
    return KnownDecay(
        "round", 1 / 3 + 2 / 3 * cos(pi / graph.num_nodes), "1/3 + 2/3 cos(pi/n) (Xiao and Boyd, 2004)"
    )


def _torus(graph: Torus) -> KnownDecay | None:
    if min(graph.rows, graph.columns) < 3:
        return None
    angles = [2 * np.pi * np.arange(count) / count for count in (graph.rows, graph.columns)]
    values = (1 + 2 * np.cos(angles[0])[:, None] + 2 * np.cos(angles[1])) / 5
    return KnownDecay(
        "round", float(np.sort(np.abs(values).ravel())[-2]),
        "(1 + 2 cos(2 pi a/rows) + 2 cos(2 pi b/columns))/5, the largest but a = b = 0 (Xiao and Boyd, 2004)",
    )  # fmt: skip


def _regular(graph: Regular) -> KnownDecay | None:
    d = graph.degree
    if not 3 <= d < graph.num_nodes - 1:
        return None
    formula = "(1 + 2 sqrt(d-1))/(d+1), of most random graphs, a little above for small n (Friedman, 2008)"
    return KnownDecay("round", (1 + 2 * sqrt(d - 1)) / (d + 1), formula, holds="mostly below ")


def _exponential(graph: Exponential) -> KnownDecay:
    n = graph.num_nodes
    return KnownDecay(
        "round", 1 - 2 / (1 + ceil(log2(n))), "1 - 2/(1 + ceil(log2 n)) (Ying et al., 2021)",
        holds="" if n % 2 == 0 else "at most ",
    )  # fmt: skip


def _one_peer(graph: OnePeerExponential) -> KnownDecay | None:
    if not is_power_of_two(graph.num_nodes):
        return None
    return KnownDecay("period", 0.0, "exact after log2 n rounds, as n = 2^r (Ying et al., 2021)")


def _alternating_ring(graph: AlternatingRing) -> KnownDecay | None:
    if graph.num_nodes % 2:
        return None
    return KnownDecay("round", cos(2 * pi / graph.num_nodes), "cos(2 pi/n), of two matchings of a cycle")


def _base_k(graph: BaseKPlusOne) -> KnownDecay:
    n, k = graph.num_nodes, min(graph.degree, graph.num_nodes - 1)
    most = 2 * log(n) / log(k + 1) + 2
    return KnownDecay(
        "period", 0.0,
        f"exact for every n, after at most 2 log_(k+1)(n) + 2 = {most:.1f} rounds (Takezawa et al., 2023)",
    )  # fmt: skip


def _matcha(graph: Matcha) -> KnownDecay:
    return KnownDecay(
        "round", sqrt(graph.rho), "squared rho = |E W^T W - J| (Wang et al., 2019)", holds="at most "
    )


def _equi_topo(graph: EquiTopo) -> KnownDecay | None:
    """The hops are drawn once; rho is the norm of their mean, as of the same graph without `one_peer`."""
    n, eta = graph.num_nodes, graph.eta
    if not graph.directed:
        return None
    if not graph.one_peer:
        most = sqrt(8 * log(2 * n / EQUI_TOPO_RISK) / (3 * len(graph.hops)))
        formula = "sqrt(8 ln(2 n/p)/(3 M)) for M hops, but for p = 5 % of seeds (Song et al., 2022)"
        return KnownDecay("round", most, formula, holds="mostly below ") if most < 1 else None
    shifts = np.exp(2j * np.pi * np.outer(np.arange(1, n), graph.hops) / n).mean(1)
    rho = float(np.abs((n - 1) / n * shifts + 1 / n).max())
    squared = (1 - eta) ** 2 + 2 * eta * (1 - eta) * rho + eta**2
    formula = f"squared (1-eta)^2 + 2 eta (1-eta) rho + eta^2, rho = {rho:.4f} (Song et al., 2022)"
    return KnownDecay("round", sqrt(squared), formula, holds="at most ")


KNOWN: dict[type, Callable[[Any], KnownDecay | None]] = {
    Ring: _ring,
    Chain: _chain,
    Torus: _torus,
    Regular: _regular,
    Exponential: _exponential,
    OnePeerExponential: _one_peer,
    AlternatingRing: _alternating_ring,
    BaseKPlusOne: _base_k,
    Matcha: _matcha,
    EquiTopo: _equi_topo,
    Star: lambda graph: KnownDecay("round", 1 - 1 / graph.num_nodes, "1 - 1/n (Xiao and Boyd, 2004)"),
    FullyConnected: lambda _: KnownDecay("round", 0.0, "0, as W = J"),
    Hypercube: lambda graph: KnownDecay(
        "round", (graph.dimension - 1) / (graph.dimension + 1), "(r-1)/(r+1), n = 2^r (Xiao and Boyd, 2004)"
    ),
    OnePeerHypercube: lambda _: KnownDecay(
        "period", 0.0, "exact after r rounds, n = 2^r (Wang et al., 2025)"
    ),
    AlternatingExponentialRing: lambda _: KnownDecay(
        "period", 0.0, "exact after 2 log2(machines) rounds (Wang et al., 2025)"
    ),
}
