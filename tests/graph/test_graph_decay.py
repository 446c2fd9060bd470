"""Expected, measured and published decay; the check of every matrix; what the papers say is exact."""

from math import ceil, log, sqrt

import numpy as np
import pytest

from decentnode.graph.base_k import BaseKPlusOne
from decentnode.graph.decay import KNOWN, known_decay, measured_decay
from decentnode.graph.families import Chain, Exponential, FullyConnected, Hypercube, Ring, Star, Torus
from decentnode.graph.files import write_graph
from decentnode.graph.matrix_check import MatrixNeeds, check_matrices
from decentnode.graph.mixing import FromGraph, MetropolisHastings, Uniform, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicLocal, EpidemicOracle, EquiTopo, Matcha, RandomMatching
from decentnode.graph.schedules import FromFiles
from decentnode.graph.spectrum import measure
from decentnode.graph.time_varying import (
    AlternatingExponentialRing,
    AlternatingRing,
    OnePeerExponential,
    OnePeerHypercube,
)

GOSSIP = MatrixNeeds("gossip", columns=True, symmetric=False)
CHOCO = MatrixNeeds("choco", columns=True, symmetric=True)


def weighted(graph):
    """With its usual weights."""
    rule = FromGraph() if graph.has_weights else Uniform() if graph.directed else MetropolisHastings()
    return WeightedGraph(graph, rule)


PUBLISHED = [
    Ring(9), Ring(16), Chain(8), Star(16), FullyConnected(6), Torus(4, 4), Torus(3, 7), Hypercube(4),
    Exponential(10), Exponential(25), Regular(96, 4, seed=1), AlternatingRing(12), OnePeerExponential(16),
    OnePeerHypercube(8), AlternatingExponentialRing(16, 4), BaseKPlusOne(25), BaseKPlusOne(10, 2),
    EquiTopo(64, 40), EquiTopo(16, 4, one_peer=True),
]  # fmt: skip


@pytest.mark.parametrize("graph", PUBLISHED, ids=str)
def test_what_is_published_is_what_is_measured(graph):
    of_graph = weighted(graph)
    known, measured, figures = known_decay(of_graph), measured_decay(of_graph), measure(of_graph)
    value = measured.round if known.per == "round" else measured.worst_period
    if known.holds:
        assert value <= known.factor + 1e-9 and known.factor < 1
    else:
        assert value == pytest.approx(known.factor, abs=2e-4)
    if graph.period is not None:
        assert measured.round == pytest.approx(figures.contraction, abs=2e-4)
        assert measured.period <= measured.worst_period + 1e-12


def test_every_family_with_a_published_figure_is_tested():
    assert {type(graph) for graph in PUBLISHED} | {Matcha} == KNOWN.keys()


@pytest.mark.parametrize("graph", [EpidemicOracle(96, 4), EpidemicLocal(96, 4), RandomMatching(16)], ids=str)
def test_random_graphs_decay_as_expected(graph):
    known, measured = known_decay(weighted(graph)), measured_decay(weighted(graph))
    assert known.factor == sqrt(graph.expected_factor)
    assert measured.round == pytest.approx(known.factor, rel=0.02)


def test_the_published_figures_of_epidemic_learning():
    assert known_decay(weighted(EpidemicOracle(96, 4))).factor ** 2 == pytest.approx(0.19158, abs=5e-6)
    assert known_decay(weighted(EpidemicLocal(96, 4))).factor ** 2 == pytest.approx(0.2355, abs=5e-5)


def test_matcha_decays_at_least_as_fast_as_its_rho(tmp_path):
    write_graph(Ring(8), str(tmp_path / "ring.edges"))
    of_graph = weighted(Matcha(str(tmp_path / "ring.edges"), 0.5))
    known = known_decay(of_graph)
    assert known.factor**2 == pytest.approx(0.7839, abs=5e-4)
    assert measured_decay(of_graph).round < known.factor


@pytest.mark.parametrize("n", range(2, 33))
def test_one_peer_exponential_is_exact_only_for_powers_of_two(n):
    exact = measure(weighted(OnePeerExponential(n))).exact_after
    assert exact == (ceil(log(n, 2)) if n & (n - 1) == 0 else None)


@pytest.mark.parametrize(("n", "left"), [(6, 0.2165), (10, 0.1924), (25, 0.1921)])
def test_what_one_period_of_one_peer_exponential_leaves_of_other_numbers(n, left):
    measured = measured_decay(weighted(OnePeerExponential(n)))
    assert measured.worst_period == pytest.approx(left, abs=5e-5)
    assert measured.period == pytest.approx(measured.expected_period, rel=0.15)
    assert known_decay(weighted(OnePeerExponential(n))) is None


@pytest.mark.parametrize(("n", "rounds"), [(6, 4), (10, 6), (25, 9), (96, 8)])
def test_base_2_graphs_are_as_long_as_published_and_exact(n, rounds):
    figures = measure(weighted(BaseKPlusOne(n)))
    assert (figures.period, figures.exact_after) == (rounds, rounds)
    assert rounds <= 2 * log(n, 2) + 2


def test_other_weights_than_the_usual_have_no_published_figure():
    assert known_decay(WeightedGraph(Star(8), Uniform())) is None


@pytest.mark.parametrize(
    ("graph", "rule", "needs", "report"),
    [
        (
            Ring(8), MetropolisHastings(), CHOCO,
            "1 round checked for choco: rows and columns sum to 1, W = W^T, all nodes reach each other "
            "within 4 rounds",
        ),
        (
            OnePeerExponential(8), Uniform(), GOSSIP,
            "3 rounds checked for gossip: rows and columns sum to 1, all nodes reach each other within "
            "3 rounds",
        ),
        (
            Star(4), Uniform(), GOSSIP,
            "round 1: column 0 sums to 1.75; gossip keeps the mean of all models only where columns sum to 1",
        ),
        (
            Star(4), Uniform(), MatrixNeeds("none", False, False),
            "1 round checked for none: rows sum to 1, all nodes reach each other within 2 rounds",
        ),
        (
            OnePeerExponential(8), Uniform(), CHOCO,
            "round 1: w_0,1 is 0, w_1,0 is 0.5; choco expects W = W^T",
        ),
    ],
)  # fmt: skip
def test_every_matrix_is_checked_for_what_the_scheme_needs(graph, rule, needs, report):
    assert check_matrices(WeightedGraph(graph, rule), needs) == report


def test_the_first_round_that_fails_is_named(tmp_path):
    (tmp_path / "a.edges").write_text("4\n0 1\n2 3\n")
    (tmp_path / "b.edges").write_text("4\n0 1\n1 2\n2 3\n")
    of_graph = WeightedGraph(FromFiles(str(tmp_path)), Uniform())
    defect = check_matrices(of_graph, GOSSIP)
    assert defect.startswith("round 2: column 0 sums to 0.833333; gossip keeps the mean")
    apart = WeightedGraph(Matcha(str(tmp_path / "b.edges"), 0.1), FromGraph())
    assert check_matrices(apart, CHOCO).startswith("200 rounds checked for choco")


class Broken(MetropolisHastings):
    """Gives a weight to a node that is no neighbor, from round 2 on."""

    def incoming(self, graph, rank, round):
        row = super().incoming(graph, rank, round)
        return row | {(rank + 2) % graph.num_nodes: 0.1} if round >= 2 else row


def test_a_weight_of_what_does_not_arrive_is_named():
    defect = check_matrices(WeightedGraph(RandomMatching(8), Broken()), GOSSIP)
    assert defect.startswith("round 3: node 0 gives node 2 the weight 0.1, but does not receive from it")
    assert np.isfinite(measured_decay(weighted(RandomMatching(8))).round)
