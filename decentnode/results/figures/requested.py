"""What `decentnode graph --draw` requests: rounds of a graph, or a modelled network."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from decentnode.cli.graph import Drawing, Groups
from decentnode.core.text import counted
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.placement import MANY, places
from decentnode.results.figures.plots_graph import DrawnRound, GraphPicture, draw_graph
from decentnode.results.figures.plots_network import NetworkPicture, draw_network

if TYPE_CHECKING:
    from decentnode.communication.simulated import Simulated

DRAWN_ROUNDS = 6
"""Rounds that are drawn of a graph that changes, unless its period is shorter."""
MOST_DRAWN_ROUNDS = 24
MOST_EDGES = 2_000_000
"""Edges of a picture, of all its rounds; more take minutes, and gigabytes."""
MOST_ON_GRAPH = 32
"""Nodes that are drawn as a graph; more, or a graph that changes, as a matrix of all latencies."""


def draw_rounds(weighted: WeightedGraph, title: str, drawing: Drawing, groups: Groups) -> None:
    """Draws a graph, or some rounds of one that changes; raises BadInput."""
    graph = weighted.graph
    rounds = _drawn_rounds(graph, drawing.rounds)
    if (count := sum(len(graph.targets(i, r)) for r in rounds for i in range(graph.num_nodes))) > MOST_EDGES:
        raise BadInput(
            f"--draw: {count:,} edges; a picture has at most {MOST_EDGES:,}; draw fewer --rounds, or nodes"
        )
    panels = [
        DrawnRound(
            f"round {round + 1}" if len(rounds) > 1 else "", coordinates, edges_of(weighted, round),
            resting=frozenset(rank for rank in range(graph.num_nodes) if not graph.trains(rank, round)),
        )
        for round, coordinates in zip(rounds, places(graph, rounds), strict=True)
    ]  # fmt: skip
    of_ranks = groups.of_ranks or [0] * graph.num_nodes
    text = f"{title}, {counted(graph.num_nodes, 'node')}"
    are_many = graph.num_nodes > MANY
    picture = GraphPicture(
        text, panels, graph.directed, groups=of_ranks, names=groups.names, are_many=are_many
    )
    draw_graph(picture, drawing.path)


def _drawn_rounds(graph: Graph, wanted: int | None) -> Sequence[int]:
    if wanted is not None and not 1 <= wanted <= MOST_DRAWN_ROUNDS:
        raise BadInput(f"--rounds: must be 1..{MOST_DRAWN_ROUNDS}, not {wanted}")
    if graph.static:
        return range(1)
    consecutive = graph.changes.spans
    if wanted is None and len(consecutive) > 1:
        return [rounds.start for rounds, _ in consecutive[:MOST_DRAWN_ROUNDS]]
    return range(wanted or min(graph.period or DRAWN_ROUNDS, DRAWN_ROUNDS))


def edges_of(weighted: WeightedGraph, round: int) -> list[tuple[int, int, float]]:
    """Returns i, j and the weight of i's model in j's mix; the larger of both directions where undirected."""
    graph, ranks = weighted.graph, range(weighted.num_nodes)
    rows = [weighted.mixing.incoming(graph, rank, round) for rank in ranks]
    return [
        (i, j, rows[j].get(i, 0.0) if graph.directed else max(rows[j].get(i, 0.0), rows[i].get(j, 0.0)))
        for i in ranks
        for j in graph.targets(i, round)
        if graph.directed or i < j
    ]


def draw_modelled(title: str, graph: Graph, communication: "Simulated", path: Path) -> None:
    """Draws the network that a configuration models; raises BadInput."""
    nodes = graph.num_nodes
    network, regions = communication.network_of(nodes), communication.regions_of(nodes)
    is_graph = graph.static and 1 < nodes <= MOST_ON_GRAPH
    edges = {(min(i, j), max(i, j)) for i in range(nodes) for j in graph.targets(i, 0)}
    coordinates = places(graph, [0])[0] if is_graph else None
    draw_network(
        NetworkPicture(
            title,
            network.latency,
            network.uplink,
            network.downlink,
            regions=regions,
            places=coordinates,
            edges=sorted(edges),
        ),
        path,
    )
