"""Mixing weights against closed forms, on whole and on live graphs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.errors import BadInput, GraphError
from decentnode.graph.base import Graph
from decentnode.graph.families import Chain, Exponential, FullyConnected, Ring, Star
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph, WeightFile, live_weights
from decentnode.graph.random_graphs import ErdosRenyi


class Flicker(Graph):
    """Pairs 0-1 and 2-3 in even rounds, a ring of four in odd ones."""

    period = None

    @property
    def num_nodes(self):
        return 4

    def targets(self, rank, round):
        return (rank ^ 1,) if round % 2 == 0 else Ring(4).targets(rank, round)


def view(weighted, rank, round=0):
    return weighted.view(rank, round)


def test_metropolis_hastings_on_a_chain_by_hand():
    w = WeightedGraph(Chain(4), MetropolisHastings()).matrix()
    third = 1 / 3
    expected = [
        [2 / 3, third, 0, 0],
        [third, third, third, 0],
        [0, third, third, third],
        [0, 0, third, 2 / 3],
    ]
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-15)


def test_complete_graph_averages_exactly():
    np.testing.assert_allclose(
        WeightedGraph(FullyConnected(5), MetropolisHastings()).matrix(), 0.2, atol=1e-15
    )


def test_uniform_is_the_mean_of_what_is_received():
    weighted = WeightedGraph(Star(4), Uniform())
    assert view(weighted, 0).weights == {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}
    assert view(weighted, 2).weights == {0: 0.5, 2: 0.5}


def test_weights_ascend_by_rank_and_hold_the_own_one():
    weighted = WeightedGraph(ErdosRenyi(20, 0.3), MetropolisHastings())
    for rank in range(20):
        seen = view(weighted, rank)
        assert list(seen.weights) == sorted({*seen.sources, rank})
        assert list(seen.outgoing_weights) == sorted({*seen.targets, rank})
        assert seen.weights == seen.outgoing_weights
        assert seen.degree == len(seen.sources)


def test_directed_graphs_receive_and_send_apart():
    seen = view(WeightedGraph(Exponential(6), Uniform()), 4)
    assert seen.targets == (0, 2, 5)
    assert seen.sources == (0, 2, 3)
    assert seen.weights == {0: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}
    assert seen.outgoing_weights == {0: 0.25, 2: 0.25, 4: 0.25, 5: 0.25}


def test_a_changing_graph_has_the_weights_of_its_round():
    weighted = WeightedGraph(Flicker(), MetropolisHastings())
    assert view(weighted, 3, round=0).weights == {2: 0.5, 3: 0.5}
    assert view(weighted, 3, round=1).weights == pytest.approx({0: 1 / 3, 2: 1 / 3, 3: 1 / 3})
    assert view(weighted, 3, round=2).round == 2
    np.testing.assert_allclose(weighted.matrix(1).sum(axis=0), 1, rtol=0, atol=1e-15)


def test_a_static_view_changes_nothing_but_its_round():
    weighted = WeightedGraph(Ring(5), MetropolisHastings())
    first, later = view(weighted, 2, 0), view(weighted, 2, 7)
    assert later.round == 7
    assert replace(later, round=0) == first
    assert later.weights is first.weights


@settings(max_examples=60)
@given(st.data())
def test_lost_edges_leave_weights_doubly_stochastic(data):
    n = data.draw(st.integers(2, 12))
    graph = ErdosRenyi(n, 0.7, seed=data.draw(st.integers(0, 50)))
    weighted = WeightedGraph(graph, MetropolisHastings())
    edges = [(i, j) for i in range(n) for j in graph.targets(i, 0) if i < j]
    lost = data.draw(st.sets(st.sampled_from(edges)))
    dead = data.draw(st.sets(st.integers(0, n - 1)))
    w = np.zeros((n, n))
    for i in range(n):
        alive = {j for j in graph.sources(i, 0) if not {i, j} & dead and (min(i, j), max(i, j)) not in lost}
        live = live_weights(view(weighted, i).weights, i, alive)
        assert list(live) == sorted({*alive, i})
        for j, weight in live.items():
            w[i, j] = weight
    assert (w == w.T).all()
    assert (w >= 0).all()
    assert np.abs(w.sum(axis=0) - 1).max() <= 1e-15 * n
    assert np.abs(w.sum(axis=1) - 1).max() <= 1e-15 * n


def test_the_weight_of_the_lost_goes_to_self():
    weights = {0: 0.25, 1: 0.5, 3: 0.25}
    assert live_weights(weights, 1, {0}) == {0: 0.25, 1: 0.75}
    assert live_weights(weights, 1, set()) == {1: 1.0}
    assert live_weights(weights, 1, {0, 3, 9}) == weights
    assert weights == {0: 0.25, 1: 0.5, 3: 0.25}


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "w.txt").write_text(text)
        return WeightFile("w.txt")

    return write


def defects(graph, mixing):
    with pytest.raises(GraphError) as caught:
        WeightedGraph(graph, mixing)
    return list(caught.value.lines)


def test_a_matrix_is_read(written):
    text = "# chain of three\n0.5, 0.5, 0\n0.5, 0.25, 0.25\n\n0, 0.25, 0.75\n"
    expected = [[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0, 0.25, 0.75]]
    assert WeightedGraph(Chain(3), written(text)).matrix().tolist() == expected


def test_triples_are_read(written):
    text = "0 0 0.75\n0 1 0.25\n1 0 0.25\n1 1 0.75 # self\n"
    assert WeightedGraph(Chain(2), written(text)).matrix().tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_weights_written_by_numpy_are_read_back(written, tmp_path):
    weighted = WeightedGraph(ErdosRenyi(7, 0.6), MetropolisHastings())
    np.savetxt(tmp_path / "w.txt", weighted.matrix(), delimiter=",")
    again = WeightedGraph(weighted.graph, WeightFile("w.txt")).matrix()
    np.testing.assert_allclose(again, weighted.matrix(), rtol=0, atol=1e-15)


def test_what_rounding_left_over_goes_to_self(written):
    mixing = written("\n".join(["0.3333333 0.3333333 0.3333333"] * 3))
    w = WeightedGraph(Ring(3), mixing).matrix()
    assert w[0, 1] == w[1, 0] == 0.3333333
    assert w[0].sum() == pytest.approx(1, abs=1e-15)
    assert w[0, 0] == pytest.approx(0.3333334, abs=1e-12)


def test_a_link_without_weight_is_listed_with_zero(written):
    weighted = WeightedGraph(Ring(3), written("1 0 0\n0 0.5 0.5\n0 0.5 0.5\n"))
    assert view(weighted, 0).weights == {0: 1.0, 1: 0.0, 2: 0.0}


def test_weights_from_a_file_need_a_graph_that_stays(written):
    with pytest.raises(BadInput) as caught:
        WeightedGraph(Flicker(), written("1\n"))
    assert str(caught.value) == "weights from a file need a graph that is the same in every round"
