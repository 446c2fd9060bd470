"""Graphs that change from round to round: who meets whom, and what a period of them averages."""

from itertools import product
from math import cos, log, pi

import numpy as np
import pytest

from decentnode.cli.graph import report
from decentnode.core.registry import MIXINGS
from decentnode.errors import BadInput
from decentnode.graph.base_k import BaseKPlusOne, factors
from decentnode.graph.families import FullyConnected, Hypercube, Ring
from decentnode.graph.mixing import (
    FromGraph,
    MetropolisHastings,
    Uniform,
    WeightedGraph,
    default_weights,
)
from decentnode.graph.spectrum import convergence, measure
from decentnode.graph.time_varying import (
    AlternatingExponentialRing,
    AlternatingRing,
    OnePeerExponential,
    OnePeerHypercube,
)

SIZES = range(1, 31)
POWERS = [1, 2, 4, 8, 16, 32]
MACHINES = [(n, k) for k in (1, 2, 3, 4) for n in (k, 2 * k, 4 * k, 8 * k)]
BASES = [(n, k) for n in SIZES for k in (1, 2, 3, 4) if k <= max(1, n - 1)]
ONE_PEER = [
    *(AlternatingRing(n) for n in SIZES),
    *(OnePeerExponential(n) for n in SIZES),
    *(OnePeerHypercube(n) for n in POWERS),
]
EXACT = [
    *(OnePeerExponential(n) for n in POWERS),
    *(OnePeerHypercube(n) for n in POWERS),
    *(AlternatingExponentialRing(n, k, way) for n, k in MACHINES for way in ("all", "one")),
    *(BaseKPlusOne(n, k, simple) for n, k in BASES for simple in (False, True)),
]


FAMILIES = [AlternatingRing, OnePeerExponential, OnePeerHypercube, AlternatingExponentialRing, BaseKPlusOne]


def members(graphs, family):
    """One test for a family rather than one for each of a thousand graphs, which takes pytest seconds."""
    return (graph for graph in graphs if isinstance(graph, family))


def weighted(graph):
    return WeightedGraph(graph, MIXINGS.find(default_weights(graph))())


def period_of(graph):
    """W of every round of a period, float64."""
    return [weighted(graph).matrix(round) for round in graph.changes.rounds()]


def partner(graph, rank, round):
    return next(iter(graph.targets(rank, round)), None)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_round_keeps_the_mean_and_comes_again(family):
    """W is doubly stochastic; both ends agree who sends; nobody meets itself; all repeats after a period."""
    for graph in members([*ONE_PEER, *EXACT], family):
        assert graph.static == (graph.period == 1), graph
        for round, w in zip(graph.changes.rounds(), period_of(graph), strict=True):
            assert w.min() >= 0, graph
            assert np.allclose([w.sum(0), w.sum(1)], 1, rtol=0, atol=1e-14), graph
            assert graph.directed or np.array_equal(w, w.T), graph
            assert_consistent(graph, round)


def assert_consistent(graph, round):
    targets = [graph.targets(i, round) for i in range(graph.num_nodes)]
    heard = [[j for j, to in enumerate(targets) if i in to] for i in range(graph.num_nodes)]
    for i, targets_of in enumerate(targets):
        assert list(targets_of) == sorted(set(targets_of) - {i}), graph
        assert list(graph.sources(i, round)) == heard[i], graph
        assert targets_of == graph.targets(i, round + 3 * graph.period), graph


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_a_period_averages_exactly(family):
    for graph in members(EXACT, family):
        mixed = np.eye(graph.num_nodes)
        for w in period_of(graph):
            mixed = w @ mixed
        assert np.abs(mixed - 1 / graph.num_nodes).max() < 1e-14, graph


@pytest.mark.parametrize("family", FAMILIES[:3])
def test_one_peer_is_one_peer(family):
    for graph in members(ONE_PEER, family):
        n = graph.num_nodes
        met = [len(graph.targets(i, round)) for round in graph.changes.rounds() for i in range(n)]
        resting = n if family is AlternatingRing and n % 2 else 0
        assert sum(met) == (len(met) - resting if n > 1 else 0), graph
        assert max(met) <= 1, graph
        assert n == 1 or {w for matrix in period_of(graph) for w in matrix.ravel()} <= {0, 0.5, 1}, graph


@pytest.mark.parametrize("n", [3, 4, 5, 6, 9, 10])
def test_an_alternating_ring_is_a_ring_over_a_period(n):
    graph = AlternatingRing(n)
    assert graph.period == (n if n % 2 else 2)
    assert [graph.partners(i) for i in range(n)] == [set(neighbors) for neighbors in Ring(n).adjacency]
    edges = [(i, partner(graph, i, round)) for round in graph.changes.rounds() for i in range(n)]
    counts = {edges.count((i, (i + 1) % n)) for i in range(n)}
    assert counts == {(n - 1) // 2 if n % 2 else 1}, "no edge more often than another"


def test_pairs_of_a_ring_by_hand():
    six, five = AlternatingRing(6), AlternatingRing(5)
    assert [[partner(six, i, round) for i in range(6)] for round in (0, 1)] == [
        [1, 0, 3, 2, 5, 4],
        [5, 2, 1, 4, 3, 0],
    ]
    assert [[partner(five, i, round) for i in range(5)] for round in (0, 1, 4)] == [
        [None, 2, 1, 4, 3],
        [4, None, 3, 2, 0],
        [1, 0, 3, 2, None],
    ]


@pytest.mark.parametrize("n", [3, 5, 6, 7, 8, 12])
def test_the_one_peer_exponential_graph_goes_round_with_growing_hops(n):
    graph = OnePeerExponential(n)
    assert graph.period == (n - 1).bit_length()
    for i, round in product(range(n), range(2 * graph.period)):
        assert graph.targets(i, round) == ((i + 2 ** (round % graph.period)) % n,)


def test_the_hypercube_pairs_are_those_of_the_static_one():
    assert [OnePeerHypercube(8).partners(i) for i in range(8)] == [set(t) for t in Hypercube(3).adjacency]


def test_machines_meet_half_at_a_time():
    """8 machines of 2: in the first two rounds 0-1 and 4-5, then 2-3 and 6-7."""
    graph = AlternatingExponentialRing(16, 2)
    assert graph.period == 6
    assert graph.targets(0, 0) == (1, 2, 3)
    assert graph.targets(5, 0) == (4,)
    assert graph.targets(0, 1) == (1,)
    assert graph.targets(5, 1) == (4, 6, 7)
    assert AlternatingExponentialRing(16, 2, "one").targets(5, 1) == (7,)
    crossing = [
        sum(i // 2 != j // 2 for i in range(16) for j in graph.targets(i, round))
        for round in graph.changes.rounds()
    ]
    assert crossing == [16] * 6, "the same number of payloads between machines in every round"


def test_machines_of_one_and_one_machine():
    single = AlternatingExponentialRing(8, 1)
    assert [w.max() for w in period_of(single)] == [1] * 6, "half of them rest in every round"
    assert AlternatingExponentialRing(4, 4).static
    assert AlternatingExponentialRing(4, 4).targets(1, 7) == FullyConnected(4).targets(1, 0)


def test_base_graphs_are_short_and_thin():
    """Takezawa et al., Theorem 1."""
    for graph in members(EXACT, BaseKPlusOne):
        n, k = graph.nodes, graph.degree
        assert graph.period <= 2 * log(n, k + 1) + 2 + 1e-9, graph
        assert max(len(graph.targets(i, round)) for round in graph.changes.rounds() for i in range(n)) <= k, (
            graph
        )
        assert graph.period >= BaseKPlusOne(n, k).period, graph


@pytest.mark.parametrize(
    ("nodes", "degree", "simple", "rounds"),
    [(5, 1, True, 5), (6, 1, True, 5), (6, 1, False, 4), (8, 1, False, 3), (9, 2, False, 2),
     (12, 2, False, 3), (5, 2, False, 3), (7, 6, False, 1), (1, 1, False, 1), (12, 1, False, 5)],
)  # fmt: skip
def test_lengths_of_base_graphs(nodes, degree, simple, rounds):
    """6 = 2 * 3 is where factors save a round first; powers of k + 1 are hypercubes."""
    assert BaseKPlusOne(nodes, degree, simple).period == rounds


def test_lengths_of_base_graphs_are_those_of_the_reference():
    """The lengths are those of the authors' code for k = 1, 2, 3; where k = n = 3, k counts as n - 1."""
    sizes = (3, 5, 6, 7, 8, 10, 12, 16, 25, 32, 48, 64, 96, 100)
    lengths = {
        1: (3, 5, 4, 5, 3, 6, 5, 4, 9, 5, 7, 6, 8, 11),
        2: (1, 3, 2, 4, 3, 4, 3, 4, 6, 5, 5, 6, 6, 8),
        3: (1, 3, 2, 3, 2, 4, 2, 2, 5, 3, 3, 3, 4, 6),
    }
    assert {k: tuple(BaseKPlusOne(n, k).period for n in sizes) for k in lengths} == lengths


def test_more_neighbors_than_there_are_count_as_all_others():
    for nodes, simple in product((1, 2, 3, 4), (False, True)):
        clipped, most = BaseKPlusOne(nodes, 7, simple), BaseKPlusOne(nodes, max(1, nodes - 1), simple)
        assert clipped.period == most.period == 1
        assert [clipped.weights(i, 0) for i in range(nodes)] == [most.weights(i, 0) for i in range(nodes)]
        assert np.allclose(weighted(clipped).matrix(), 1 / nodes, rtol=0, atol=1e-15)


def test_fewest_factors():
    assert factors(12, 4) == (4, 3)
    assert factors(36, 6) == (6, 6)
    assert factors(7, 6) is None
    assert factors(1, 2) == ()


@pytest.mark.parametrize("nodes", [4, 6, 8, 12])
def test_the_alternating_ring_mixes_as_its_formula_predicts(nodes):
    """The product of both matchings' W has the eigenvalues cos^2(2 pi k / n) beside 0; k = 0 is the mean."""
    figures = measure(weighted(AlternatingRing(nodes)))
    assert figures.contraction == pytest.approx(cos(2 * pi / nodes), abs=1e-7)
    assert figures.connected
    assert figures.doubly_stochastic


def test_figures_over_a_period():
    figures = measure(weighted(OnePeerExponential(8)))
    assert (figures.period, figures.edges, figures.exact_after, figures.rounds_to_target) == (3, 24, 3, 3)
    assert (figures.degree_min, figures.degree_max, figures.diameter, figures.contraction) == (1, 1, 3, 0)
    figures = measure(weighted(BaseKPlusOne(6)))
    assert (figures.period, figures.exact_after, figures.diameter) == (4, 4, 4)


def test_disagreement_shrinks_as_the_figures_predict():
    graph = AlternatingRing(9)
    figures = measure(weighted(graph))
    mixed, rounds = np.eye(9), period_of(graph)
    for round in range(figures.rounds_to_target + graph.period):
        mixed = rounds[round % 9] @ mixed
    assert figures.exact_after is None
    assert np.abs(mixed - 1 / 9).max() < 1e-6


def test_an_average_is_exact_only_if_it_is():
    assert convergence(weighted(OnePeerExponential(6)))[0] is None
    assert convergence(WeightedGraph(BaseKPlusOne(5), MetropolisHastings()))[0] is None
    assert convergence(weighted(FullyConnected(5)))[0] == 1


def test_the_output_of_the_command():
    assert list(report("base_k_plus_one", ["nodes=6"])) == [
        "nodes              6",
        "period             4 rounds",
        "edges              7 over a period",
        "degree             0..1, mean 0.75 a round",
        "connected          yes",
        "diameter           4 rounds",
        "weights            from_graph (doubly stochastic)",
        "second eigenvalue  0.000000 a round",
        "exact average      after 4 rounds",
        "rounds to 1e-6     4",
        "decay                  measured  expected  literature",
        "  a round              0.000000  0.000000",
        "  a period of 4        0.000000  0.000000  0.000000: exact for every n, after at most "
        "2 log_(k+1)(n) + 2 = 7.2 rounds (Takezawa et al., 2023)",
        "  the same, at most    -         0.000000",
    ]


def test_a_view_is_of_its_round_and_computed_once_a_period():
    w = weighted(BaseKPlusOne(5, 2))
    views = [w.view(3, round) for round in range(2 * w.graph.period)]
    for view in views:
        assert view.targets == w.graph.targets(3, view.round)
        assert [view.weights.get(j, 0) for j in range(5)] == w.matrix(view.round)[3].tolist()
        assert view.weights == view.outgoing_weights
    assert [v.round for v in views] == list(range(6))
    assert all(v.weights is views[v.round % 3].weights for v in views)
    assert [w.most_targets(rank) for rank in (0, 3)] == [2, 1]


def test_weights_of_a_graph_that_has_none():
    with pytest.raises(BadInput, match="such as base_k_plus_one; use uniform"):
        WeightedGraph(OnePeerExponential(4), FromGraph())
    with pytest.raises(BadInput, match="use metropolis_hastings"):
        FromGraph().check(Ring(4))
    assert WeightedGraph(BaseKPlusOne(4, 3), Uniform()).matrix().tolist() == [[0.25] * 4] * 4
