"""Graphs of networkx, and its own file formats, as the static graph of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any, Literal

from decentnode.core.registry import near_file
from decentnode.core.text import first_line
from decentnode.errors import GraphError
from decentnode.graph.base import Adjacency, StaticGraph, neighbor_lists
from decentnode.graph.connectivity import why_disconnected

EdgeWeights = Literal["refuse", "mixing"]
MOST_NAMES = 4
"""Nodes that the line about their ranks names."""
SUM_TOLERANCE = 1e-9
"""How much the weights of a node may exceed 1 by rounding."""


@dataclass(frozen=True)
class NeighborLists(StaticGraph):
    """A graph given as the neighbors of each rank."""

    neighbors: tuple[tuple[int, ...], ...]
    directed: bool = False
    allow_disconnected: bool = False
    own_weights: tuple[tuple[float, ...], ...] | None = None
    """The mixing weight of each source of a rank, in their order; null: there are none."""
    names: tuple[str, ...] = ()
    """What a file calls the ranks, where it calls them otherwise."""

    @property
    def adjacency(self) -> Adjacency:
        return self.neighbors

    @property
    def has_weights(self) -> bool:  # type: ignore[override]
        return self.own_weights is not None

    def weights(self, rank: int, round: int) -> dict[int, float]:
        if self.own_weights is None:
            return super().weights(rank, round)
        return dict(zip(self.sources(rank, round), self.own_weights[rank], strict=True))

    @property
    def notice(self) -> str:
        """A line that says which ranks the names are; empty where they are the same."""
        shown = ", ".join(self.names[:MOST_NAMES]) + (", ..." if len(self.names) > MOST_NAMES else "")
        return f"graph: the nodes {shown} are the ranks 0 to {len(self.names) - 1}" if self.names else ""


def from_networkx(
    graph: Any, edge_weights: EdgeWeights = "refuse", allow_disconnected: bool = False
) -> NeighborLists:
    """Returns a networkx graph, whose nodes are the ranks 0 to n - 1; a DiGraph is directed.

    `edge_weights`: what to do with weights that differ. With `mixing`, w_ij is that of the edge from j to i,
    and the own weight is what is left of 1.

    Raises GraphError for other nodes, for a graph that is not connected, for several edges between two nodes,
    and for weights that are refused or are none for mixing.
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
    neighbors = neighbor_lists(len(graph), [(i, j) for i, j in edges if i != j], directed)
    for reason in () if allow_disconnected else why_disconnected(neighbors):
        raise GraphError(f"{reason}; add edges")
    lists = NeighborLists(neighbors, directed, allow_disconnected)
    if edge_weights == "refuse":
        if len({weight for *_, weight in graph.edges(data="weight", default=1)}) > 1:
            raise GraphError(
                "the edges of the networkx graph have weights; say that mixing uses them (edge_weights: "
                "mixing), or remove the attribute weight"
            )
        return lists
    of_edge = {(i, j): weight for i, j, weight in graph.edges(data="weight")}
    if not directed:
        of_edge |= {(j, i): weight for (i, j), weight in of_edge.items()}
    return NeighborLists(
        neighbors, directed, allow_disconnected,
        own_weights=tuple(_row(rank, lists.sources(rank, 0), of_edge) for rank in range(len(graph))),
    )  # fmt: skip


def _row(rank: int, sources: tuple[int, ...], of_edge: Mapping[tuple[int, int], Any]) -> tuple[float, ...]:
    """The weights that a node gives to its sources; raises GraphError for what are none."""
    row = []
    for source in sources:
        weight = of_edge[source, rank]
        if not isinstance(weight, int | float) or not 0 <= weight <= 1:
            what = "has no weight" if weight is None else f"has the weight {weight}"
            raise GraphError(f"the edge {source} {rank} {what}; for mixing it is a number from 0 to 1")
        row.append(float(weight))
    if (total := fsum(row)) > 1 + SUM_TOLERANCE:
        raise GraphError(
            f"the weights that node {rank} gives to others sum to {total:g}; at most 1 is possible"
        )
    return tuple(row)


def read_networkx(
    path: str, type: str, directed: bool, edge_weights: EdgeWeights, allow_disconnected: bool
) -> NeighborLists:
    """The graph in a file that networkx writes; raises GraphError.

    Nodes that are not the ranks 0 to n - 1 get their ranks in ascending order where all are whole numbers,
    and otherwise in the order of the file.
    """
    import networkx as nx  # type: ignore[import-untyped]

    kind = nx.DiGraph if directed else nx.Graph
    readers: Mapping[str, Callable[[], Any]] = {
        "gml": lambda: _read_gml(path),
        "graphml": lambda: nx.read_graphml(path),
        "edgelist": lambda: _read_edges(path, kind),
        "adjlist": lambda: nx.read_adjlist(path, create_using=kind),
    }
    try:
        graph = readers[type]()
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror}{near_file(path)}") from error
    except Exception as error:  # each reader has errors of its own
        raise GraphError(f"{path}: is no {type} of networkx: {first_line(error)}") from error
    if not len(graph):
        raise GraphError(f"{path}: has no nodes")
    if graph.is_directed() != directed:
        remedy = "leave directed out" if directed else "set directed"
        raise GraphError(f"{path}: its edges have {'no' if directed else 'a'} direction; {remedy}")
    names = {name: int(name) if str(name).removeprefix("-").isdigit() else name for name in graph}
    if all(isinstance(name, int) for name in names.values()):
        names = {name: names[name] for name in sorted(names, key=lambda name: names[name])}
    ranks = {name: rank for rank, name in enumerate(names)}
    renamed = nx.relabel_nodes(graph, ranks)
    try:
        found = from_networkx(renamed, edge_weights, allow_disconnected)
    except GraphError as error:
        raise GraphError(*(f"{path}: {line}" for line in error.lines)) from error
    if [*names.values()] == [*range(len(names))]:
        return found
    return NeighborLists(
        found.neighbors, found.directed, allow_disconnected, found.own_weights, tuple(map(str, names))
    )


def _read_gml(path: str) -> Any:
    import networkx as nx

    try:
        return nx.read_gml(path)
    except nx.NetworkXError as error:
        if "label" not in str(error):
            raise
        return nx.read_gml(path, label="id")


def _read_edges(path: str, kind: type) -> Any:
    """An edge list without data, with weights, or with what networkx writes of attributes."""
    import networkx as nx

    content = Path(path).read_text(encoding="utf-8")
    lines = [line.partition("#")[0].split() for line in content.splitlines()]
    has_attributes = any(len(words) > 2 for words in lines)
    attributes = True if "{" in content else (("weight", float),) if has_attributes else False
    return nx.read_edgelist(path, create_using=kind, data=attributes)
