"""Schemes with a momentum of mixed models: on which graphs and with which chains disagreement grows."""

import numpy as np
import pytest
import torch

from decentnode.core.registry import MIXINGS
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import Graph
from decentnode.graph.base_k import BaseKPlusOne
from decentnode.graph.families import Exponential, Ring, Star, Torus
from decentnode.graph.mixing import WeightedGraph, default_weights
from decentnode.graph.time_varying import AlternatingRing
from decentnode.sharing import DecentLam, QuasiGlobal
from decentnode.sharing.blocks.divergence_guard import EARLY_ROUNDS
from decentnode.sharing.blocks.stability import growth
from decentnode.testing import Lockstep, bound
from decentnode.transforms import Cast, Qsgd, Sign, Ternary
from decentnode.transforms.coding.zstd import Zstd
from decentnode.transforms.sparsify.random_k import RandomK
from decentnode.transforms.sparsify.top_k import TopK
from tests.support.scheme_cases import random_models


class Matchings(Graph):
    """Other pairs in every round, for ever."""

    period = None
    num_nodes = 8

    def targets(self, rank, round):
        order = np.random.default_rng(round).permutation(8).tolist()
        return (order[order.index(rank) ^ 1],)


def weighted(graph):
    return WeightedGraph(graph, MIXINGS.find(default_weights(graph))())


def of_decent_lam(W, beta):
    return np.hstack([W, -beta * np.eye(len(W))])


def of_quasi_global(W, beta):
    return np.hstack([W, -beta * W])


def radius(graph, mixed, beta, mu=0.0):
    """The spectral radius of one period on disagreement, its P-th root, from dense matrices."""
    n = graph.num_nodes
    models, identity = np.eye(n, 2 * n), np.eye(n)
    product = np.eye(2 * n)
    for round in graph.changes.rounds():
        x = mixed(weighted(graph).matrix(round), beta)
        u = mu * np.eye(n, 2 * n, n) + (1 - mu) * (models - x)
        product = np.vstack([x, u]) @ product
    disagreement = np.kron(np.eye(2), identity - 1 / n)
    return np.abs(np.linalg.eigvals(disagreement @ product @ disagreement)).max() ** (
        1 / len(graph.changes.rounds())
    )


GRAPHS = [AlternatingRing(7), BaseKPlusOne(12, 1), BaseKPlusOne(6, 2), Exponential(12), Torus(4, 4), Star(5)]


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_growth_is_the_spectral_radius_of_a_period(graph):
    for beta in (0.5, 0.9):
        measured = growth(weighted(graph), lambda mix, x, u, beta=beta: mix(x) - beta * u)
        assert measured == pytest.approx(max(1, radius(graph, of_decent_lam, beta)), abs=1e-3)
    for mu in (0.0, 0.5):
        measured = growth(weighted(graph), lambda mix, x, u: mix(x - 0.9 * u), mu)
        assert measured == pytest.approx(max(1, radius(graph, of_quasi_global, 0.9, mu)), abs=1e-3)


@pytest.mark.parametrize(
    ("graph", "factor"),
    [(AlternatingRing(7), 1.06), (BaseKPlusOne(12, 1), 1.24), (Exponential(12), 1.16), (Matchings(), "1.0.")],
    ids=["alternating_ring", "base_k_plus_one", "exponential", "matchings"],
)
def test_decent_lam_is_refused_where_it_diverges(graph, factor):
    with pytest.raises(
        BadInput, match=rf"decent_lam diverges on this graph: .* grows {factor} times a round"
    ):
        DecentLam().check(weighted(graph))
    DecentLam(beta=0.1).check(weighted(graph))
    QuasiGlobal().check(weighted(graph))


def test_quasi_global_is_refused_where_it_diverges():
    with pytest.raises(BadInput, match=r"grows 1.5 times a round; use a mu above 0, or a beta below 0.9$"):
        QuasiGlobal(mu=0.0).check(weighted(Torus(4, 4)))
    QuasiGlobal(mu=0.0).check(weighted(Ring(8)))


@pytest.mark.parametrize("graph", [Ring(8), Torus(4, 4), Star(5), AlternatingRing(8)], ids=str)
def test_they_are_allowed_where_disagreement_shrinks(graph):
    for make in (DecentLam, QuasiGlobal, lambda: QuasiGlobal(nesterov=True)):
        make().check(weighted(graph))


def still(make, graph):
    """Nodes whose gradients are zero."""
    network = Lockstep(make, graph, random_models(graph.num_nodes, 2), weights=weighted(graph).mixing)
    return network, lambda rounds: network.run(rounds, lambda i, x: torch.zeros_like(x), 0.1)


def test_what_is_refused_grows_and_the_guard_ends_it():
    network, run = still(DecentLam, BaseKPlusOne(5, 1))
    before = network.disagreement
    run(EARLY_ROUNDS)
    assert network.disagreement > 1e4 * before
    with pytest.raises(
        RunFailed, match=r"decent_lam diverges: the norm of how far a model moves is .* moment"
    ):
        run(100)
    assert network.round < EARLY_ROUNDS + 60


def test_quasi_global_shrinks_disagreement_where_decent_lam_is_refused():
    network, run = still(QuasiGlobal, BaseKPlusOne(5, 1))
    before = network.disagreement
    run(100)
    assert network.disagreement < 1e-6 * before


@pytest.mark.parametrize("make", [lambda: RandomK(0.5), lambda: TopK(0.5), Qsgd, Sign, Ternary])
def test_decent_lam_refuses_chains_that_select_or_quantize(make):
    with pytest.raises(BadInput, match=r"transforms\[0\]: \w+ is too coarse for decent_lam"):
        bound(DecentLam(), 8, 10, (make(),))
    bound(QuasiGlobal(), 8, 10, (make(),))


@pytest.mark.parametrize("chain", [(Cast(),), (Zstd(),), (Cast(), Zstd())])
def test_decent_lam_takes_casts_and_what_loses_nothing(chain):
    bound(DecentLam(), 8, 10, chain)
