"""Figures of graphs against closed forms and published tables."""

from math import ceil, cos, log2, pi

import pytest

from decentnode.graph.families import (
    BinaryTree,
    Chain,
    Exponential,
    FullyConnected,
    Hypercube,
    Ring,
    Star,
    Torus,
)
from decentnode.graph.files import GraphFile
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.spectrum import SparseWeights, contraction, largest_singular_value, measure, rounds_to


def measured(graph, mixing=None):
    return measure(WeightedGraph(graph, mixing or MetropolisHastings()))


@pytest.mark.parametrize(("nodes", "rounds"), [(8, 64), (16, 266), (32, 1072), (64, 4297), (96, 9672)])
def test_ring_mixes_as_its_formula_predicts(nodes, rounds):
    figures = measured(Ring(nodes))
    assert figures.contraction == pytest.approx(1 / 3 + 2 / 3 * cos(2 * pi / nodes), abs=1e-12)
    assert figures.rounds_to_target == rounds


@pytest.mark.parametrize(
    ("graph", "factor"),
    [
        (Chain(8), 1 / 3 + 2 / 3 * cos(2 * pi / 16)),
        (Star(16), 1 - 1 / 16),
        (Torus(4, 4), 0.6),
        (Torus(8, 8), (1 + 2 + 2 * cos(2 * pi / 8)) / 5),
        (Hypercube(4), 3 / 5),
        (Hypercube(6), 5 / 7),
        (FullyConnected(9), 0.0),
    ],
)
def test_symmetric_weights_mix_as_their_formula_predicts(graph, factor):
    assert measured(graph).contraction == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize("nodes", [8, 10, 12, 16, 32, 64])
def test_exponential_graphs_of_even_size_reach_the_bound(nodes):
    figures = measured(Exponential(nodes), Uniform())
    assert figures.contraction == pytest.approx(1 - 2 / (1 + ceil(log2(nodes))), abs=1e-12)
    assert figures.doubly_stochastic


def test_an_exponential_graph_of_odd_size_is_better_than_the_bound():
    assert measured(Exponential(25), Uniform()).contraction == pytest.approx(0.5109, abs=5e-5)


def test_uniform_weights_on_unequal_degrees_lose_the_mean():
    """Star of n with weights 1/(1 + degree): eigenvalues 1, 1/2 (n - 2 times) and 1/n - 1/2."""
    figures = measured(Star(8), Uniform())
    assert not figures.doubly_stochastic
    assert figures.contraction == pytest.approx(0.5, abs=1e-12)


def test_counts_of_a_tree():
    figures = measured(BinaryTree(7))
    assert (figures.nodes, figures.edges, figures.degree_min, figures.degree_max) == (7, 6, 1, 3)
    assert figures.degree_mean == pytest.approx(12 / 7)
    assert figures.diameter == 4
    assert figures.connected


def test_directed_edges_count_once():
    assert measured(Exponential(8), Uniform()).edges == 24


def test_what_is_not_connected_never_agrees(tmp_path):
    path = tmp_path / "pairs.edges"
    path.write_text("4\n0 1\n2 3\n")
    figures = measured(GraphFile(str(path), allow_disconnected=True))
    assert (figures.connected, figures.diameter, figures.rounds_to_target) == (False, None, None)
    assert figures.contraction == pytest.approx(1)


def test_one_node_agrees_at_once():
    figures = measured(Ring(1))
    assert (figures.contraction, figures.rounds_to_target, figures.diameter) == (0, 1, 0)


@pytest.mark.parametrize(
    ("factor", "rounds"), [(0.0, 1), (1e-17, 1), (1e-6, 1), (1e-3, 2), (0.1, 6), (0.5, 20), (1.0, None)]
)
def test_rounds_are_the_fewest_that_suffice(factor, rounds):
    assert rounds_to(1e-6, factor) == rounds


@pytest.mark.parametrize(
    "weighted",
    [
        WeightedGraph(Ring(150), MetropolisHastings()),
        WeightedGraph(Torus(8, 8), MetropolisHastings()),
        WeightedGraph(Exponential(100), Uniform()),
        WeightedGraph(Regular(300, 4), MetropolisHastings()),
    ],
)
def test_the_iteration_for_large_graphs_agrees_with_the_whole_matrix(weighted):
    w = SparseWeights(weighted, 0)
    assert largest_singular_value(w) == pytest.approx(contraction(weighted), abs=1e-9)


def test_a_graph_beyond_the_whole_matrix_is_measured():
    """Hypercube of dimension k: (k - 1)/(k + 1); 4096 nodes are more than the dense way takes."""
    assert measured(Hypercube(12)).contraction == pytest.approx(11 / 13, abs=1e-9)
