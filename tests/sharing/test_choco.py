"""CHOCO-SGD against its equations, its measured figures, and its guard."""

import numpy as np
import pytest
import torch

from decentnode.core.payload import PayloadError
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.sharing import Choco
from decentnode.sharing.blocks.divergence_guard import EARLY_ROUNDS
from decentnode.testing import Lockstep
from decentnode.transforms import Cast
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.dense_oracles import largest
from tests.support.scheme_cases import q8_gradient, random_models

TENTH = lambda: (TopK(0.1),)


def from_zero(gamma, graph, models, transforms=TENTH):
    """All nodes begin at zero, as they must begin alike, and have then moved to `models`."""
    network = Lockstep(lambda: Choco(gamma), graph, torch.zeros_like(models), transforms)
    network.models = models
    return network


def test_the_measured_cliff_of_top_10_percent_on_a_ring():
    """Gamma .2 reaches a relative squared error of 1e-10 at 250 rounds."""
    models = random_models(8, 100)
    network = from_zero(0.2, Ring(8), models)
    start, mean = network.disagreement, models.mean(0)
    for _ in range(250):
        network.mix()
        assert torch.allclose(network.models.mean(0), mean, rtol=0, atol=1e-13)
    assert network.disagreement / start <= 1e-9


def test_gamma_of_0_4_stops_converging():
    network = from_zero(0.4, Ring(8), random_models(8, 100))
    start = network.disagreement
    network.run(250)
    assert network.disagreement / start > 1e-3


def test_a_run_that_diverges_is_ended_by_the_guard():
    network = from_zero(1.0, Ring(8), random_models(8, 100))
    with pytest.raises(RunFailed, match=r"^rank \d, round \d+: choco diverges: .*gamma 1 is too") as error:
        network.run(600)
    assert "\n" not in str(error.value)
    assert "`decentnode tune CONFIG`" in str(error.value)
    assert EARLY_ROUNDS < network.round < 400


def test_a_model_that_is_not_finite_is_named_by_the_guard():
    models = random_models(8, 100)
    models[3, 7] = float("inf")
    with pytest.raises(RunFailed, match=r"^rank 3, round 1: choco diverges: .* inf"):
        from_zero(0.2, Ring(8), models).mix()


def test_the_guard_lets_a_backlog_build_up():
    """A constant gradient and 1 coordinate of 400: the backlog grows 400-fold, and is no divergence."""
    network = Lockstep(Choco, Ring(3), torch.zeros(3, 400, dtype=torch.float64), lambda: (TopK(1 / 400),))
    network.run(450, lambda i, x: torch.ones_like(x), 1.0)
    assert network.round == 450
    assert network.models.mean().item() == pytest.approx(-450)


@pytest.mark.parametrize("size", [0.0, 1.0])
def test_the_guard_lets_a_learning_rate_warm_up(size):
    """A thousandth of the rate in all early rounds is no level to judge the full rate by."""
    b = random_models(8, 100, seed=1)
    start = size * random_models(1, 100, seed=2).expand(8, -1)
    network = Lockstep(lambda: Choco(0.2), Ring(8), start, TENTH)
    network.run(EARLY_ROUNDS + 5, lambda i, x: x - b[i], 1e-4)
    network.run(100, lambda i, x: x - b[i], 0.2)
    assert network.models.isfinite().all()


@pytest.mark.parametrize("graph", [Ring(8), Regular(12, 4, seed=3)], ids=["ring", "regular"])
def test_every_round_is_the_published_one(graph):
    """A dense oracle with all copies in one matrix, and gradient steps."""
    n, gamma, eta, d, k = graph.num_nodes, 0.3, 0.1, 20, 4
    w = WeightedGraph(graph, MetropolisHastings()).matrix()
    b = random_models(n, d, seed=1)
    start = random_models(1, d, seed=2).expand(n, -1)
    network = Lockstep(lambda: Choco(gamma), graph, start.clone(), lambda: (TopK(k / d),))
    x = start.numpy().copy()
    h = x.copy()
    for _ in range(40):
        network.run(1, lambda i, x: x - b[i], eta)
        x = x - eta * (x - b.numpy())
        h += largest(x - h, k)
        x += gamma * (w @ h - h)
        assert np.allclose(network.models.numpy(), x, rtol=0, atol=1e-12)


def test_without_compression_and_with_gamma_1_it_is_gossip():
    models = random_models(8)
    w = WeightedGraph(Ring(8), MetropolisHastings()).matrix()
    mixed = from_zero(1.0, Ring(8), models, tuple).run(3).numpy()
    assert np.allclose(mixed, np.linalg.matrix_power(w, 3) @ models.numpy(), rtol=0, atol=1e-14)


def test_half_precision_differences_reach_consensus_beyond_half_precision():
    models = random_models(8, 50, dtype=torch.float32)
    mean = models.double().mean(0)
    mixed = from_zero(0.9, Ring(8), models, lambda: (Cast("bf16"),)).run(150).double()
    assert (mixed - mean).abs().max() < 1e-5


def test_it_costs_what_the_chain_makes_of_a_vector():
    network = from_zero(0.2, Ring(8), random_models(8, 100))
    network.mix()
    assert network.sent == 8 * 2 * 10 * (8 + 4)


def test_choco_stalls_where_the_losses_differ():
    """On Q8 (optimum 11/3) it stays away from the optimum, as every scheme without tracking does."""
    network = Lockstep(Choco, Ring(8), torch.zeros(8, 1, dtype=torch.float64))
    assert (network.run(200, q8_gradient, 0.05) - 11 / 3).abs().max() > 1


def test_a_chain_with_another_payload_for_each_neighbor_is_refused():
    class Private(Cast):
        per_receiver = True

    with pytest.raises(
        BadInput, match=r"^transforms\[0\]: Private sends .* choco needs the same payload for a"
    ):
        Choco().check_chain(Chain([Private()], 10))


def test_nonsense_ends_the_run_instead_of_spoiling_the_copies():
    class Broken(TopK):
        def decode(self, payload, context):
            if context.sender == 5 and context.receiver == 4:
                raise PayloadError("indices are not ascending")
            return super().decode(payload, context)

    network = from_zero(0.2, Ring(8), random_models(8, 100), lambda: (Broken(0.1),))
    expected = r"^rank 4, round 1: what rank 5 sent makes no sense: indices .* \(choco tolerates no loss\)$"
    with pytest.raises(RunFailed, match=expected):
        network.mix()
