"""CHOCO with copies for each edge: against CHOCO, dense matrices, and what either end knows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.errors import BadInput, RunFailed
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicOracle, RandomMatching
from decentnode.sharing import Choco
from decentnode.testing import Lockstep
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.dense_oracles import largest
from tests.support.scheme_cases import OPTIMUM8, q8_gradient, random_models

TENTH = lambda: (TopK(0.1),)
CHANGING = [EpidemicOracle(6, 3, seed=1), RandomMatching(7, seed=1)]


def from_zero(graph, gamma=0.2, d=50, transforms=TENTH, copies="edge", **options):
    """All nodes begin at zero, as they must begin alike, and have then moved to random models."""
    models = random_models(graph.num_nodes, d)
    network = Lockstep(
        lambda: Choco(gamma, copies=copies, **options), graph, torch.zeros_like(models), transforms
    )
    network.models = models
    return network


@pytest.mark.parametrize("graph", [Ring(8), Regular(8, 4, seed=3)], ids=["ring", "regular"])
def test_on_a_graph_that_stays_the_same_it_is_choco(graph):
    ours, choco = from_zero(graph), from_zero(graph, copies="node")
    for round in range(8):
        pull = lambda i, x, round=round: x - random_models(1, 50, seed=100 * round + i)[0]
        assert torch.allclose(ours.run(1, pull, 0.1), choco.run(1, pull, 0.1), rtol=0, atol=1e-13)


@pytest.mark.parametrize("graph", CHANGING, ids=["epidemic_oracle", "random_matching"])
@pytest.mark.parametrize("memory", [None, 2])
def test_every_round_is_that_of_dense_matrices_of_copies(graph, memory):
    n, gamma, eta, d, k = graph.num_nodes, 0.3, 0.1, 20, 4
    weighted, b = WeightedGraph(graph, MetropolisHastings()), random_models(n, d, seed=1).numpy()
    start = random_models(1, d, seed=2).expand(n, -1)
    network = Lockstep(lambda: Choco(gamma, "edge", memory), graph, start.clone(), lambda: (TopK(k / d),))
    x = start.numpy().copy()
    h, last = np.repeat(x[:, None], n, axis=1), np.zeros((n, n))
    for round in range(12):
        network.run(1, lambda i, x: x - torch.from_numpy(b[i]), eta)
        w = weighted.matrix(round)
        if memory:
            h[round - last > memory] = start[0].numpy()
        x = x - eta * (x - b)
        met = (w != 0) & ~np.eye(n, dtype=bool)
        q = largest((x[:, None] - h).reshape(n * n, d), k).reshape(n, n, d)
        h[met], last[met] = h[met] + q[met], round
        x = x + gamma * np.einsum("ij,ijk->ik", w * met, h.swapaxes(0, 1) - h)
        assert np.allclose(network.models.numpy(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("graph", "remaining"), [(CHANGING[0], 2e-2), (CHANGING[1], 0.3)], ids=["epidemic", "pairs"]
)
def test_nodes_agree_on_the_exact_mean(graph, remaining):
    network = from_zero(graph)
    start, mean = network.disagreement, network.models.mean(0)
    for _ in range(30):
        assert torch.allclose(network.mix().mean(0), mean, rtol=0, atol=1e-12)
    assert network.disagreement / start < remaining


def test_it_trains_eight_quadratics_on_a_graph_that_changes():
    """The mean is that of gossip; models stall around it, as in every scheme without tracking."""
    start = torch.zeros(8, 5, dtype=torch.float64)
    network = Lockstep(lambda: Choco(0.4, "edge"), RandomMatching(8), start, lambda: (TopK(0.4),))
    error = network.run(80, q8_gradient, 0.03) - OPTIMUM8
    assert error.mean().abs() < 0.2
    assert error.square().mean().sqrt() < 0.6


def assert_both_ends_know_the_same(network):
    copies = network.state("_models")
    for i, mine in enumerate(copies):
        for j in mine["last"]:
            if copies[j]["last"].get(i) == mine["last"][j]:
                assert torch.equal(mine["own"][j], copies[j]["theirs"][i])


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    drops=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 7)), max_size=6),
)
def test_one_sided_losses_move_the_mean_in_their_rounds_alone(seed, drops):
    network = from_zero(EpidemicOracle(6, 3, seed=seed), d=10)
    network.is_live = lambda i, j: (i, j, network.round) not in drops
    for _ in range(10):
        before = network.models.mean(0)
        network.mix()
        if network.round - 1 not in {round for *_, round in drops}:
            assert torch.allclose(network.models.mean(0), before, rtol=0, atol=1e-13)
        assert_both_ends_know_the_same(network)


@pytest.mark.parametrize("ends", [(2,), (2, 3)], ids=["one end", "both ends"])
def test_a_lost_peer_that_is_back_starts_again(ends):
    network = from_zero(Ring(4))
    network.run(3)
    for i in ends:
        network.schemes[i].on_peer_lost(5 - i)
        network.schemes[i].on_peer_back(5 - i)
    mean = network.models.mean(0)
    for _ in range(4):
        assert torch.allclose(network.mix().mean(0), mean, rtol=0, atol=1e-13)
        assert_both_ends_know_the_same(network)
    assert all(network.state("_models")[i]["last"][5 - i] == 6 for i in (2, 3))


def test_pairs_with_different_initial_models_start_from_zero():
    """A node that was given a model has never seen the one that the others started from."""
    network = from_zero(Ring(4), 0.5)
    network.schemes[2].begin(random_models(1, 50, seed=9)[0])
    start, mean = network.disagreement, network.models.mean(0)
    for _ in range(40):
        assert torch.allclose(network.mix().mean(0), mean, rtol=0, atol=1e-13)
        assert_both_ends_know_the_same(network)
    assert [sorted(copies["from_zero"]) for copies in network.state("_models")] == [[], [2], [1, 3], [2]]
    assert network.disagreement < start / 10


def test_dropping_old_copies_bounds_the_state():
    network = from_zero(RandomMatching(16), memory=2, d=10)
    for _ in range(12):
        network.mix()
        assert all(len(copies["own"]) <= 3 for copies in network.state("_models"))


def test_it_costs_the_chain_and_one_number_for_each_neighbor():
    network = from_zero(EpidemicOracle(8, 3), d=100)
    network.mix()
    assert network.sent == 8 * 3 * (10 * (8 + 4) + 8)


def test_a_run_that_diverges_is_ended_by_the_guard():
    network = from_zero(Ring(4), 1.0, d=20, transforms=lambda: (TopK(0.05),))
    with pytest.raises(RunFailed, match=r"^rank \d, round \d+: choco diverges: .*gamma 1 is too"):
        network.run(400)
    assert network.round < 200


def test_a_transform_with_memory_is_refused():
    with pytest.raises(BadInput, match=r"^transforms\[0\]: top_k remembers one thing .* choco sends"):
        Choco(copies="edge").check_chain(Chain([TopK(0.1, by="change")], 10))
