"""Zip-DL and Muffliato: what their noise does to models, and what each node learns of each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from decentnode.errors import BadInput
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicOracle
from decentnode.sharing import Muffliato, ZipDl
from decentnode.sharing.blocks.network_privacy import epsilon, pairwise_renyi
from decentnode.sharing.zip_dl import variance
from decentnode.testing import Lockstep, bound, random_models
from decentnode.transforms import Cast


@pytest.mark.parametrize(
    "graph", [Ring(6), Regular(12, 4, seed=3), EpidemicOracle(10, 3)], ids=lambda g: type(g).__name__
)
@pytest.mark.parametrize("generator", ["secure", "seeded"])
def test_zip_dl_keeps_the_mean(graph, generator):
    x = random_models(graph.num_nodes, 50)
    run = Lockstep(lambda: ZipDl(sigma=3.0, generator=generator), graph, x)
    run.mix()
    torch.testing.assert_close(run.models.mean(0), x.mean(0), rtol=0, atol=1e-12)
    assert (run.models - torch.as_tensor(run.weighted.matrix(0)) @ x).std() > 0.1


def test_the_noise_of_an_edge_has_the_variance_of_its_formula():
    weighted, d = WeightedGraph(Regular(12, 4, seed=3), MetropolisHastings()), 200_000
    view, x = weighted.view(5, 0), torch.zeros(d, dtype=torch.float64)
    scheme = bound(ZipDl(sigma=0.7), 12, d)
    seen = {v: payload["vector"] for v, payload in scheme.outgoing(x, view).items()}
    assert seen.keys() == set(view.targets)
    for v, z in seen.items():
        assert math.isclose(z.var().item(), variance(view, v, 0.7), rel_tol=0.02)
    own_noise = scheme._own_model
    total = own_noise * view.outgoing_weights[5] + sum(view.outgoing_weights[v] * z for v, z in seen.items())
    assert total.abs().max() < 1e-12


def test_the_noise_cancels_where_a_neighbor_has_no_weight():
    """As in the first round of a node that comes late (`churn`), whose own model nobody uses."""
    d, graph = 100_000, WeightedGraph(Ring(4), MetropolisHastings())
    view = replace(graph.view(1, 0), outgoing_weights={0: 0.0, 1: 0.25, 2: 0.75})
    scheme = bound(ZipDl(sigma=0.7), 4, d)
    seen = {v: p["vector"] for v, p in scheme.outgoing(torch.zeros(d, dtype=torch.float64), view).items()}
    assert (0.25 * scheme._own_model + 0.75 * seen[2]).abs().max() < 1e-12
    for v in (0, 2):
        assert math.isclose(seen[v].var().item(), variance(view, v, 0.7), rel_tol=0.03)


def test_zip_dl_refuses_transforms():
    with pytest.raises(BadInput, match="zip_dl sends each neighbor another model"):
        bound(ZipDl(sigma=1.0), 6, 5, (Cast(),))


def test_the_noise_of_muffliato_is_that_of_its_definition():
    """Its mean has the variance sigma^2 / n, and without noise it is several mixing steps."""
    graph, x = FullyConnected(8), random_models(1, 40_000).expand(8, -1).clone()
    run = Lockstep(lambda: Muffliato(noise=0.5, clip=2.0, steps=1), graph, x)
    run.mix()
    noise = run.models.mean(0) - x[0]
    assert math.isclose(noise.var().item(), (0.5 * 2.0) ** 2 / 8, rel_tol=0.03)
    moved = random_models(8, 40)
    still = Lockstep(lambda: Muffliato(noise=1e-12, clip=1e9, steps=3), Ring(8), torch.zeros_like(moved))
    still.models = moved.clone()
    w = torch.as_tensor(WeightedGraph(Ring(8), MetropolisHastings()).matrix())
    torch.testing.assert_close(still.mix(), w @ w @ w @ moved, rtol=0, atol=1e-2)


def test_muffliato_clips_the_local_update():
    x = random_models(1, 30).expand(4, -1).clone()
    run = Lockstep(lambda: Muffliato(noise=1e-9, clip=0.1, steps=1), FullyConnected(4), x)
    run.models = x + torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None]
    run.mix()
    torch.testing.assert_close(run.models.mean(0), x[0] + 0.1 / math.sqrt(30), rtol=0, atol=1e-7)


def steps_of(weights, hears, count):
    return [(np.linalg.matrix_power(weights, t), hears) for t in range(count)]


def test_pairwise_privacy_on_a_ring_is_that_of_the_paper():
    """Ring of 64, 20 steps, noise 1, order 2: figures of Theorem 1 with t from 0, before the local bound."""
    weighted = WeightedGraph(Ring(64), MetropolisHastings())
    w = weighted.matrix()
    hears = (w > 0) & ~np.eye(64, dtype=bool)
    divergences = 2 * pairwise_renyi(steps_of(w, hears, 20), 1.0)
    # Near nodes reach the bound of local privacy, which is 1.
    assert np.allclose(divergences[0, [1, 2, 4]], 1.0)
    assert math.isclose(divergences[0, 8], 0.01501, rel_tol=1e-3)
    assert math.isclose(divergences[0, 12], 1.77e-5, rel_tol=1e-2)
    assert (divergences[0, 21:44] == 0).all() and np.isinf(divergences[0, 0])
    short = 2 * pairwise_renyi(steps_of(w, hears, 1), 4.0)
    assert np.allclose(short[0, 1], 1 / 16) and short[0, 2] == 0


def test_epsilon_follows_from_the_divergence():
    """One Gaussian mechanism of noise 4: the best order gives the closed form of the conversion."""
    delta, rho = 1e-5, 1 / (2 * 16)
    epsilons = epsilon(np.array([[rho, 0.0]]), 1, delta)
    expected = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert math.isclose(epsilons[0, 0], expected, rel_tol=2e-3) and epsilons[0, 1] == 0
    assert epsilons[0, 0] >= expected - 1e-12
