"""Graphs of one's own: what they say of themselves, and those that are drawn in each round."""

from dataclasses import dataclass

import numpy as np
import pytest

from decentnode.core.rng import generator
from decentnode.errors import BadInput, GraphError
from decentnode.graph import AperiodicGraph, Graph, PeriodicGraph, RedrawnGraph
from decentnode.graph.declared import MOST_RANKS, check_declared, notices
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.parallel.topology import weighted_graph


@dataclass(frozen=True)
class Matching(RedrawnGraph):
    """Random pairs."""

    num_nodes: int = 8

    def edges(self, round):
        order = generator(5, "matching", round).permutation(self.num_nodes).tolist()
        return zip(order[::2], order[1::2], strict=False)


@dataclass(frozen=True)
class Pushed(Matching):
    """Every node sends to one other; some hear several, some nobody (De Vos et al., 2023, EL-Local)."""

    directed = True

    def edges(self, round):
        hops = generator(6, "push", round).integers(1, self.num_nodes, self.num_nodes).tolist()
        return ((i, (i + hop) % self.num_nodes) for i, hop in enumerate(hops))


class Undeclared(Graph):
    """The pairs of Matching, by a class that does not declare that they change."""

    num_nodes = 8

    def targets(self, rank, round):
        return Matching().targets(rank, round)


class Paired(AperiodicGraph):
    """Always the same pairs."""

    num_nodes = 8

    def targets(self, rank, round):
        return (rank ^ 1,)


class Slowly(PeriodicGraph):
    """A ring, by turns with nothing, for `length` rounds each."""

    num_nodes = 5
    length = 32
    period = 64

    def targets(self, rank, round):
        return Ring(5).targets(rank, round) if round // self.length % 2 == 0 else ()


@pytest.mark.parametrize("graph", [Matching(), Matching(9), Pushed(), Paired(), Slowly()])
def test_graphs_that_are_as_declared_are_accepted(graph):
    check_declared(graph)


def test_a_change_in_any_of_64_rounds_is_found():
    class Once(Ring):
        def targets(self, rank, round):
            return super().targets(rank, round) if round < 64 or rank else (1,)

    class Never(Ring):
        def targets(self, rank, round):
            return super().targets(rank, round) if round < 65 or rank else (1,)

    line = (
        r"^Once declares static, but changes: targets\(0, 63\) is \(1, 4\), targets\(0, 64\) is \(1,\); set"
    )
    with pytest.raises(GraphError, match=line):
        check_declared(Once(5))
    check_declared(Never(5))


def test_many_ranks_are_sampled_in_checks():
    asked = set()

    class Large(Ring):
        def targets(self, rank, round):
            asked.add((rank, round))
            return super().targets(rank, round)

    check_declared(Large(1000))
    assert {rank for rank, _ in asked} == set(range(1000)), "the union is that of all"
    assert len({rank for rank, round in asked if round}) <= MOST_RANKS
    assert max(round for _, round in asked) == 64


def test_a_graph_without_a_period_that_stays_in_parts_gets_a_warning():
    assert notices(Paired()) == [
        "graph Paired: in its first 64 rounds the graph falls into 4 components, "
        "nodes 0 and 2 do not reach each other"
    ]
    assert notices(Matching()) == notices(Slowly()) == notices(Ring(4)) == []


def test_own_training_loops_refuse_and_warn_alike():
    with pytest.raises(BadInput, match=r"^Undeclared declares static, but changes: "):
        weighted_graph(Undeclared(), None, 8)
    with pytest.warns(UserWarning, match="^graph Paired: in its first 64 rounds"):
        assert not weighted_graph(Paired(), None, 8).static


def test_both_ends_of_a_drawn_edge_agree_in_any_order_of_rounds():
    for graph in (Matching(7), Pushed(7)):
        for round in (0, 5, 1, 0, 9, 3, 5):
            fresh = type(graph)(7)
            targets = [graph.targets(i, round) for i in range(7)]
            assert targets == [fresh.targets(i, round) for i in range(7)]
            heard = [tuple(j for j in range(7) if i in targets[j]) for i in range(7)]
            assert [graph.sources(i, round) for i in range(7)] == heard
        assert (graph.static, graph.period) == (False, None)
        assert graph.partners(2) == set(range(7)) - {2}, "whom it will meet, nobody knows"


def test_random_matchings_contract_as_their_formula_predicts():
    """W = (I + P)/2: of the squared disagreement (n - 2)/(2 (n - 1)) is left, in expectation."""
    n, weighted, rates = 8, WeightedGraph(Matching(), MetropolisHastings()), []
    j = np.full((n, n), 1 / n)
    for round in range(50):
        w = weighted.matrix(round)
        assert np.array_equal(w.sum(0), np.ones(n))
        # The mean over all start values is the trace; it is the same for every matching.
        rates.append(np.trace(w.T @ (np.eye(n) - j) @ w) / (n - 1))
    np.testing.assert_allclose(rates, (n - 2) / (2 * (n - 1)), rtol=0, atol=1e-15)


def test_a_directed_drawn_graph_has_weights_of_who_is_received():
    weighted = WeightedGraph(Pushed(), Uniform())
    view = weighted.view(3, 4)
    assert set(view.weights) == {3, *Pushed().sources(3, 4)}
    assert weighted.matrix(4)[3].sum() == pytest.approx(1, abs=1e-15)
