"""Several mixing steps in a round: powers of W, Chebyshev polynomials of W, and where they are refused."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import Chebyshev

from decentnode.errors import BadInput
from decentnode.graph.base import StaticGraph
from decentnode.graph.families import FullyConnected, Ring, Star, Torus
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicOracle, RandomMatching
from decentnode.graph.spectrum import contraction
from decentnode.sharing import MultiGossip
from decentnode.sharing.multi_gossip import chebyshev
from decentnode.testing import Lockstep, random_models
from decentnode.transforms import Qsgd
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.top_k import TopK


def mixed(graph, models, steps, acceleration="chebyshev", **options):
    return Lockstep(
        lambda: MultiGossip(steps=steps, acceleration=acceleration), graph, models, **options
    ).mix()


@pytest.mark.parametrize(
    "graph", [Ring(8), Torus(3, 4), Regular(10, 3, seed=2)], ids=["ring", "torus", "regular"]
)
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_accelerated_steps_are_the_chebyshev_polynomial_of_w(graph, steps):
    models = random_models(graph.num_nodes)
    eigenvalues, V = np.linalg.eigh(WeightedGraph(graph, MetropolisHastings()).matrix())
    second, T = np.sort(np.abs(eigenvalues))[-2], Chebyshev.basis(steps)
    expected = V @ np.diag(T(eigenvalues / second) / T(1 / second)) @ V.T @ models.numpy()
    assert np.allclose(mixed(graph, models, steps).numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", [Ring(8), EpidemicOracle(8, 3, seed=1)], ids=["ring", "epidemic"])
def test_plain_steps_are_a_power_of_w(graph):
    models = random_models(8)
    W = WeightedGraph(graph, MetropolisHastings()).matrix()
    expected = np.linalg.matrix_power(W, 4) @ models.numpy()
    assert np.allclose(mixed(graph, models, 4, "none").numpy(), expected, rtol=0, atol=1e-14)


def test_a_ring_of_32_agrees_to_a_millionth_after_91_steps_where_plain_ones_need_1072():
    """The slowest mode, a cosine: 1 / T(1 / lambda) and lambda^t at the second eigenvalue."""
    wave = torch.tensor([[math.cos(2 * math.pi * i / 32)] for i in range(32)], dtype=torch.float64)
    second = contraction(WeightedGraph(Ring(32), MetropolisHastings()))
    assert second == pytest.approx(0.987190, abs=1e-6)
    assert second**1071 > 1e-6 >= second**1072
    left = [float(mixed(Ring(32), wave, steps).abs().max()) for steps in (90, 91)]
    assert left[0] > 1e-6 >= left[1]
    assert left[1] == pytest.approx(1 / math.cosh(91 * math.acosh(1 / second)), rel=1e-6)


def test_the_coefficients_stay_finite_for_many_steps():
    c = chebyshev(0.5, 1000)
    assert c[0] == 1 and c[-1] == pytest.approx(2 / (1 + math.sqrt(1 - 0.25)))
    assert chebyshev(0.0, 3) == [1.0, 1.0, 1.0]


def test_one_step_is_exact_where_w_is_the_mean():
    models = random_models(6)
    exact = models.mean(0).expand(6, -1)
    assert torch.allclose(mixed(FullyConnected(6), models, 3), exact, rtol=0, atol=1e-14)


def test_a_lost_edge_slows_agreement_and_keeps_the_mean():
    network = Lockstep(
        lambda: MultiGossip(steps=4, acceleration="chebyshev"),
        Ring(8),
        random_models(8),
        is_live=lambda i, j: {i, j} != {2, 3},
    )
    start, mean = network.disagreement, network.models.mean(0)
    network.run(20)
    assert torch.allclose(network.models.mean(0), mean, rtol=0, atol=1e-13)
    assert network.disagreement < start / 1e3


def test_it_costs_a_model_for_each_neighbor_and_step():
    network = Lockstep(lambda: MultiGossip(steps=3), Ring(8), random_models(8, 100))
    network.mix()
    assert network.sent == 8 * 3 * 2 * 8 * 100


class TwoRings(StaticGraph):
    """Two rings without an edge between them."""

    adjacency = tuple(
        tuple(sorted((base + (i - 1) % 3, base + (i + 1) % 3))) for base in (0, 3) for i in range(3)
    )


@pytest.mark.parametrize(
    ("graph", "weights", "why"),
    [
        (RandomMatching(8), MetropolisHastings(), "needs a graph that is the same in every round"),
        (Star(5), Uniform(), "needs symmetric weights"),
        (TwoRings(), MetropolisHastings(), "W has the eigenvalue 1 twice"),
    ],
)
def test_acceleration_is_refused_where_its_polynomial_is_wrong(graph, weights, why):
    weighted = WeightedGraph(graph, weights)
    MultiGossip(steps=3).check(weighted)
    with pytest.raises(BadInput, match=f"^multi_gossip with acceleration:? {why}"):
        MultiGossip(steps=3, acceleration="chebyshev").check(weighted)


@pytest.mark.parametrize("transform", [TopK(0.1), Qsgd()])
def test_transforms_that_lose_much_are_refused(transform):
    with pytest.raises(BadInput, match=r"^transforms\[0\]: \w+ is too coarse for multi_gossip"):
        MultiGossip().check_chain(Chain([transform], 10))
