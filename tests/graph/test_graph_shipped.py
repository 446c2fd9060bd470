"""Every file in graphs/ is what its name says, and its weights keep the mean."""

from pathlib import Path

import numpy as np
import pytest

from decentnode.graph.connectivity import is_connected
from decentnode.graph.files import GraphFile
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph

FOLDER = Path(__file__).parents[2] / "graphs"
REGULAR = {
    "ring_16.edges": (16, 2),
    "regular_16_4.edges": (16, 4),
    "regular_16_4.adj": (16, 4),
    "regular_64_4.edges": (64, 4),
    "regular_96_4.edges": (96, 4),
    "regular_96_5.edges": (96, 5),
    "regular_1024_4.edges": (1024, 4),
    "fully_connected_4.edges": (4, 3),
    "fully_connected_16.edges": (16, 15),
    "torus_8x8.edges": (64, 4),
    "hypercube_64.edges": (64, 6),
    "exponential_16_directed.edges": (16, 4),
}
DEGREES = {
    "chain_8.edges": [1, 2, 2, 2, 2, 2, 2, 1],
    "star_16.edges": [15] + [1] * 15,
    "binary_tree_15.edges": [2] + [3] * 6 + [1] * 8,
    "grid_4x4.edges": [2, 3, 3, 2, 3, 4, 4, 3, 3, 4, 4, 3, 2, 3, 3, 2],
}
IRREGULAR = {"small_world_32.edges": (32, 64), "erdos_renyi_32.edges": (32, None)}


def shipped(name):
    return GraphFile(str(FOLDER / name), directed=name.endswith("_directed.edges"))


def test_each_file_is_listed_here():
    assert {file.name for file in FOLDER.iterdir()} == REGULAR.keys() | DEGREES.keys() | IRREGULAR.keys()


@pytest.mark.parametrize("name", sorted(REGULAR))
def test_regular_as_named(name):
    nodes, degree = REGULAR[name]
    assert [len(targets) for targets in shipped(name).adjacency] == [degree] * nodes


@pytest.mark.parametrize("name", sorted(DEGREES))
def test_degrees_as_named(name):
    assert [len(targets) for targets in shipped(name).adjacency] == DEGREES[name]


@pytest.mark.parametrize("name", sorted(IRREGULAR))
def test_sizes_as_named(name):
    nodes, edges = IRREGULAR[name]
    adjacency = shipped(name).adjacency
    assert len(adjacency) == nodes
    assert edges is None or sum(map(len, adjacency)) == 2 * edges


def test_both_formats_hold_the_same_graph():
    assert shipped("regular_16_4.adj").adjacency == shipped("regular_16_4.edges").adjacency


@pytest.mark.parametrize("name", sorted(REGULAR.keys() | DEGREES.keys() | IRREGULAR.keys()))
def test_connected_with_doubly_stochastic_weights(name):
    graph = shipped(name)
    assert is_connected(graph.adjacency)
    w = WeightedGraph(graph, Uniform() if graph.directed else MetropolisHastings()).matrix()
    n = len(w)
    assert (w >= 0).all()
    assert np.abs(w.sum(axis=0) - 1).max() <= 1e-15 * n
    assert np.abs(w.sum(axis=1) - 1).max() <= 1e-15 * n
    assert graph.directed or (w == w.T).all()
