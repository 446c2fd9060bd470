"""Push-sum against its invariants and the exact mean, on directed graphs too."""

import numpy as np
import pytest
import torch

from decentnode.core.payload import Payload
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import Graph, StaticGraph, neighbor_lists
from decentnode.graph.families import Exponential, Star
from decentnode.graph.mixing import Uniform, WeightedGraph
from decentnode.sharing import PushSum
from decentnode.sharing.push_sum import WEIGHT
from decentnode.testing import Lockstep, bound, push_weights
from decentnode.transforms import Cast
from decentnode.transforms.sparsify.random_k import RandomK
from tests.support.scheme_cases import OPTIMUM8, q8_gradient, random_models


class Directed(StaticGraph):
    """A graph of the edges i -> j."""

    directed = True

    def __init__(self, nodes, edges):
        self.lists = neighbor_lists(nodes, edges, directed=True)

    @property
    def adjacency(self):
        return self.lists


class Alternating(Graph):
    """A directed ring whose steps change every round."""

    directed, static, num_nodes = True, False, 8

    def targets(self, rank, round):
        return ((rank + (3 if round % 2 else -1)) % self.num_nodes,)


def ring(n=8):
    return Directed(n, [(i, (i + 1) % n) for i in range(n)])


def digraph(n=8, seed=3):
    """A directed ring, so that it is strongly connected, and as many random edges again: uneven degrees."""
    rng = np.random.default_rng(seed)
    extra = [(int(i), int(j)) for i, j in rng.integers(n, size=(n, 2))]
    return Directed(n, [(i, (i + 1) % n) for i in range(n)] + extra)


GRAPHS = {"ring": ring(), "digraph": digraph(), "undirected": Star(8), "changing": Alternating()}
on_all_graphs = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def started(graph, models, chain=tuple):
    return Lockstep(PushSum, graph, models, chain, weights=Uniform())


def column_stochastic(graph):
    P = np.zeros((graph.num_nodes,) * 2)
    for j in range(graph.num_nodes):
        P[[j, *graph.targets(j, 0)], j] = 1 / (1 + len(graph.targets(j, 0)))
    return P


def mass(network):
    return torch.stack(network.state("_z")).mean(0)


def test_the_digraph_is_uneven():
    P = column_stochastic(digraph())
    assert np.allclose(P.sum(0), 1) and not np.allclose(P.sum(1), 1, atol=0.1)


@on_all_graphs
def test_all_agree_on_the_exact_mean(graph):
    models = random_models(8)
    network = started(graph, models)
    for _ in range(120):
        network.mix()
        assert torch.allclose(mass(network), models.mean(0), rtol=0, atol=1e-13)
        assert (push_weights(network) > 0).all() and push_weights(network).sum() == pytest.approx(
            8, abs=1e-12
        )
    assert torch.allclose(network.models, models.mean(0).expand(8, -1), rtol=0, atol=1e-4)


def test_one_round_is_the_published_equation():
    graph, eta = digraph(), 0.05
    P, network = column_stochastic(graph), started(graph, torch.zeros(8, 1, dtype=torch.float64))
    z, w = np.zeros(8), np.ones(8)
    for _ in range(30):
        g = np.array([q8_gradient(i, x).item() for i, x in enumerate(torch.from_numpy(z / w))])
        z, w = P @ (z - eta * g), P @ w
        network.run(1, q8_gradient, eta)
        assert np.allclose(push_weights(network), w, rtol=0, atol=1e-14)
        assert np.allclose(network.models[:, 0].numpy(), z / w, rtol=0, atol=1e-13)


def test_gradients_count_alike_on_a_graph_of_uneven_degrees():
    """Plain averages would weight each gradient by its node's share in the end, and end elsewhere."""
    network = started(digraph(), torch.zeros(8, 1, dtype=torch.float64))
    for rounds, eta in ((100, 0.05), (250, 0.01), (50, 0.001)):
        network.run(rounds, q8_gradient, eta)
    assert network.models.mean().item() == pytest.approx(OPTIMUM8, abs=0.01)
    P = column_stochastic(digraph())
    share = np.linalg.matrix_power(P, 1000)[:, 0]
    assert abs(share - 1 / 8).max() > 0.05


@on_all_graphs
def test_nothing_is_lost_in_half_precision(graph):
    models = random_models(8)
    network = started(graph, models, lambda: (Cast(),))
    network.run(60)
    assert torch.allclose(mass(network), models.mean(0), rtol=0, atol=1e-13)
    assert torch.allclose(network.models, models.mean(0).expand(8, -1), rtol=0, atol=0.05)


def test_the_bytes_are_those_of_a_vector_and_one_number_for_each_target():
    network = started(digraph(), random_models(8, 10))
    network.mix()
    edges = sum(len(digraph().targets(i, 0)) for i in range(8))
    assert network.sent == edges * (10 * 8 + 8)


def test_a_chain_that_selects_is_refused():
    with pytest.raises(BadInput, match="push_sum needs all coordinates of a sum"):
        bound(PushSum(), 8, 10, (RandomK(0.5),))


@pytest.mark.parametrize("weight", [0.0, -1.0, 9.0, float("nan"), float("inf")])
def test_an_impossible_weight_ends_the_run(weight):
    network = started(Exponential(8), random_models(8))
    scheme, vector = network.schemes[0], network.models[0]
    view = WeightedGraph(Exponential(8), Uniform()).view(0, 0)
    scheme.outgoing(vector, view)
    wrong = WEIGHT.join(Payload.dense(random_models(1)[0]), weight)
    with pytest.raises(RunFailed, match="what rank 4 sent makes no sense: a weight of"):
        scheme.mix(vector, {4: wrong}, view, torch.empty_like(vector))
