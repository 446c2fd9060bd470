"""Pictures of graphs: nodes apart, nothing cut off, and groups that gray print tells apart."""

import numpy as np
import pytest

from decentnode.graph.base import neighbor_lists
from decentnode.graph.families import Chain, Grid, Ring, Star, Torus
from decentnode.graph.files import GraphFile
from decentnode.graph.placement import _distances, by_distances, places
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import RandomMatching
from decentnode.graph.time_varying import OnePeerExponential
from decentnode.graph.walks import Mobility
from decentnode.results.figures.plots_graph import (
    DrawnRound,
    GraphPicture,
    draw_graph,
    figure_of,
    group_style,
)

GRAPHS = [
    Ring(8), Ring(40), Chain(30), Star(9), Star(60), Grid(4, 5), Torus(8, 8), Regular(16, 4), Regular(96, 4),
    RandomMatching(12), OnePeerExponential(64), Ring(1), Ring(2),
]  # fmt: skip


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_nodes_stand_apart_and_at_the_same_places_in_every_round(graph):
    rounds = range(3)
    coordinates = places(graph, rounds)
    assert all(np.array_equal(places_, coordinates[0]) for places_ in coordinates)
    assert np.array_equal(coordinates[0], places(graph, rounds)[0])
    n = graph.num_nodes
    assert coordinates[0].shape == (n, 2) and np.abs(coordinates[0]).max() <= 1 + 1e-9
    apart = np.linalg.norm(coordinates[0][:, None] - coordinates[0][None], axis=-1) + 2 * np.eye(n)
    assert apart.min() > 0.6 / np.sqrt(n) if n < 40 else apart.min() > 0.45 / np.sqrt(n)


def test_a_ring_is_a_circle_whatever_its_order(tmp_path):
    order = [0, 9, 3, 17, 4, 1, 12, 5, 19, 2, 18, 6, 7, 16, 8, 10, 15, 11, 14, 13]
    path = tmp_path / "ring.edges"
    pairs = zip(order, [*order[1:], order[0]], strict=True)
    path.write_text("\n".join(["20", *(f"{i} {j}" for i, j in pairs)]))
    graph = GraphFile(str(path))
    (coordinates,) = places(graph, [0])
    steps = [np.linalg.norm(coordinates[i] - coordinates[j]) for i in range(20) for j in graph.targets(i, 0)]
    assert np.allclose(steps, 2 * np.sin(np.pi / 20))


def test_nodes_that_walk_are_drawn_where_they_are():
    graph = Mobility(20, 0.3, 0.1)
    first, second = places(graph, [0, 7])
    assert np.allclose(second, 2 * graph.places(7) - 1) and not np.allclose(first, second)


def test_many_nodes_stand_by_their_distances():
    """Places of a chain of cliques follow the chain, and those of 2,048 nodes need no matrix of all pairs."""
    size, cliques = 8, 256
    n = size * cliques
    within = [(i, j) for c in range(cliques) for i in range(c * size, (c + 1) * size) for j in range(i)
              if j >= c * size]  # fmt: skip
    between = [(c * size, (c + 1) * size) for c in range(cliques - 1)]
    neighbors = neighbor_lists(n + 1, within + between)
    distances = _distances(neighbors, np.array([0, n]))
    # From clique to clique it is one edge, and one more to all but the first node of it.
    assert distances[:n, 0].tolist() == [c + (k > 0) for c in range(cliques) for k in range(size)]
    assert distances[:n, 1].tolist() == [distances.max()] * n and distances[n].tolist() == [
        distances.max(),
        0,
    ]
    along = by_distances(neighbor_lists(n, within + between))[:, 0].reshape(cliques, size).mean(1)
    assert abs(np.corrcoef(along, np.arange(cliques))[0, 1]) > 0.99
    assert len(np.unique(by_distances(neighbor_lists(n, within + between)), axis=0)) == n


def picture(n, panels, directed=False, names=("machine 0 (10.0.0.1)", "machine 1 (10.0.0.2)")):
    (coordinates,) = places(Regular(n, 4), [0])
    edges = [(i, (i + 1) % n, 0.25 + 0.5 * (i % 2)) for i in range(n)]
    rounds = [DrawnRound(f"round {r}", coordinates, edges, frozenset({1, 2})) for r in range(panels)]
    return GraphPicture(f"a graph, {n} nodes", rounds, directed, [i % len(names) for i in range(n)], names)


@pytest.mark.parametrize(("n", "panels", "directed"), [(8, 1, True), (96, 1, False), (16, 5, False)])
def test_nothing_of_a_picture_is_cut_off(n, panels, directed):
    figure = figure_of(picture(n, panels, directed))
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    texts = (
        [text for axes in figure.axes for text in axes.texts] + figure.texts + figure.legends[0].get_texts()
    )
    assert {text.get_text() for text in texts} >= {
        "0",
        str(n - 1),
        "rests in this round",
        "machine 1 (10.0.0.2)",
    }
    for one in [*texts, *figure.legends]:
        box = one.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, one
    below = max(text.get_window_extent().y1 for text in figure.legends[0].get_texts())
    nodes = [line for axes in figure.axes for line in axes.lines]
    assert min(line.get_window_extent().y0 for line in nodes) > below


def test_ten_labels_differ_in_color_and_eight_in_shape_too():
    assert len({group_style(group) for group in range(64)}) == 64
    assert len({group_style(group)[1] for group in range(8)}) == 8


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_graph_is_the_same_picture(tmp_path, suffix):
    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in paths:
        draw_graph(picture(8, 1), path)
    assert paths[0].read_bytes() == paths[1].read_bytes() and paths[0].stat().st_size > 1000


@pytest.mark.parametrize("directed", [False, True])
def test_a_picture_of_many_nodes_is_small_and_counts_all_edges(tmp_path, directed):
    n = 3000
    (coordinates,) = places(Torus(50, 60), [0])
    edges = [(i, (i + step) % n, 0.25) for i in range(n) for step in range(1, 21)]
    one = GraphPicture(
        "many", [DrawnRound("", coordinates, edges, frozenset({1}))], directed, [0] * n, ("a",), True
    )
    figure = figure_of(one)
    drawing, edge_map, degrees, *_ = figure.axes
    assert [len(lines.get_segments()) for lines in drawing.collections[:1]] == [30_000]
    assert "30,000 of 60,000 edges" in [text.get_text() for text in drawing.texts]
    assert np.nansum(edge_map.images[0].get_array()) == len(edges) * (1 if directed else 2)
    assert sum(patch.get_data().values.max() for patch in degrees.patches) == n * (2 if directed else 1)
    draw_graph(one, tmp_path / "many.svg")
    assert (tmp_path / "many.svg").stat().st_size < 3_000_000
    several = figure_of(GraphPicture("many", [one.rounds[0]] * 3, directed, [0] * n, are_many=True))
    assert sum(bool(axes.images) for axes in several.axes) == 3
