"""A graph of networkx as the static graph of a run."""

from dataclasses import dataclass
from typing import Any

from decentnode.errors import GraphError
from decentnode.graph.base import Adjacency, StaticGraph, neighbor_lists
from decentnode.graph.connectivity import why_disconnected


@dataclass(frozen=True)
class NeighborLists(StaticGraph):
    """A graph given as the neighbors of each rank."""

    neighbors: tuple[tuple[int, ...], ...]
    directed: bool = False

    @property
    def adjacency(self) -> Adjacency:
        return self.neighbors


def from_networkx(graph: Any) -> NeighborLists:
    """Returns a networkx graph, whose nodes are the ranks 0 to n - 1; a DiGraph is directed.

    Raises GraphError for other nodes, for a graph that is not connected, and for edges that differ in weight
    or number, which mixing would not follow.
    """
    if set(graph) != {*range(len(graph))}:
        raise GraphError(
            f"the nodes of a networkx graph must be the ranks 0 to {len(graph) - 1}; "
            "networkx.convert_node_labels_to_integers renames them"
        )
    directed = bool(graph.is_directed())
    edges = [*graph.edges()]
    if len({*edges}) < len(edges):
        remedy = "networkx.DiGraph(graph)" if directed else "networkx.Graph(graph)"
        raise GraphError(f"the networkx graph has several edges between two nodes; {remedy} joins them")
    if len({weight for *_, weight in graph.edges(data="weight", default=1)}) > 1:
        raise GraphError(
            "the edges of the networkx graph have weights, but mixing has those of sharing.weights; write "
            "them to a file for sharing.weights: {name: file, path: ...}, or remove the attribute weight"
        )
    neighbors = neighbor_lists(len(graph), [(i, j) for i, j in edges if i != j], directed)
    for reason in why_disconnected(neighbors):
        raise GraphError(f"{reason}; add edges")
    return NeighborLists(neighbors, directed)
