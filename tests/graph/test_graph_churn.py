"""Nodes that come late or leave: who is there, whose models they take, and what is refused."""

import numpy as np
import pytest
import torch

from decentnode.errors import GraphError
from decentnode.graph.base_k import BaseKPlusOne
from decentnode.graph.churn import Churn
from decentnode.graph.families import Exponential, FullyConnected, Ring
from decentnode.graph.mixing import FromGraph, MetropolisHastings, WeightedGraph
from decentnode.graph.redrawn import EpidemicOracle
from decentnode.sharing import Gossip
from decentnode.testing import Lockstep, random_models

SCHEDULE = ((1, 3, None), (2, 0, 4), (5, 0, 1), (5, 6, 8))


def weighted(graph):
    return WeightedGraph(graph, FromGraph())


@pytest.mark.parametrize(
    "inner", [Ring(8), FullyConnected(6), EpidemicOracle(8, 3, seed=1), BaseKPlusOne(8, 2), Exponential(8)]
)
def test_only_nodes_that_are_there_exchange(inner):
    graph = Churn(inner, SCHEDULE)
    assert graph.directed == inner.directed and graph.has_rests
    for round in range(10):
        away = {1} if round < 3 else set()
        away |= ({2} if round > 4 else set()) | ({5} if 1 < round < 6 or round > 8 else set())
        for rank in range(graph.num_nodes):
            expected = set(inner.targets(rank, round)) - away if rank not in away else set()
            assert set(graph.targets(rank, round)) == expected
            newcomer = (rank, round) in {(1, 3), (5, 6)}
            assert graph.trains(rank, round) == (rank not in away and not newcomer)
        rows = weighted(graph).matrix(round)
        assert np.allclose(rows.sum(1), 1, rtol=0, atol=1e-15)
        newcomers = [rank for rank, first in ((1, 3), (5, 6)) if first == round]
        stays = [rank for rank in range(graph.num_nodes) if rank not in newcomers]
        assert (rows[np.ix_(stays, newcomers)] == 0).all()
        if not inner.directed:
            assert np.allclose(rows[np.ix_(stays, stays)].sum(0), 1, rtol=0, atol=1e-15)


def test_without_changes_the_weights_are_those_of_the_graph():
    plain = WeightedGraph(Ring(6), MetropolisHastings()).matrix()
    assert np.allclose(weighted(Churn(Ring(6), ((0, 0, 5),))).matrix(3), plain, rtol=0, atol=1e-15)
    inner = BaseKPlusOne(6, 1)
    expected = WeightedGraph(inner, FromGraph()).matrix(1)
    assert np.allclose(weighted(Churn(inner, ((0, 0, 5),))).matrix(1), expected, rtol=0, atol=1e-15)


def test_a_node_that_joins_late_begins_with_the_mean_of_its_neighbors():
    models = random_models(6)
    network = Lockstep(Gossip, Churn(Ring(6), ((2, 2, None),)), models, weights=FromGraph())
    others = [0, 1, 3, 4, 5]
    before = network.run(2)
    assert torch.equal(before[2], models[2])
    mixed = network.mix()
    assert torch.allclose(mixed[2], (before[1] + before[3]) / 2, rtol=0, atol=1e-15)
    assert torch.allclose(mixed[others].mean(0), models[others].mean(0), rtol=0, atol=1e-14)
    last = network.run(60)
    assert torch.allclose(last, mixed.mean(0).expand(6, -1), rtol=0, atol=1e-6)


def test_two_nodes_that_join_together_have_no_weight_for_each_other():
    graph = Churn(FullyConnected(4), ((0, 2, None), (1, 2, None)))
    assert weighted(graph).matrix(2).tolist() == [[0, 0, 0.5, 0.5]] * 2 + [[0, 0, 0.5, 0.5]] * 2
    alone = Churn(Ring(4), ((0, 2, None), (1, 2, None), (3, 0, 1)))
    assert weighted(alone).matrix(2)[0].tolist() == [1, 0, 0, 0]


def test_the_schedule_may_stand_in_a_file(tmp_path):
    path = tmp_path / "churn.csv"
    path.write_text("# rank, first, last\n1,3\n2,0,4\n5,0,1\n5,6,8\n")
    from_file = Churn(Ring(8), schedule_path=str(path))
    churn = Churn(Ring(8), SCHEDULE)
    assert [from_file.edges(r).tolist() for r in range(10)] == [churn.edges(r).tolist() for r in range(10)]
    assert from_file.partners(3) == {2, 4}


def test_lines_that_make_no_sense_are_named(tmp_path):
    path = tmp_path / "churn.csv"
    path.write_text("1,3,5\n2,soon\n\n4\n")
    with pytest.raises(GraphError) as caught:
        Churn(Ring(8), schedule_path=str(path))
    expected = "expected 'rank,first,last', or 'rank,first' to the end, not"
    assert caught.value.lines == (f"{path}:2: {expected} '2 soon'", f"{path}:4: {expected} '4'")
