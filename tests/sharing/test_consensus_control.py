"""Mixing that follows the distance of neighbors: against dense matrices, and what its two ends know."""

import numpy as np
import pytest
import torch

from decentnode.errors import BadInput
from decentnode.graph.families import FullyConnected, Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.redrawn import RandomMatching
from decentnode.sharing import ConsensusControl, Gossip
from decentnode.testing import Lockstep, random_models
from decentnode.transforms import Cast
from decentnode.transforms.chain import Chain


@pytest.mark.parametrize("graph", [Ring(8), RandomMatching(7)], ids=["ring", "matching"])
def test_every_round_is_that_of_the_weights_by_distance(graph):
    n, target, least = graph.num_nodes, 0.8, 0.2
    models = 1 + random_models(n, 20) * torch.linspace(0.01, 1, n, dtype=torch.float64)[:, None]
    network = Lockstep(lambda: ConsensusControl(target=target, least=least), graph, models)
    x, weighted = models.numpy().copy(), WeightedGraph(graph, MetropolisHastings())
    for round in range(6):
        norms = (x**2).sum(1)
        r = np.sqrt(((x[:, None] - x[None]) ** 2).sum(2) / ((norms[:, None] + norms) / 2))
        w = weighted.matrix(round) * np.clip(r / target, least, 1)
        np.fill_diagonal(w, 0)
        x = x + w @ x - w.sum(1, keepdims=True) * x
        assert np.allclose(network.mix().numpy(), x, rtol=0, atol=1e-13)
        assert torch.allclose(network.models.mean(0), models.mean(0), rtol=0, atol=1e-13)


def test_a_model_whose_squared_norm_overflows_is_far_apart():
    models = random_models(8)
    models[2] = 1e200
    assert Lockstep(lambda: ConsensusControl(), Ring(8), models).mix().isfinite().all()


def test_models_far_apart_are_mixed_as_in_gossip():
    models = random_models(8)
    near = Lockstep(lambda: ConsensusControl(target=0.01), Ring(8), models).mix()
    assert torch.allclose(near, Lockstep(Gossip, Ring(8), models).mix(), rtol=0, atol=1e-15)


def test_disagreement_stays_longer_below_the_target():
    models = 1 + 0.001 * random_models(8)
    left = [
        Lockstep(lambda least=least: ConsensusControl(least=least), Ring(8), models).run(20).var(0).sum()
        for least in (0.0, 0.1, 1.0)
    ]
    assert left[0] > left[1] > left[2]


def test_a_node_far_from_its_neighbors_makes_smaller_steps():
    models = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    network = Lockstep(lambda: ConsensusControl(target=0.5, slow_down=True), FullyConnected(2), models)
    network.mix()
    assert network.state("_distance") == pytest.approx([2**0.5] * 2, rel=1e-15)
    before = network.models
    network.train(lambda i, x: torch.ones_like(x), 0.1)
    assert torch.allclose(before - network.models, torch.full((2, 2), 0.1 * 0.5 / 2**0.5).double())
    network.mix()
    assert network.state("_distance") == [0.0, 0.0]
    before = network.models
    network.train(lambda i, x: torch.ones_like(x), 0.1)
    assert torch.allclose(before - network.models, torch.full((2, 2), 0.1).double())


def test_steps_that_slow_down_need_plain_sgd():
    assert ConsensusControl(slow_down=True).requirements.plain_sgd
    assert not ConsensusControl().requirements.plain_sgd
    assert ConsensusControl().adjust_gradient is None


def test_transforms_that_change_the_models_are_refused():
    with pytest.raises(BadInput, match=r"^transforms\[0\]: cast changes the models that consensus_control"):
        ConsensusControl().check_chain(Chain([Cast()], 10))
