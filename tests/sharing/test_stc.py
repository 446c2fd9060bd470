"""STC against dense oracles, around a server and between peers, and its bytes."""

import numpy as np
import pytest
import torch

from decentnode.errors import BadInput
from decentnode.graph.base import StaticGraph, neighbor_lists
from decentnode.graph.families import Ring, Star
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.sharing import Stc
from decentnode.testing import Lockstep
from decentnode.transforms import Cast
from tests.support.dense_oracles import largest
from tests.support.scheme_cases import random_models


def ternary(rows, k):
    """The compressor of the paper, row by row."""
    kept = largest(rows, k)
    return np.sign(kept) * (np.abs(kept).sum(1, keepdims=True) / k)


def pulls(n, d):
    """Gradients of |x - b_i|^2 / 2, and b."""
    b = random_models(n, d, seed=1)
    return b, lambda i, x: x - b[i]


@pytest.mark.parametrize("server_trains", [True, False])
def test_around_a_server_every_round_is_the_published_one(server_trains):
    """Each update of the server counts exactly once in every model, which are all the same."""
    n, d, k, eta = 6, 40, 4, 0.3
    b, gradient = pulls(n, d)
    start = random_models(1, d, seed=2).expand(n, -1).clone()
    network = Lockstep(lambda: Stc(fraction=k / d, server=0), Star(n), start)
    common, up, down = start.numpy()[:1].copy(), np.zeros((n - 1, d)), np.zeros((1, d))
    for _ in range(40):
        network.run(1, lambda i, x: gradient(i, x) * (i > 0 or server_trains), eta)
        updates = -eta * (common - b.numpy())
        updates[0] *= server_trains
        c = ternary(updates[1:] + up, k)
        up += updates[1:] - c
        mean = (updates[:1] + c.sum(0, keepdims=True)) / n
        step = ternary(mean + down, k)
        down += mean - step
        common = common + step
        assert np.allclose(network.models.numpy(), common, rtol=0, atol=1e-12)


def test_around_a_server_the_optimum_of_the_mean_loss_is_reached():
    n, d = 6, 40
    b, gradient = pulls(n, d)
    network = Lockstep(lambda: Stc(fraction=0.25, server=2), shifted_star(n, 2), zeros(n, d))
    network.run(100, gradient, 0.05)
    assert torch.allclose(network.models, b.mean(0).expand(n, -1), rtol=0, atol=0.1)


def zeros(n, d):
    return torch.zeros(n, d, dtype=torch.float64)


def shifted_star(n, center):
    """A star whose center is not rank 0."""

    class Shifted(StaticGraph):
        adjacency = neighbor_lists(n, [(center, i) for i in range(n) if i != center])

    return Shifted()


def test_between_peers_every_round_is_choco_with_that_compressor():
    n, d, k, eta, gamma = 8, 40, 4, 0.1, 0.05
    w = WeightedGraph(Ring(n), MetropolisHastings()).matrix()
    b, gradient = pulls(n, d)
    start = random_models(1, d, seed=2).expand(n, -1).clone()
    network = Lockstep(lambda: Stc(gamma=gamma, fraction=k / d), Ring(n), start)
    x = start.numpy().copy()
    h = x.copy()
    for _ in range(40):
        network.run(1, gradient, eta)
        x = x - eta * (x - b.numpy())
        h += ternary(x - h, k)
        x += gamma * (w @ h - h)
        assert np.allclose(network.models.numpy(), x, rtol=0, atol=1e-12)


def test_between_peers_of_a_star_the_mean_is_kept_and_consensus_reached():
    models = random_models(6, 100)
    network = Lockstep(lambda: Stc(gamma=0.1, fraction=0.1), Star(6), zeros(6, 100))
    network.models = models
    start, mean = network.disagreement, models.mean(0)
    network.run(80)
    assert torch.allclose(network.models.mean(0), mean, rtol=0, atol=1e-13)
    assert network.disagreement / start < 0.1


def test_the_bytes_of_1_percent():
    """8.11 bits an index and 1 a sign for random places; about 1/350 of all bytes."""
    d = 100_000
    network = Lockstep(Stc, Ring(3), torch.zeros(3, d))
    network.models = random_models(3, d, dtype=torch.float32)
    network.mix()
    payload = network.payloads[0]
    k = d // 100
    assert 8 * payload.index_bytes / k == pytest.approx(8.11, abs=0.1)
    assert payload.nbytes - payload.index_bytes <= k // 8 + 4 + 16
    assert 4 * d / payload.nbytes == pytest.approx(351, rel=0.03)


def test_a_server_needs_a_star_around_it():
    weighted = lambda graph: WeightedGraph(graph, MetropolisHastings())
    Stc(server=0).check(weighted(Star(5)))
    Stc().check(weighted(Ring(5)))
    for server, graph in ((0, Ring(5)), (1, Star(5)), (9, Star(5)), (0, Star(1))):
        with pytest.raises(BadInput, match=rf"^stc with server {server} needs a star around that rank"):
            Stc(server=server).check(weighted(graph))


def test_a_further_quantizer_is_refused():
    with pytest.raises(BadInput, match="cast takes dense or sparse but rice gives quantized"):
        Lockstep(lambda: Stc(), Ring(4), zeros(4, 50), lambda: (Cast(),))
