"""Two levels: clusters and their heads, against the dense products of both, and hierarchical FedAvg."""

from dataclasses import replace

import numpy as np
import pytest

from decentnode.config.consistency import defects
from decentnode.errors import BadInput, GraphError
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph, default_weights
from decentnode.graph.roles import Hierarchical
from decentnode.sharing import Choco, FedAvg, FedStc, Gossip, GradientTracking, Levels, NoSharing
from decentnode.sharing.levels import LevelScheme
from decentnode.testing import Lockstep, bound, random_models
from decentnode.transforms import Cast, TopK

N, K, EVERY = 12, 3, 2
CLUSTERS = np.arange(N).reshape(-1, K)
HEADS = CLUSTERS[:, 0]


def matrix(graph):
    return WeightedGraph(graph, MetropolisHastings()).matrix()


def embedded(W, ranks):
    whole = np.eye(N)
    whole[np.ix_(ranks, ranks)] = W
    return whole


def test_gossip_in_both_levels_is_the_product_of_their_matrices():
    graph = Hierarchical(N, K, inner="ring", outer="ring", every=EVERY)
    models = random_models(N)
    network, x = Lockstep(lambda: Levels(), graph, models), models.numpy()
    inner = np.eye(N)
    for cluster in CLUSTERS:
        inner = embedded(matrix(Ring(K)), cluster) @ inner
    outer = embedded(matrix(Ring(4)), HEADS)
    for round in range(6):
        x = inner @ x if (round + 1) % EVERY else outer @ inner @ x
        np.testing.assert_allclose(network.mix().numpy(), x, rtol=0, atol=1e-13)


def test_each_level_has_a_chain_of_its_own():
    graph = Hierarchical(N, K, every=EVERY)
    outer = lambda: LevelScheme(Gossip(), (Cast("bf16"),))
    network = Lockstep(lambda: Levels(outer=outer()), graph, random_models(N, 10))
    sizes = []
    for _ in range(2):
        network.mix()
        sizes.append(sorted({payload.nbytes for payload in network.payloads}))
    assert sizes == [[80], [20, 80]]


@pytest.mark.parametrize("outer", ["federated", "fully_connected"])
def test_fed_avg_in_both_levels_is_hierarchical_fed_avg(outer):
    """Edge servers average in each round; in each second round the cloud averages theirs, for all clients."""
    samples = [0, 3, 5] * 2 + [0, 1, 1] * 2
    graph = Hierarchical(N, K, inner="federated", outer=outer, every=EVERY)
    top = FedAvg if outer == "federated" else Gossip
    start = random_models(1).expand(N, -1).clone()
    setup_of = lambda rank: {"samples": samples[rank]}
    network = Lockstep(
        lambda: Levels(LevelScheme(FedAvg()), LevelScheme(top())),
        graph,
        start,
        weights=Uniform(),
        setup_of=setup_of,
    )
    targets = random_models(N, seed=3)
    edges = np.tile(start[0].numpy(), (4, 1))
    q = np.array([8, 8, 2, 2]) / 20 if outer == "federated" else np.full(4, 0.25)
    for round in range(6):
        for _ in range(2):
            network.train(lambda i, x: x - targets[i] if samples[i] else None, 0.1)
        models = network.mix().numpy()
        for a, cluster in enumerate(CLUSTERS):
            p = np.array([samples[i] for i in cluster[1:]], float)
            local = 0.81 * edges[a] + 0.19 * targets[cluster[1:]].numpy()
            edges[a] = p / p.sum() @ local
        if (round + 1) % EVERY == 0:
            edges = np.tile(q @ edges, (4, 1))
        np.testing.assert_allclose(models, np.repeat(edges, K, axis=0), rtol=0, atol=1e-12)


def refused(graph, sharing):
    return [defect.what for defect in defects({"graph": graph, "sharing": sharing})]


def test_a_level_takes_what_its_graph_can_do():
    served = Hierarchical(N, K, inner="federated")
    assert refused(served, Levels(LevelScheme(FedAvg()))) == []
    assert refused(served, Levels())[0].startswith("gossip is for peers, but the inner level has")
    assert refused(served, Gossip()) == [
        "gossip is for peers, but hierarchical has a server; use one of: levels"
    ]
    assert refused(served, FedAvg()) == ["fed_avg is for one level, but hierarchical has two; use levels"]
    (line,) = refused(Hierarchical(N, K, every=2), Levels(outer=LevelScheme(Choco())))
    assert line.startswith("choco needs a graph that is the same in every round; this one is not")
    (line,) = refused(FullyConnected(4), Levels())
    assert line == "levels needs a graph of two levels, such as hierarchical; fully_connected has one"


@pytest.mark.parametrize(
    ("inner", "outer", "lines"),
    [
        (NoSharing(), Gossip(), ["inner: none does not work in a level; use gossip or fed_avg"]),
        (
            FedStc(),
            Gossip(),
            ["inner: fed_stc sends updates down, which a mix of heads would miss; use fed_avg"],
        ),
        (
            Levels(),
            GradientTracking(),
            [
                "inner: levels does not work in a level; use gossip or fed_avg",
                "outer: gradient_tracking changes local steps; heads only mix: use gossip",
            ],
        ),
    ],
)
def test_schemes_that_do_not_work_in_their_level_are_refused_together(inner, outer, lines):
    with pytest.raises(BadInput) as caught:
        Levels(LevelScheme(inner), LevelScheme(outer))
    assert str(caught.value).splitlines() == lines


def test_buffers_are_averaged_beside_the_chains_of_the_levels():
    """Compressed variances could become negative, and the chains are not those of the whole scheme."""
    assert Gossip().only_averages and not Levels(LevelScheme(Gossip(), (TopK(0.1),))).only_averages


def test_a_chain_for_both_levels_is_refused():
    with pytest.raises(BadInput, match="levels has a chain for each level: put transforms into"):
        bound(Levels(), N, 7, (Cast(),))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((10, 3), "nodes must be a multiple of nodes_per_cluster, got 10 and 3"),
        ((4, 1, "federated"), "inner federated needs two nodes in a group, got 1"),
    ],
)
def test_impossible_clusters_are_refused(options, why):
    with pytest.raises(GraphError) as caught:
        Hierarchical(*options)
    assert str(caught.value) == f"hierarchical: {why}"


@pytest.mark.parametrize("inner", ["ring", "federated"])
def test_the_levels_of_a_view_are_those_of_its_round(inner):
    graph = Hierarchical(N, K, inner=inner, outer="star", every=EVERY)
    rule = Uniform() if default_weights(graph) == "uniform" else MetropolisHastings()
    weighted = WeightedGraph(graph, rule)
    for round in range(4):
        for rank in range(N):
            view = weighted.view(rank, round, 0.5)
            inner_view, outer_view = view.levels
            assert set(view.targets) == {*inner_view.targets, *outer_view.targets}
            assert (inner_view.round, outer_view.round, outer_view.learning_rate) == (round, round, 0.5)
            assert bool(outer_view.targets) == (rank in HEADS and (round + 1) % EVERY == 0)
            assert inner_view == replace(
                inner_view, servers=(rank - rank % K,) if inner == "federated" else ()
            )
