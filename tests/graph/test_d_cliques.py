"""D-Cliques: the labels of each clique are those of all nodes, few edges link the cliques."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from decentnode.core.rng import generator
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


def exact_cliques(histograms, cliques, steps, random):
    """Greedy Swap (Bellet et al., 2022, Algorithm 1) in rational numbers, from these cliques and draws."""
    held = [[Fraction(count, sum(row)) for count in row] for row in histograms]
    mean = lambda ranks: [sum(column) / len(ranks) for column in zip(*(held[i] for i in ranks), strict=True)]
    p = mean(range(len(held)))
    skew_of = lambda clique: sum(abs(a - b) for a, b in zip(mean(clique), p, strict=True))
    for _ in range(steps):
        first, other = (cliques[k] for k in random.choice(len(cliques), 2, replace=False))
        s, swaps = skew_of(first) + skew_of(other), []
        for a, i in enumerate(first):
            for b, j in enumerate(other):
                swapped = [*first[:a], j, *first[a + 1 :]], [*other[:b], i, *other[b + 1 :]]
                if sum(map(skew_of, swapped)) < s:
                    swaps.append((a, b))
        if swaps:
            a, b = swaps[random.integers(len(swaps))]
            first[a], other[b] = other[b], first[a]
    return cliques, [skew_of(clique) for clique in cliques]


@pytest.mark.parametrize("counts", ["equal", "unequal"])
@pytest.mark.parametrize(("nodes", "size", "seed"), [(15, 5, 0), (17, 5, 1)])
def test_swaps_are_those_of_algorithm_1_in_exact_numbers(nodes, size, seed, counts):
    """Also where nodes have other numbers of samples: D-SGD gives all nodes the same weight."""
    held = two_shards(nodes, seed)
    if counts == "unequal":
        held = held * np.random.default_rng(seed).integers(1, 50, (nodes, 1))
    graph = DCliques(nodes, size, steps=40, seed=seed)
    random = generator(seed, "d_cliques")
    random.permutation(nodes)
    expected, skews = exact_cliques(held.tolist(), graph.cliques(), 40, random)
    known = graph.with_labels(held.tolist())
    assert known.cliques() == expected
    assert expected != graph.cliques()
    ours = [skew(held.astype(float), clique) for clique in expected]
    assert np.allclose(ours, np.array(skews, float), rtol=0, atol=1e-15)


def linked_in_the_paper(between, count):
    """The pairs of cliques that get an edge, one for each, as section 6.3 defines `inter`."""
    if between == "ring":
        return [{k, (k + 1) % count} for k in range(count)]
    if between == "fully_connected":
        return [{a, b} for b in range(count) for a in range(b)]
    levels = range(int(np.ceil(np.log2(count))))
    hops = [sign * (2**level + k) for level in levels for k in (0, 1) for sign in (-1, 1)]
    return [{start, (start + hop) % count} for start in range(count) for hop in hops if hop % count]


@pytest.mark.parametrize("between", ["ring", "small_world", "fully_connected"])
@pytest.mark.parametrize(("nodes", "size"), [(60, 10), (53, 8), (130, 4)])
def test_edges_and_weights_between_cliques_are_those_of_the_paper(between, nodes, size):
    """Each edge ends at nodes that had the fewest such edges of their cliques; w_ij = 1 / (1 + max(deg))."""
    graph = DCliques(nodes, size, between)
    cliques, ends = graph.cliques(), Counter()
    home = {rank: k for k, clique in enumerate(cliques) for rank in clique}
    edges = list(graph.edges())
    inner = [(i, j) for i, j in edges if home[i] == home[j]]
    assert sorted(inner) == sorted((i, j) for clique in cliques for i in clique for j in clique if i < j)
    outer = edges[len(inner) :]
    pairs = Counter(frozenset((home[i], home[j])) for i, j in outer)
    assert pairs == Counter(map(frozenset, linked_in_the_paper(between, len(cliques))))
    for edge in outer:
        assert all(ends[i] == min(ends[j] for j in cliques[home[i]]) for i in edge)
        ends.update(edge)
    linked = np.zeros((nodes, nodes))
    for i, j in edges:
        linked[i, j] = linked[j, i] = 1
    degrees = linked.sum(1)
    W = linked / (1 + np.maximum(degrees[:, None], degrees))
    W += np.diag(1 - W.sum(1))
    assert np.allclose(WeightedGraph(graph, MetropolisHastings()).matrix(), W, rtol=0, atol=1e-15)


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
