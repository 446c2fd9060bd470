"""Generated graphs: their shape by definition, their limits word for word."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from decentnode.core.registry import GRAPHS
from decentnode.errors import GraphError
from decentnode.graph.base import neighbor_lists
from decentnode.graph.connectivity import components, components_without, is_connected, rounds_to_reach
from decentnode.graph.families import (
    BinaryTree,
    Chain,
    Exponential,
    FullyConnected,
    Grid,
    Hypercube,
    Ring,
    Star,
    Torus,
)
from decentnode.graph.random_graphs import ErdosRenyi, Regular, SmallWorld
from decentnode.graph.time_varying import OnePeerExponential


def degrees(graph):
    return [len(targets) for targets in graph.adjacency]


def test_small_graphs_are_as_drawn_by_hand():
    assert Ring(4).adjacency == ((1, 3), (0, 2), (1, 3), (0, 2))
    assert Chain(3).adjacency == ((1,), (0, 2), (1,))
    assert Star(3).adjacency == ((1, 2), (0,), (0,))
    assert FullyConnected(3).adjacency == ((1, 2), (0, 2), (0, 1))
    assert BinaryTree(6).adjacency == ((1, 2), (0, 3, 4), (0, 5), (1,), (1,), (2,))
    assert Grid(2, 3).adjacency == ((1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4))
    assert Hypercube(2).adjacency == ((1, 2), (0, 3), (0, 3), (1, 2))


def test_torus_wraps_around():
    graph = Torus(3, 4)
    assert graph.targets(0, 0) == (1, 3, 4, 8)
    assert degrees(graph) == [4] * 12


def test_exponential_sends_ahead_and_receives_from_behind():
    graph = Exponential(6)
    assert graph.directed
    assert graph.targets(4, 0) == (0, 2, 5)
    assert graph.sources(4, 0) == (0, 2, 3)


@pytest.mark.parametrize(
    ("graph", "hops"),
    [
        (Ring(9), 4), (Chain(9), 8), (Star(9), 2), (FullyConnected(9), 1), (BinaryTree(15), 6),
        (Grid(3, 4), 5), (Torus(4, 5), 4), (Hypercube(5), 5), (Exponential(16), 4), (Ring(1), 0),
    ],
)  # fmt: skip
def test_diameter_is_known(graph, hops):
    assert rounds_to_reach([graph.adjacency]) == hops


def test_there_is_no_diameter_without_a_way():
    assert rounds_to_reach([((1,), ())]) is None
    assert components(((1,), ())) == [{0}, {1}]


def test_what_is_left_of_a_graph_when_nodes_are_gone():
    assert components_without(Ring(6), {1, 4}) == [[0, 5], [2, 3]]
    assert components_without(Ring(6), {1}) == [[0, 2, 3, 4, 5]]
    assert components_without(OnePeerExponential(8), {1}) == [[0, 2, 3, 4, 5, 6, 7]]
    assert components_without(Ring(3), {0, 1, 2}) == []


@pytest.mark.parametrize("family", [Ring, Chain, Star, FullyConnected, BinaryTree, Exponential])
def test_one_and_two_nodes_are_graphs(family):
    assert family(1).adjacency == ((),)
    assert family(2).adjacency == ((1,), (0,))


def test_thin_lattices_are_rings_and_chains():
    assert Torus(1, 5).adjacency == Ring(5).adjacency
    assert Torus(2, 2).adjacency == Hypercube(2).adjacency
    assert Grid(5, 1).adjacency == Chain(5).adjacency
    assert Hypercube(0).adjacency == ((),)


@settings(max_examples=40)
@given(st.integers(1, 24), st.integers(0, 23), st.integers(0, 99))
def test_regular_is_regular_and_connected_or_names_the_rule(nodes, degree, seed):
    graph = Regular(nodes, degree, seed=seed)
    possible = degree < nodes and nodes * degree % 2 == 0 and (degree >= 2 or nodes - 1 == degree)
    if possible:
        assert degrees(graph) == [degree] * nodes
        assert is_connected(graph.adjacency)
        assert all(i in graph.adjacency[j] for i in range(nodes) for j in graph.adjacency[i])
    else:
        with pytest.raises(GraphError):
            _ = graph.adjacency


def test_regular_depends_on_the_seed_alone():
    assert Regular(32, 4, seed=3).adjacency == Regular(32, 4, seed=3).adjacency
    assert Regular(32, 4, seed=3).adjacency != Regular(32, 4, seed=4).adjacency


def test_every_edge_of_a_regular_graph_is_as_likely():
    """Any law that ignores labels gives each of the 15 pairs the probability d/(n-1) = 0.6."""
    draws = 300
    seen = [Regular(6, 3, seed=seed).adjacency for seed in range(draws)]
    for i, j in combinations(range(6), 2):
        frequency = sum(j in adjacency[i] for adjacency in seen) / draws
        assert abs(frequency - 0.6) < 0.12  # more than four standard deviations


def test_small_world_keeps_the_number_of_edges():
    graph = SmallWorld(30, 4, 0.5, seed=2)
    assert sum(degrees(graph)) == 30 * 4
    assert is_connected(graph.adjacency)
    assert SmallWorld(12, 2, 0.0).adjacency == Ring(12).adjacency


def test_erdos_renyi_is_between_nothing_and_everything():
    assert is_connected(ErdosRenyi(40, 0.2).adjacency)
    assert ErdosRenyi(5, 1.0).adjacency == FullyConnected(5).adjacency
    assert ErdosRenyi(1, 0.0).adjacency == ((),)


@pytest.mark.parametrize("name", sorted(GRAPHS.classes().keys() - {"by_rounds", "churn"}))
def test_options_are_validated_by_their_types(name):
    cls = GRAPHS.find(name)
    options = {
        "path": "x",
        "trace_path": "x",
        "nodes": 4,
        "per_machine": 2,
        "nodes_per_cluster": 2,
        "degree": 2,
        "fragments": 2,
        "rewire": 0.1,
        "probability": 0.5,
        "rows": 2,
        "columns": 2,
        "shifts": 2,
        "radius": 0.1,
        "speed": 0.1,
        "active": 2,
        "budget": 0.5,
        "seconds_per_round": 0.1,
        "neighbors": 2,
    }
    options["dimension"] = 3
    taken = {key: value for key, value in options.items() if key in cls.__dataclass_fields__}
    if name == "token_walk":
        del taken["path"]  # instead of the degree
    assert isinstance(TypeAdapter(cls).validate_python(taken), cls)
    with pytest.raises(ValueError):
        TypeAdapter(cls).validate_python(taken | dict.fromkeys(taken, -1))


@pytest.mark.parametrize("edge", [(0, 4), (-1, 2)])
def test_an_edge_to_a_rank_that_does_not_exist_is_no_other_edge(edge):
    with pytest.raises(IndexError, match=r"outside 0\.\.3"):
        neighbor_lists(4, [(0, 1), edge])


@pytest.mark.parametrize(
    "graph",
    [
        FullyConnected(8_000),
        Regular(8_000, degree=7_000),
        SmallWorld(8_000, degree=4_000, rewire=0.1),
        ErdosRenyi(8_000, probability=0.9),
        ErdosRenyi(1_000_000, probability=0.5),
    ],
)
def test_a_graph_of_tens_of_millions_of_edges_is_refused_at_once(graph):
    with pytest.raises(GraphError, match=r"^more than 10,000,000 edges; choose fewer nodes, or fewer"):
        graph.targets(0, 0)
