"""D-Cliques: the labels of each clique are those of all nodes, few edges link the cliques."""

import numpy as np
import pytest

from decentnode.errors import BadInput
from decentnode.graph.connectivity import is_connected
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.overlays.d_cliques import DCliques, skew
from decentnode.node.experiment import Experiment
from tests.integration.running import ROOT

ONE_CLASS_EACH = np.eye(10, dtype=int)[np.arange(60) % 10] * 30
BETWEEN = ["ring", "fractal", "small_world", "fully_connected"]


def two_shards(nodes, seed):
    """Numbers of samples by label where each node has two shards of sorted labels."""
    shards = np.random.default_rng(seed).permutation(2 * nodes).reshape(nodes, 2) * 10 // (2 * nodes)
    return (np.eye(10, dtype=int)[shards] * 15).sum(1)


def test_cliques_of_ten_nodes_with_a_class_each_have_all_classes_equally():
    graph = DCliques(60, steps=1000).with_labels(ONE_CLASS_EACH.tolist())
    for clique in graph.cliques():
        assert ONE_CLASS_EACH[clique].sum(0).tolist() == [30] * 10


@pytest.mark.parametrize("seed", range(2))
def test_swaps_only_decrease_the_skew(seed):
    held = two_shards(53, seed).astype(float)
    sums = []
    for steps in (0, 3, 10, 30, 200):
        graph = DCliques(53, clique_size=8, steps=steps, seed=seed)
        known = graph.with_labels(held.astype(int).tolist())
        sums.append(sum(skew(held, clique) for clique in known.cliques()))
    assert sums == sorted(sums, reverse=True)
    assert sums[0] == sum(skew(held, clique) for clique in graph.cliques())  # the random assignment
    assert sums[-1] < 0.6 * sums[0]
    assert sorted(rank for clique in known.cliques() for rank in clique) == list(range(53))
    assert {len(clique) for clique in known.cliques()} == {7, 8}


def test_the_skew_is_that_of_the_paper():
    held = np.array([[4.0, 0.0], [0.0, 4.0], [2.0, 2.0], [2.0, 2.0]])
    assert [skew(held, clique) for clique in ([0], [0, 1], [0, 2])] == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(("nodes", "size"), [(60, 10), (53, 8), (12, 6), (8, 8), (7, 1), (130, 4)])
def test_every_clique_is_complete_and_all_are_connected(between, nodes, size):
    graph = DCliques(nodes, size, between, steps=10)
    adjacency = graph.adjacency
    for clique in graph.cliques():
        assert all({*clique} - {i} <= {*adjacency[i]} for i in clique)
    assert is_connected(adjacency)


@pytest.mark.parametrize(("between", "edges"), [("ring", 6), ("fully_connected", 15)])
def test_edges_between_cliques_are_few_and_evenly_spread(between, edges):
    graph = DCliques(60, 10, between)
    extra = [len(targets) - 9 for targets in graph.adjacency]
    assert sum(extra) == 2 * edges
    assert max(extra) <= 1


def test_groups_of_cliques_are_linked_as_cliques_are():
    """9 cliques of 3 nodes: 3 groups with an edge for each pair of cliques, then for each pair of groups."""
    graph = DCliques(27, 3, "fractal")
    assert sum(map(len, graph.adjacency)) // 2 == 9 * 3 + 3 * 3 + 3


def test_mixing_keeps_the_mean():
    graph = DCliques(53, 8).with_labels(two_shards(53, 1).tolist())
    matrix = WeightedGraph(graph, MetropolisHastings()).matrix()
    assert np.allclose(matrix.sum(0), 1)
    assert np.allclose(matrix.sum(1), 1)


CONFIGS = ROOT / "configs"
CLIQUES = ["graph={name: d_cliques, nodes: 16, clique_size: 4}"]


def test_a_run_has_the_graph_of_its_labels():
    experiment = Experiment.from_yaml(CONFIGS / "quickstart.yaml", CLIQUES)
    assert experiment.graph.graph.histograms == tuple(map(tuple, experiment.samples.histograms))


def test_samples_without_classes_are_refused():
    with pytest.raises(BadInput, match="graph: d_cliques needs samples of classes; these have none"):
        Experiment.from_yaml(CONFIGS / "quadratic.yaml", ["graph={name: d_cliques, nodes: 8}"])


def test_a_scheme_that_does_not_fit_the_graph_of_the_labels_is_refused():
    with pytest.raises(BadInput, match="a graph that is a tree"):
        Experiment.from_yaml(CONFIGS / "quickstart.yaml", [*CLIQUES, "sharing.name=relay_sum"])
