"""BEER with copies for each edge: against BEER, the invariant of its trackers, and the common optimum."""

import pytest
import torch

from decentnode.errors import RunFailed
from decentnode.graph.families import Ring
from decentnode.graph.redrawn import EpidemicOracle, RandomMatching
from decentnode.sharing import Beer, Gossip
from decentnode.testing import Lockstep
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.scheme_cases import OPTIMUM8, q8_gradient, random_models

HALF = lambda: (TopK(0.5),)


def pull(round):
    return lambda i, x: x - random_models(1, len(x), seed=100 * round + i)[0]


def test_on_a_graph_that_stays_the_same_it_is_beer():
    start = torch.zeros(8, 20, dtype=torch.float64)
    ours, beer = (
        Lockstep(lambda copies=copies: Beer(gamma=0.2, copies=copies), Ring(8), start, HALF)
        for copies in ("edge", "node")
    )
    for round in range(10):
        expected = beer.run(1, pull(round), 0.1)
        assert torch.allclose(ours.run(1, pull(round), 0.1), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("graph", [EpidemicOracle(6, 3, seed=1), RandomMatching(7, seed=1)])
@pytest.mark.parametrize("memory", [None, 2])
def test_the_sum_of_the_trackers_is_that_of_the_last_gradients(graph, memory):
    start = torch.zeros(graph.num_nodes, 10, dtype=torch.float64)
    network = Lockstep(lambda: Beer(gamma=0.3, copies="edge", memory=memory), graph, start, HALF)
    for round in range(10):
        network.run(1, pull(round), 0.1)
        v, g = (torch.stack(network.state(name)) for name in ("_v", "_g"))
        assert torch.allclose(v.sum(0), g.sum(0), rtol=0, atol=1e-12)


def test_it_approaches_the_common_optimum_where_gossip_stalls():
    graph, start = RandomMatching(8, seed=1), torch.zeros(8, 2, dtype=torch.float64)
    ours = Lockstep(lambda: Beer(gamma=0.7, copies="edge"), graph, start, HALF)
    assert (ours.run(80, q8_gradient, 0.1) - OPTIMUM8).abs().max() < 0.01
    assert (Lockstep(Gossip, graph, start).run(40, q8_gradient, 0.1) - OPTIMUM8).abs().max() > 0.1


def test_a_lost_payload_ends_the_run():
    network = Lockstep(lambda: Beer(gamma=0.5, copies="edge"), Ring(4), torch.zeros(4, 4).double(), HALF)
    network.run(1, q8_gradient, 0.1)
    assert not Beer(copies="edge").promises.tolerates_loss
    nan = torch.full((4, 4), float("nan")).double()
    network.models = nan
    with pytest.raises(RunFailed, match=r"^rank 0, round 2: its own vector is not finite"):
        network.mix()
