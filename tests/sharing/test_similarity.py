"""Similarity overlays: each node has the links that a brute-force search over all descriptors finds."""

import numpy as np
import pytest
import torch

from decentnode.core.payload import Payload, PayloadError
from decentnode.errors import BadInput, GraphError
from decentnode.graph.families import FullyConnected
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.overlays.similarity import UNIT, Similarity, unit
from decentnode.node.experiment import Experiment
from decentnode.sharing import Gossip
from decentnode.sharing.overlays import on_overlay
from decentnode.testing import Lockstep, random_models
from tests.integration.running import ROOT

CLASSES = np.eye(10, dtype=int)


def network(graph, elements=3, models=None, **options):
    """All nodes of the graph with gossip; the driver lets any two of them exchange."""
    weighted = WeightedGraph(graph, MetropolisHastings())
    models = random_models(graph.nodes, elements) if models is None else models
    return Lockstep(
        lambda: on_overlay(Gossip(), weighted), FullyConnected(graph.nodes), models, **options
    )  # fmt: skip


def links(run):
    """The neighbors of each node as it sees them itself."""
    views = [scheme.place(run.weighted.view(i, run.round)) for i, scheme in enumerate(run.schemes)]
    return [set(view.sources) for view in views]


def two_shards(nodes, seed):
    """Samples by label where each node has two shards of sorted labels."""
    shards = np.random.default_rng(seed).permutation(2 * nodes).reshape(nodes, 2) * 10 // (2 * nodes)
    return (CLASSES[shards] * 15).sum(1)


def searched(vectors, k, sign):
    """The union of the k best choices of each node; only for vectors without ties."""
    x = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    neighbors = [set() for _ in x]
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        for j in sorted(others, key=lambda j: -sign * float(x[i] @ x[j]))[:k]:
            neighbors[i].add(j)
            neighbors[j].add(i)
    return neighbors


@pytest.mark.parametrize("prefer", ["similar", "dissimilar"])
@pytest.mark.parametrize(("nodes", "k"), [(16, 3), (23, 1), (2, 1)])
def test_links_are_those_of_a_brute_force_search(prefer, nodes, k):
    histograms = np.random.default_rng(nodes).integers(1, 1000, (nodes, 10))
    graph = Similarity(nodes, k, prefer=prefer).with_labels(histograms.tolist())
    run = network(graph)
    run.run(2)
    assert links(run) == searched(histograms, k, 1 if prefer == "similar" else -1)


def test_nodes_with_the_same_class_are_neighbors_or_none_of_them_are():
    labels = np.arange(30) % 10
    for prefer in ("similar", "dissimilar"):
        run = network(Similarity(30, 2, prefer=prefer).with_labels((CLASSES[labels] * 9).tolist()))
        run.mix()
        same = [[labels[i] == labels[j] for j in neighbors] for i, neighbors in enumerate(links(run))]
        assert all(map(all, same)) if prefer == "similar" else not any(map(any, same))


def test_with_two_shards_each_similar_nodes_share_labels_and_dissimilar_ones_do_not():
    histograms = two_shards(20, 1)
    shared = {}
    for prefer in ("similar", "dissimilar"):
        run = network(Similarity(20, 2, prefer=prefer).with_labels(histograms.tolist()))
        run.mix()
        pairs = [(i, j) for i, neighbors in enumerate(links(run)) for j in neighbors]
        shared[prefer] = np.mean([bool((histograms[i] * histograms[j]).any()) for i, j in pairs])
    assert shared["similar"] > 0.9
    assert shared["dissimilar"] < 0.1


def test_a_round_mixes_with_metropolis_hastings_weights_of_the_links():
    histograms = np.random.default_rng(3).integers(1, 1000, (9, 10))
    run = network(Similarity(9, 2, random=2).with_labels(histograms.tolist()))
    before = run.models.clone()
    mixed, neighbors = run.mix(), links(run)
    matrix = torch.zeros(9, 9, dtype=torch.float64)
    for i, linked in enumerate(neighbors):
        for j in linked:
            matrix[i, j] = 1 / (1 + max(len(linked), len(neighbors[j])))
        matrix[i, i] = 1 - matrix[i].sum()
    assert torch.allclose(mixed, matrix @ before, rtol=0, atol=1e-14)
    assert all(len(linked) >= 2 for linked in neighbors)


@pytest.mark.parametrize("of", ["model", "gradient"])
def test_models_that_moved_alike_become_neighbors(of):
    """Two groups of nodes go in opposite directions from the same model."""
    nodes, elements = 12, 50
    graph = Similarity(nodes, 3, of, every=2, dimensions=16)
    run = network(graph, models=random_models(1, elements).repeat(nodes, 1))
    way, noise = random_models(1, elements, seed=5)[0], random_models(nodes, elements, seed=6)
    for _ in range(3):
        run.train(lambda i, x: (1 if i % 2 else -1) * way + 0.1 * noise[i], 0.1)
        run.mix()
    assert all((i - j) % 2 == 0 for i, neighbors in enumerate(links(run)) for j in neighbors)


def test_the_projection_keeps_cosines():
    """The sketch's cosine differs from that of the vectors by about 1 / sqrt(dimensions)."""
    graph = Similarity(2, 1, "model", dimensions=256)
    x = random_models(2, 4000)
    x[1] += x[0]
    run = network(graph, models=x)
    sketches = [run.schemes[0]._projected(v) for v in x]
    cosines = [float(torch.cosine_similarity(*pair, dim=0)) for pair in (x, sketches)]
    assert abs(cosines[0] - cosines[1]) < 0.15


def test_a_choice_is_repeated_with_new_descriptors():
    run = network(Similarity(10, 2, "model", every=2), elements=40)
    seen = []
    for round in range(4):
        noise = random_models(10, 40, seed=round)
        run.train(lambda i, x, noise=noise: noise[i], 5.0)
        run.mix()
        seen.append(links(run))
    assert seen[0] == seen[1] != seen[2] == seen[3]


@pytest.mark.parametrize("of", ["model", "gradient"])
def test_a_resumed_node_has_its_links(of):
    whole, resumed = (network(Similarity(10, 2, of, every=3), elements=40) for _ in range(2))
    gradient = lambda i, x: random_models(10, 40, seed=9)[i] * x
    whole.run(4, gradient, 0.1)
    for scheme, saved in zip(resumed.schemes, whole.schemes, strict=True):
        scheme.load_state_dict(saved.state_dict())
    resumed.models, resumed.round = whole.models.clone(), whole.round
    assert torch.equal(whole.run(4, gradient, 0.1), resumed.run(4, gradient, 0.1))


def test_descriptors_reach_all_and_a_lost_node_is_chosen_by_nobody():
    histograms = np.random.default_rng(1).integers(1, 1000, (40, 10))
    graph = Similarity(40, 3).with_labels(histograms.tolist())
    assert len(graph.spread) == 5  # 1 + 4 contacts multiply: 5^3 > 40, four with overlaps; and one to spare
    run = network(graph, is_live=lambda i, j: 7 not in (i, j))
    run.mix()
    others = [i for i in range(40) if i != 7]
    assert all(scheme.ranks.tolist() == others for i, scheme in enumerate(run.schemes) if i != 7)
    assert not any(7 in neighbors for i, neighbors in enumerate(links(run)) if i != 7)


def test_lost_messages_cost_links_alone():
    random = np.random.default_rng(2)
    histograms = random.integers(1, 1000, (24, 10))
    graph = Similarity(24, 3).with_labels(histograms.tolist())
    run = network(graph, is_live=lambda i, j: random.random() > 0.1)
    run.run(3)
    ideal, linked = searched(histograms, 3, 1), links(run)
    agreed = sum(len(a & b) for a, b in zip(ideal, linked, strict=True))
    assert agreed > 0.9 * sum(map(len, ideal))


@pytest.mark.parametrize(("ranks", "numbers"), [([1, 0], 20), ([0, 12], 20), ([0, 1], 10), ([2, 2], 20)])
def test_descriptors_that_do_not_fit_are_refused(ranks, numbers):
    scheme = network(Similarity(12, 2).with_labels([[1] * 10] * 12)).schemes[0]
    fields = {"ranks": torch.tensor(ranks), "descriptors": torch.zeros(numbers, dtype=torch.int16)}
    with pytest.raises(PayloadError, match="do not fit the graph"):
        scheme._checked(Payload.of(scheme.message_layout, fields))
    none = {"ranks": torch.tensor([], dtype=torch.int64), "descriptors": torch.zeros(0, dtype=torch.int16)}
    known, descriptors = scheme._checked(Payload.of(scheme.message_layout, none))
    assert not len(known) and descriptors.shape == (0, 10)


def test_descriptors_have_one_length():
    x = unit(np.array([3.0, 0.0, 4.0]))
    assert x.tolist() == [round(0.6 * UNIT), 0, round(0.8 * UNIT)]
    assert unit(np.zeros(3)).tolist() == unit(np.array([np.nan, 1.0, 2.0])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"neighbors": 6}, "similarity: neighbors must be below nodes, got 6 and 6"),
        (
            {"neighbors": 2, "every": 5},
            "similarity: labels do not change; leave every out, or take of: model",
        ),
        ({"neighbors": 2, "random": 7}, "similarity: random must be below nodes, got 7 and 6"),
    ],
)
def test_impossible_options_name_the_rule(options, rule):
    with pytest.raises(GraphError, match=rule):
        Similarity(6, **options)


def test_labels_need_classes():
    with pytest.raises(BadInput, match="graph: similarity needs samples of classes"):
        Experiment.from_yaml(
            ROOT / "configs" / "quadratic.yaml", ["graph={name: similarity, nodes: 8, neighbors: 2}"]
        )
