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

    Raises GraphError for other nodes, and for a graph that is not connected.
    """
    if set(graph) != {*range(len(graph))}:
        raise GraphError(
            f"the nodes of a networkx graph must be the ranks 0 to {len(graph) - 1}; "
            "networkx.convert_node_labels_to_integers renames them"
        )
    directed = bool(graph.is_directed())
    neighbors = neighbor_lists(len(graph), [(i, j) for i, j in graph.edges if i != j], directed)
    for reason in why_disconnected(neighbors):
        raise GraphError(f"{reason}; add edges")
    return NeighborLists(neighbors, directed)
