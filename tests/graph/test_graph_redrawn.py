"""Random graphs, another in each round: all nodes draw the same; disagreement shrinks as in the papers."""

import pickle
from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog, minimize_scalar

from decentnode.errors import GraphError
from decentnode.graph.families import Ring
from decentnode.graph.files import write_graph
from decentnode.graph.mixing import FromGraph, MetropolisHastings, Uniform, WeightedGraph
from decentnode.graph.redrawn import (
    TOPOLOGIES,
    EpidemicLocal,
    EpidemicOracle,
    EquiTopo,
    Matcha,
    PartialParticipation,
    RandomMatching,
    Redrawn,
    Teleport,
)
from decentnode.graph.spectrum import measure
from decentnode.graph.walks import Mobility, TokenWalk

ROUNDS = 1000
REDRAWN: list[Redrawn] = [
    EpidemicOracle(16, 3), EpidemicLocal(16, 3), RandomMatching(15), Mobility(16, 0.3, 0.1),
    PartialParticipation(16, 4, 0.5), Teleport(16, 4), EquiTopo(16, 3, one_peer=True),
    EquiTopo(15, 3, directed=False, one_peer=True), TokenWalk(16, 4, tokens=3),
]  # fmt: skip


def adjacency(graph, round):
    return [graph.targets(rank, round) for rank in range(graph.num_nodes)]


def test_what_no_graph_can_be_drawn_from_is_refused_in_a_line(tmp_path):
    (tmp_path / "one.edges").write_text("1\n")
    with pytest.raises(GraphError, match="no edge to color; matcha needs one"):
        _ = Matcha(str(tmp_path / "one.edges"), 0.5).matchings
    assert Mobility(nodes=4, radius=1e300, speed=0.1).targets(0, 3) == (1, 2, 3)


@pytest.mark.parametrize("graph", REDRAWN, ids=lambda graph: type(graph).__name__)
def test_two_nodes_agree_on_every_round_in_any_order(graph):
    other = pickle.loads(pickle.dumps(graph))
    other.draw_ahead(range(ROUNDS // 2))
    drawn = [adjacency(graph, round) for round in range(ROUNDS)]
    for round in reversed(range(0, ROUNDS, 7 if not isinstance(graph, Mobility | TokenWalk) else 333)):
        assert adjacency(other, round) == drawn[round]
    assert len({str(targets) for targets in drawn}) > (ROUNDS // 2 if not graph.has_weights else 2)
    for rank, targets in enumerate(drawn[5]):
        assert list(targets) == sorted(set(targets) - {rank})
        assert all(rank in graph.sources(j, 5) for j in targets)


@pytest.mark.parametrize(("n", "s"), [(2, 1), (6, 3), (7, 4), (16, 15), (16, 12), (96, 4), (257, 8), (5, 0)])
def test_all_nodes_of_an_oracle_have_its_degree(n, s):
    graph = EpidemicOracle(n, s)
    for round in range(20):
        assert {len(targets) for targets in adjacency(graph, round)} == {s}


def test_every_edge_of_an_oracle_is_as_likely():
    """Each of the 28 pairs is an edge of a 3-regular graph of 8 nodes with probability 3/7."""
    graph, rounds = EpidemicOracle(8, 3), 4000
    drawn = [adjacency(graph, round) for round in range(rounds)]
    shares = [sum(j in targets[i] for targets in drawn) / rounds for i, j in combinations(range(8), 2)]
    assert np.abs(np.array(shares) - 3 / 7).max() < 4.5 * np.sqrt(3 / 7 * 4 / 7 / rounds)


def squared_contraction(weighted, rounds=400):
    """Mean over rounds of |W x - mean(W x)|^2 / |x - mean(x)|^2, over random x."""
    random = np.random.default_rng(7)
    ratios = []
    for round in range(rounds):
        x = random.standard_normal((weighted.num_nodes, 20))
        x -= x.mean(0)
        mixed = weighted.matrix(round) @ x
        ratios.append(((mixed - mixed.mean(0)) ** 2).sum() / (x**2).sum())
    return np.mean(ratios)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (EpidemicOracle(16, 3), 0.2),
        (EpidemicOracle(96, 4), 0.19158),
        (EpidemicLocal(16, 3), 0.2573),
        (EpidemicLocal(96, 4), 0.2355),
        (RandomMatching(16), 14 / 30),
    ],
    ids=str,
)
def test_disagreement_shrinks_as_expected(graph, expected):
    mixing = Uniform() if graph.directed else MetropolisHastings()
    weighted = WeightedGraph(graph, mixing)
    # Over 400 rounds the mean is within 1 % to 2 %.
    assert squared_contraction(weighted) == pytest.approx(expected, rel=0.03)
    assert graph.expected_factor == pytest.approx(expected, abs=5e-5)
    figures = measure(weighted)
    assert figures.expected == pytest.approx(np.sqrt(expected), rel=1e-3)
    assert figures.contraction == pytest.approx(figures.expected, rel=0.02)


def test_of_an_odd_number_one_rests():
    for round in range(10):
        assert sorted(len(targets) for targets in adjacency(RandomMatching(5), round)) == [0, 1, 1, 1, 1]
    assert adjacency(RandomMatching(1), 0) == [()]


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("one_peer", [True, False])
@pytest.mark.parametrize("n", [2, 5, 16])
def test_equi_topo_keeps_the_mean_with_the_weights_of_the_paper(n, directed, one_peer):
    graph = EquiTopo(n, 4, directed, one_peer, seed=3)
    weighted = WeightedGraph(graph, FromGraph())
    shift = np.roll(np.eye(n), -1, axis=0)
    for round in range(5):
        W = weighted.matrix(round)
        assert np.allclose(W.sum(0), 1, rtol=0, atol=1e-12) and (W >= -1e-12).all()
        assert directed or np.array_equal(W, W.T)
        if not one_peer:
            # Row i receives from i - a: the mean of (n-1)/n P^-a + I/n over the hops.
            powers = [np.linalg.matrix_power(shift.T, hop) for hop in graph.hops]
            if not directed:
                powers = [(power + power.T) / 2 for power in powers]
            expected = (n - 1) / n * np.mean(powers, axis=0) + np.eye(n) / n
            assert np.allclose(W, expected, rtol=0, atol=1e-12)
            assert graph.static and graph.period == 1
        else:
            assert max(map(len, adjacency(graph, round))) == 1
            off = W[~np.eye(n, dtype=bool)]
            assert set(np.round(off, 12)) <= {0.0, round_to(0.5 * (n - 1) / n)}


def round_to(value):
    return np.round(value, 12)


def test_walking_nodes_meet_those_that_are_near():
    graph = Mobility(30, 0.25, 0.05)
    before = graph.places(0)
    for number in range(1, 60):
        places = graph.places(number)
        assert (places >= 0).all() and (places <= 1).all()
        assert np.linalg.norm(places - before, axis=1).max() <= 0.05 + 1e-12
        near = np.linalg.norm(places[:, None] - places[None], axis=-1) <= 0.25
        assert [set(targets) for targets in adjacency(graph, number)] == [
            set(np.flatnonzero(row)) - {i} for i, row in enumerate(near)
        ]
        before = places


def test_nodes_of_an_edge_are_awake_each_with_its_probability():
    graph = PartialParticipation(12, 4, 0.7)
    rounds = 2000
    for round in range(50):
        for rank, targets in enumerate(adjacency(graph, round)):
            assert not targets or graph.trains(rank, round)
            assert all(graph.trains(peer, round) for peer in targets)
    shares = [sum(graph.trains(rank, round) for round in range(rounds)) / rounds for rank in range(12)]
    assert np.abs(np.array(shares) - 0.7).max() < 4.5 * np.sqrt(0.7 * 0.3 / rounds)


@pytest.mark.parametrize("topology", ["ring", "fully_connected", "exponential"])
@pytest.mark.parametrize(("n", "k"), [(9, 4), (5, 5), (6, 1), (40, 8)])
def test_models_that_teleport_are_mixed_as_on_the_small_topology(n, k, topology):
    graph = Teleport(n, k, topology)
    weighted = WeightedGraph(graph, FromGraph())
    inner = TOPOLOGIES[topology](k)
    W = WeightedGraph(inner, Uniform() if inner.directed else MetropolisHastings()).matrix()
    x = np.random.default_rng(1).standard_normal((n, 3))
    small = x[list(graph.places(0))]
    for round in range(12):
        kept = x.copy()
        x, small = weighted.matrix(round) @ x, W @ small
        active = list(graph.places(round + 1))
        assert np.allclose(x[active], small, rtol=0, atol=1e-12)
        others = sorted(set(range(n)) - set(active))
        assert np.array_equal(x[others], kept[others])
        assert [rank for rank in range(n) if graph.trains(rank, round + 1)] == sorted(active)


@pytest.mark.parametrize(
    ("budget", "alpha", "rho"),
    [(0.25, 0.607, 0.9111), (0.5, 0.607, 0.7839), (0.75, 0.507, 0.6605), (1.0, 0.436, 0.5547)],
)
def test_matcha_on_a_ring_has_the_published_weight_and_contraction(tmp_path, budget, alpha, rho):
    write_graph(Ring(8), str(tmp_path / "ring.edges"))
    graph = Matcha(str(tmp_path / "ring.edges"), budget)
    assert len(graph.matchings) == 2
    assert (graph.alpha, graph.rho) == (pytest.approx(alpha, abs=2e-3), pytest.approx(rho, abs=5e-4))
    assert graph.rho < rho + 1e-4, "the figures are of a solver that stopped early"


def test_matcha_contracts_as_its_rho_predicts(tmp_path):
    """An irregular graph: a triangle with two tails, one long; all sets of active matchings by hand."""
    path = tmp_path / "tails.edges"
    path.write_text("7\n0 1\n1 2\n0 2\n2 3\n3 4\n4 5\n0 6\n")
    graph = Matcha(str(path), 0.5)
    p, laplacians = graph.probabilities, graph._laplacians
    assert p.sum() == pytest.approx(0.5 * len(p), abs=1e-4) and (p >= 0).all() and (p <= 1).all()
    assert all(len(set(pairs.ravel().tolist())) == pairs.size for pairs in graph.matchings)
    expected = -np.full((7, 7), 1 / 7)
    for active in product((0, 1), repeat=len(p)):
        chance = np.prod(np.where(active, p, 1 - p))
        W = np.eye(7) - graph.alpha * np.tensordot(np.array(active, float), laplacians, 1)
        expected += chance * W.T @ W
    assert np.linalg.eigvalsh(expected)[-1] == pytest.approx(graph.rho, abs=1e-9)

    def connectivity(p):
        return np.linalg.eigvalsh(np.tensordot(np.array(p), laplacians, 1))[1]

    grid = np.linspace(0, 1, 41)
    third = ((a, b, 1.5 - a - b) for a, b in product(grid, grid) if 0.5 <= a + b <= 1.5)
    assert len(p) == 3 and connectivity(p) > max(map(connectivity, third)) - 1e-3
    weighted = WeightedGraph(graph, FromGraph())
    assert squared_contraction(weighted) <= graph.rho
    drawn = [len(adjacency(graph, round)[5]) for round in range(2000)]
    bridge = next(k for k, pairs in enumerate(graph.matchings) if [4, 5] in pairs.tolist())
    assert np.mean(drawn) == pytest.approx(p[bridge], abs=0.05)
    assert np.allclose(weighted.matrix(3).sum(0), 1, rtol=0, atol=1e-12)


def most_connected(laplacians, total):
    """The largest lambda_2(sum_j p_j L_j) over 0 <= p_j <= 1 with that sum, at most 2e-5 too large.

    v^T L(p) v with a unit vector v orthogonal to 1 bounds lambda_2 for all p. A linear program finds the p
    with the largest minimum of these cutting planes (Kelley, 1960).
    """
    n, count = laplacians.shape[1], len(laplacians)
    complement = np.linalg.svd(np.eye(n) - 1 / n)[0][:, : n - 1]
    within, p, cuts, most = complement.T @ laplacians @ complement, np.full(count, total / count), [], 0.0
    while True:
        values, vectors = np.linalg.eigh(np.tensordot(p, within, 1))
        most = max(most, values[0])
        cuts.append([*-np.einsum("i,kij,j->k", vectors[:, 0], within, vectors[:, 0]), 1.0])
        rows, limits = [*cuts, [1.0] * count + [0.0]], [0.0] * len(cuts) + [total]
        box = [(0, 1)] * count + [(None, None)]
        p = linprog([0.0] * count + [-1.0], A_ub=rows, b_ub=limits, bounds=box).x
        if p[-1] - most < 2e-5:
            return p[-1]
        p = p[:-1]


@pytest.mark.parametrize(("n", "density", "seed"), [(8, 0.35, 5), (12, 0.35, 11)])
def test_matcha_solves_the_problems_of_its_paper(tmp_path, n, density, seed):
    """Wang et al., 2019: matchings, max lambda_2(sum_j p_j L_j), min |E[W^T W] - J| with W = I - alpha L."""
    base = nx.gnp_random_graph(n, density, seed=seed)
    path = tmp_path / "random.edges"
    path.write_text(f"{n}\n" + "".join(f"{i} {j}\n" for i, j in base.edges))
    for budget in (0.2, 0.8):
        graph = Matcha(str(path), budget, seed=seed)
        matchings = [[tuple(pair) for pair in pairs.tolist()] for pairs in graph.matchings]
        assert sorted(pair for pairs in matchings for pair in pairs) == sorted(base.edges)
        assert all(nx.is_matching(base, set(pairs)) for pairs in matchings)
        assert len(matchings) <= max(degree for _, degree in base.degree) + 1
        incidence = [np.array([np.eye(n)[i] - np.eye(n)[j] for i, j in pairs]) for pairs in matchings]
        laplacians = np.array([signs.T @ signs for signs in incidence])

        p, total = graph.probabilities, budget * len(matchings)
        assert p.sum() == pytest.approx(total, abs=1e-4) and (p >= 0).all() and (p <= 1).all()
        connectivity = np.linalg.eigvalsh(np.tensordot(p, laplacians, 1))[1]
        bound = most_connected(laplacians, total)
        assert bound * (1 - 2e-3) < connectivity < bound + 1e-4

        # E[W^T W] over all sets of active matchings, as polynomials in alpha.
        first, second = np.zeros((2, n, n))
        for active in product((0, 1), repeat=len(p)):
            chance, laplacian = np.prod(np.where(active, p, 1 - p)), np.tensordot(active, laplacians, 1)
            first += chance * laplacian
            second += chance * laplacian @ laplacian

        def rho(alpha, first=first, second=second):
            return np.linalg.eigvalsh(np.eye(n) - 2 * alpha * first + alpha**2 * second - 1 / n)[-1]

        assert graph.rho == pytest.approx(rho(graph.alpha), abs=1e-12)
        assert graph.rho == pytest.approx(minimize_scalar(rho, bounds=(0, 2)).fun, abs=1e-8)

        weighted = WeightedGraph(graph, FromGraph())
        for round in range(20):
            drawn = {tuple(pair) for pair in graph.edges(round).tolist()}
            active = [set(pairs) <= drawn for pairs in matchings]
            assert sum(map(len, np.array(matchings, object)[active])) == len(drawn)
            W = np.eye(n) - graph.alpha * np.tensordot(active, laplacians, 1)
            assert np.allclose(weighted.matrix(round), W, rtol=0, atol=1e-15)
