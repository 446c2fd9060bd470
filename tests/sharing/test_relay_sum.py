"""Relayed sums against the exact mean after as many rounds as the tree is wide."""

import numpy as np
import pytest
import torch

from decentnode.core.payload import Payload
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.families import BinaryTree, Chain, Star
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import RelaySum
from decentnode.sharing.relay_sum import COUNT
from decentnode.testing import Lockstep, bound
from decentnode.transforms import Cast
from decentnode.transforms.sparsify.random_k import RandomK
from tests.support.scheme_cases import OPTIMUM8, q8_gradient, random_models

TREES = {"chain": (Chain(8), 7), "star": (Star(8), 2), "binary tree": (BinaryTree(7), 4)}
"""With their diameters."""


class Held(RelaySum):
    """Relays, but keeps telling the model it began with: the average of what stands still."""

    def begin(self, vector):
        super().begin(vector)
        self.held = vector.clone()

    def outgoing(self, vector, view):
        return super().outgoing(self.held, view)

    def mix(self, vector, incoming, view, out):
        super().mix(self.held, incoming, view, out)


def counts(network):
    return [1 + sum(counts.values()) for counts in network.state("_counts")]


@pytest.mark.parametrize(("tree", "diameter"), TREES.values(), ids=TREES)
def test_after_the_diameter_every_model_has_arrived_once(tree, diameter):
    models = random_models(tree.num_nodes)
    network = Lockstep(Held, tree, models)
    for round in range(1, diameter + 3):
        network.mix()
        error = (network.models - models.mean(0)).abs().max().item()
        complete = min(counts(network)) == tree.num_nodes
        assert complete == (round >= diameter)
        assert (error <= 1e-15) == complete, "the exact mean, and only then"


def test_the_counts_of_a_chain_grow_by_one_hop_a_round():
    network = Lockstep(Held, Chain(8), random_models(8))
    seen = []
    for _ in range(7):
        network.mix()
        seen.append(counts(network)[0])
    assert seen == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("missing", ["own", "initial"])
def test_it_is_the_published_equation(missing):
    """x_i+ = (sum over those within reach of x_j as old as it is far, and the fill) / n, on a chain."""
    n, eta, start = 8, 0.05, 1.5
    network = Lockstep(lambda: RelaySum(missing=missing), Chain(n), torch.full((n, 1), start).double())
    halves = []
    for t in range(25):
        network.train(q8_gradient, eta)
        halves.append(network.models[:, 0].numpy().copy())
        expected = np.zeros(n)
        for i in range(n):
            reached = [j for j in range(n) if j == i or t - abs(i - j) + 1 >= 0]
            fill = halves[t][i] if missing == "own" else start
            sums = [halves[t - max(abs(i - j) - 1, 0)][j] for j in reached]
            expected[i] = (sum(sums) + (n - len(reached)) * fill) / n
        assert np.allclose(network.mix()[:, 0].numpy(), expected, rtol=0, atol=1e-13)


def test_it_reaches_the_optimum_that_gossip_misses():
    network = Lockstep(RelaySum, Chain(8), torch.zeros(8, 1, dtype=torch.float64))
    network.run(320, q8_gradient, 0.1)
    assert (network.models - OPTIMUM8).abs().max().item() <= 1e-7


def test_the_mean_under_half_precision_errs_by_rounding_alone():
    models = random_models(8)
    network = Lockstep(Held, Chain(8), models, lambda: (Cast(),))
    mixed = network.run(8)
    assert (mixed - models.mean(0)).abs().max() <= 8 * 2**-8 * 3


def test_a_late_message_is_filled_in_and_not_stored():
    models = random_models(8)
    lost = [True]
    network = Lockstep(Held, Chain(8), models, is_live=lambda i, j: not (lost[0] and {i, j} == {3, 4}))
    network.run(8)
    assert counts(network) == [4] * 8
    lost[0] = False
    assert torch.allclose(network.run(8), models.mean(0).expand(8, -1), rtol=0, atol=1e-15)


def test_the_bytes_are_those_of_a_vector_and_a_count_for_each_neighbor():
    network = Lockstep(RelaySum, Chain(8), random_models(8, 10))
    network.mix()
    assert network.sent == 14 * (10 * 8 + 8)


def test_a_chain_that_selects_is_refused():
    with pytest.raises(BadInput, match="relay_sum sends sums of models, but a transform selects"):
        bound(RelaySum(), 8, 10, (RandomK(0.5),))


@pytest.mark.parametrize("count", [0, -1, 8, 2**40])
def test_an_impossible_count_ends_the_run(count):
    scheme, vector = bound(RelaySum(), 8, 7), random_models(1)[0]
    scheme.begin(vector)
    view = WeightedGraph(Chain(8), MetropolisHastings()).view(0, 0)
    wrong = COUNT.join(Payload.dense(vector), count)
    with pytest.raises(RunFailed, match=r"rank 1 sent makes no sense: a sum of .* models of 8 nodes"):
        scheme.mix(vector, {1: wrong}, view, torch.empty_like(vector))
