"""Where the nodes of a graph stand in a drawing: the same places in every round, unless the nodes move."""

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from decentnode.core.rng import generator
from decentnode.graph.base import Adjacency, Graph, neighbor_lists
from decentnode.graph.families import Grid
from decentnode.graph.walks import Mobility

MANY = 400
"""More nodes than this cannot be told apart; a drawing of them shows the shape of the graph."""
PIVOTS = 48
FEW = 16
"""Up to this number, nodes are on a circle in the order of their ranks, whatever their edges."""
MANY_CHANGING = 40
"""Up to this number, nodes of a changing graph are on a circle: no place suits the edges of all rounds."""
ITERATIONS = 300
SEED = 0
NEAREST = 0.7
"""The least distance of two nodes, as a share of that on a full square lattice."""

Places = NDArray[np.float64]
"""The coordinates x and y of each rank, from -1 to 1, shape (n, 2)."""


def places(graph: Graph, rounds: Sequence[int]) -> list[Places]:
    """The places of all nodes in each of these rounds."""
    if isinstance(graph, Mobility):
        return [2 * graph.places(round) - 1 for round in rounds]
    return [_of_edges(graph, _union(graph, rounds))] * len(rounds)


def _union(graph: Graph, rounds: Sequence[int]) -> Adjacency:
    """Neighbors in any of the rounds, in either direction."""
    ranks = range(graph.num_nodes)
    return neighbor_lists(
        len(ranks), {(i, j) for round in rounds for i in ranks for j in graph.targets(i, round)}
    )


def _of_edges(graph: Graph, neighbors: Adjacency) -> Places:
    n = len(neighbors)
    if isinstance(graph, Grid):
        return lattice(graph.rows, graph.columns)
    if (hub := _hub(neighbors)) is not None:
        around = iter(circle(n - 1))
        return np.array([(0.0, 0.0) if rank == hub else next(around) for rank in range(n)])
    if order := _line(neighbors):
        places = np.empty((n, 2))
        places[order] = circle(n)
        return places
    if n <= (FEW if graph.static else MANY_CHANGING) or 2 * sum(map(len, neighbors)) > n * n:
        return circle(n)
    return spring(neighbors) if n <= MANY else by_distances(neighbors)


def circle(n: int) -> Places:
    """Places on a circle, rank 0 at the top, clockwise."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(n) / max(n, 1)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def lattice(rows: int, columns: int) -> Places:
    """Places in rows, rank 0 at the top left."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    scale = 2 / max(rows - 1, columns - 1, 1)
    return np.stack([(x - (columns - 1) / 2) * scale, ((rows - 1) / 2 - y) * scale], axis=1)


def spring(neighbors: Adjacency) -> Places:
    """Places by forces between all nodes and along edges (Fruchterman and Reingold, 1991), then apart."""
    import networkx as nx  # type: ignore[import-untyped]

    graph = nx.Graph([(i, j) for i, peers in enumerate(neighbors) for j in peers])
    graph.add_nodes_from(range(len(neighbors)))
    start = dict(enumerate(_spectral(neighbors)))
    layout = nx.spring_layout(graph, pos=start, iterations=ITERATIONS, seed=SEED)
    return _apart(_scaled(np.array([layout[rank] for rank in range(len(neighbors))])))


def by_distances(neighbors: Adjacency) -> Places:
    """Places by the distances in the graph to a few nodes (Pivot MDS: Brandes and Pich, GD 2006).

    C = -(D^2 with the means of rows and columns taken out) / 2, shape (n, k); the places are C times the two
    first right singular vectors of C. Takes seconds for tens of thousands of nodes.
    """
    n = len(neighbors)
    chosen = generator(SEED, "pivots").choice(n, min(PIVOTS, n), replace=False)
    squared = _distances(neighbors, chosen) ** 2
    centered = -0.5 * (squared - squared.mean(0) - squared.mean(1, keepdims=True) + squared.mean())
    _, _, right = np.linalg.svd(centered, full_matrices=False)
    places = _scaled(centered @ right[:2].T)
    # Nodes with the same distances, such as the clients of one server, would be at one place.
    return _scaled(places + generator(SEED, "offsets").normal(scale=0.4 / sqrt(n), size=(n, 2)))


def _distances(neighbors: Adjacency, starts: NDArray[np.int64]) -> Places:
    """The edges from each node to each start, shape (n, k); where no way leads, one more than the most."""
    n, k = len(neighbors), len(starts)
    degrees = np.array([len(peers) for peers in neighbors])
    begins = np.concatenate([[0], degrees.cumsum()])
    targets = np.fromiter((peer for peers in neighbors for peer in peers), np.int64, int(begins[-1]))
    distance = np.full(n * k, -1, np.int64)
    # The searches of all starts take a step together: entry rank * k + start.
    front, steps = starts * k + np.arange(k), 0
    while len(front):
        distance[front] = steps
        ranks, searches = np.divmod(front, k)
        counts = degrees[ranks]
        places = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        reached = targets[np.repeat(begins[ranks], counts) + places] * k + np.repeat(searches, counts)
        front, steps = np.unique(reached[distance[reached] < 0]), steps + 1
    return np.where(distance < 0, steps, distance).reshape(n, k).astype(np.float64)


def _spectral(neighbors: Adjacency) -> Places:
    """Places by the two slowest eigenvectors of the Laplacian (Hall, 1970), a start that unfolds lattices."""
    n = len(neighbors)
    laplacian = np.diag([float(len(peers)) for peers in neighbors])
    for i, others in enumerate(neighbors):
        laplacian[i, list(others)] = -1.0
    # Ranks on a circle, a little: equal entries would put nodes at one place.
    places: Places = np.linalg.eigh(laplacian)[1][:, 1:3] * sqrt(n) + 0.1 * circle(n)
    return places


def _scaled(places: Places) -> Places:
    middle = (places.max(0) + places.min(0)) / 2
    scaled: Places = (places - middle) / max(float(np.ptp(places, axis=0).max()) / 2, 1e-9)
    return scaled


def _apart(places: Places) -> Places:
    """Pushes nodes apart that stand nearer than their share of the square."""
    least = NEAREST * 2 / ceil(sqrt(len(places)))
    for _ in range(ITERATIONS):
        offset = places[:, None] - places[None]
        distance = np.linalg.norm(offset, axis=-1) + 1e-9
        push = np.clip(least - distance, 0, None) / distance
        np.fill_diagonal(push, 0.0)
        if not push.any():
            break
        places = places + 0.25 * (push[..., None] * offset).sum(1)
    return _scaled(places)


def _hub(neighbors: Adjacency) -> int | None:
    """The node that is a neighbor of all others, which have no other; None where there is none."""
    n = len(neighbors)
    degrees = sorted(map(len, neighbors))
    is_star = n > 3 and degrees[-1] == n - 1 and degrees[-2] == 1
    return max(range(n), key=lambda rank: len(neighbors[rank])) if is_star else None


def _line(neighbors: Adjacency) -> list[int]:
    """The ranks along the one ring or chain that they form; empty where they do not."""
    if max(map(len, neighbors), default=0) > 2:
        return []
    order = [min(range(len(neighbors)), key=lambda rank: (len(neighbors[rank]), rank))]
    while following := [rank for rank in neighbors[order[-1]] if rank not in order[-2:] and rank != order[0]]:
        order.append(following[0])
    return order if len(order) == len(neighbors) else []
