"""Graph files in decentralizepy's two formats (Dhasade et al., 2023).

Both start with a line that holds n, the number of nodes; `#` starts a comment.

- `edges`: one `i j` per line. Undirected files list all edges in one direction, or all in both (this
  module writes both, as decentralizepy does). In directed files `i j` means that i sends to j. Blank lines
  are skipped.
- `adjacency`: the next n lines list the neighbors of nodes 0, 1, .. n-1 (directed: the targets of the
  node). A line that is only a comment is skipped, but a blank line counts: it is a node without neighbors.
  Blank lines before n and after the last node are skipped.

Files of networkx are read, too (`networkx_graph.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from decentnode.core.registry import GRAPHS
from decentnode.core.text import quoted
from decentnode.errors import GraphError
from decentnode.graph.base import MOST_NODES, Adjacency, StaticGraph, neighbor_lists
from decentnode.graph.connectivity import why_disconnected
from decentnode.graph.networkx_graph import EdgeWeights, NeighborLists, read_networkx
from decentnode.graph.text import INTEGER, Defects, Line, filled, ranks, read_lines

FileType = Literal["edges", "adjacency", "gml", "graphml", "edgelist", "adjlist", "auto"]
Edges = dict[tuple[int, int], int]
"""The line number of each edge i -> j as the file lists it."""

SUFFIXES: dict[str, FileType] = {".edges": "edges", ".adj": "adjacency", ".adjacency": "adjacency"}
OF_NETWORKX: dict[str, FileType] = {
    ".gml": "gml", ".graphml": "graphml", ".edgelist": "edgelist", ".adjlist": "adjlist",
}  # fmt: skip


@GRAPHS.register("file", "edge_list", "from_file")
@dataclass(frozen=True)
class GraphFile(StaticGraph):
    """A graph file: `edges` or `adjacency` (Dhasade et al., 2023), or one that networkx writes.

    `auto` uses the suffix (.edges, .adj, .adjacency; .gml, .graphml, .edgelist, .adjlist), then the content.
    """

    path: str
    type: FileType = "auto"
    directed: bool = False
    allow_disconnected: bool = False
    edge_weights: EdgeWeights = "refuse"
    """What to do with weights that differ, in files of networkx: mixing uses them as they are, w_ij that of
    the edge from j to i, and the own weight is what is left of 1."""

    @property
    def has_weights(self) -> bool:  # type: ignore[override]
        return self.edge_weights == "mixing"

    @cached_property
    def lists(self) -> NeighborLists:
        """The content of the file; raises GraphError."""
        type = OF_NETWORKX.get(Path(self.path).suffix, "auto") if self.type == "auto" else self.type
        if type in OF_NETWORKX.values():
            return read_networkx(self.path, type, self.directed, self.edge_weights, self.allow_disconnected)
        if self.has_weights:
            raise GraphError(
                f"{self.path}: has no weights; leave edge_weights out, or use a file of networkx"
            )
        adjacency = read_graph(self.path, type, self.directed, allow_disconnected=self.allow_disconnected)
        return NeighborLists(tuple(adjacency), self.directed, self.allow_disconnected)

    @property
    def adjacency(self) -> Adjacency:
        return self.lists.adjacency

    def weights(self, rank: int, round: int) -> dict[int, float]:
        return self.lists.weights(rank, round)


def read_graph(
    path: str, type: FileType = "auto", directed: bool = False, allow_disconnected: bool = False
) -> Adjacency:
    """The adjacency in a graph file; raises one GraphError with every defect of the file."""
    lines = read_lines(path)
    defects = Defects(path)
    first, nodes, body = _node_count(lines, defects)
    if type == "auto":
        type = _guess_type(path, nodes, body)
    read = _read_edges if type == "edges" else _read_adjacency
    edges = read(body, nodes, defects)
    if not directed:
        check = _check_both_sides if type == "adjacency" else _check_both_ways
        check(edges, defects)
    adjacency = neighbor_lists(nodes, edges, directed)
    for reason in () if allow_disconnected else why_disconnected(adjacency):
        defects.add(first, f"{reason}; add edges or set allow_disconnected")
    defects.raise_any()
    return adjacency


def write_graph(graph: StaticGraph, path: str, type: FileType = "edges") -> None:
    """Writes the graph as decentralizepy does; `auto` uses the suffix, then `edges`."""
    if type == "auto":
        type = SUFFIXES.get(Path(path).suffix, "edges")
    if type == "edges":
        lines = [f"{i} {j}" for i, targets in enumerate(graph.adjacency) for j in targets]
    else:
        lines = [" ".join(map(str, targets)) for targets in graph.adjacency]
    try:
        Path(path).write_text("\n".join([str(graph.num_nodes), *lines]) + "\n", encoding="utf-8")
    except OSError as error:
        raise GraphError(f"{path}: cannot be written: {error.strerror}") from error


def _node_count(lines: list[Line], defects: Defects) -> tuple[int, int, list[Line]]:
    """The number of the line that holds n, n, and the lines after it."""
    start = next((k for k, line in enumerate(lines) if line.words), None)
    if start is None:
        raise defects.fail(1, "the file is empty; its first line is the number of nodes")
    number, words = lines[start].number, lines[start].words
    if len(words) != 1 or not INTEGER.fullmatch(words[0]):
        raise defects.fail(
            number, f"the first line is the number of nodes, one integer, not {quoted(' '.join(words))}"
        )
    nodes = int(words[0])
    if not 1 <= nodes <= MOST_NODES:
        raise defects.fail(number, f"{nodes} nodes are not possible; expected 1 to {MOST_NODES}")
    return number, nodes, lines[start + 1 :]


def _guess_type(path: str, nodes: int, body_lines: list[Line]) -> FileType:
    """Guesses by suffix; otherwise two words on every line mean edges, unless a line stands for each node."""
    known = SUFFIXES.get(Path(path).suffix)
    if known:
        return known
    lines = filled(body_lines)
    if any(len(line.words) != 2 for line in lines):
        return "adjacency"
    if len(lines) != nodes:
        return "edges"
    raise GraphError(f"{path}: may be edges or adjacency; choose with 'type', or name it .edges or .adj")


def _read_edges(body_lines: Sequence[Line], nodes: int, defects: Defects) -> Edges:
    edges: Edges = {}
    for line in filled(body_lines):
        if len(line.words) != 2:
            defects.add(line.number, f"an edge is two ranks 'i j', not {quoted(' '.join(line.words))}")
            continue
        ends = ranks(line, line.words, nodes, defects)
        if len(ends) == 2:
            _add_edge(edges, ends[0], ends[1], line=line, defects=defects)
    return edges


def _read_adjacency(body_lines: Sequence[Line], nodes: int, defects: Defects) -> Edges:
    edges: Edges = {}
    for rank, line in enumerate(body_lines[:nodes]):
        for neighbor in ranks(line, line.words, nodes, defects):
            _add_edge(edges, rank, neighbor, line=line, defects=defects)
    if len(body_lines) < nodes:
        last = body_lines[-1].number if body_lines else 1
        defects.add(last, f"the file ends after {len(body_lines)} of {nodes} nodes; each node has its line")
    for line in filled(body_lines[nodes:]):
        defects.add(line.number, f"a line after those of all {nodes} nodes; remove it or correct n")
    return edges


def _add_edge(edges: Edges, i: int, j: int, line: Line, defects: Defects) -> None:
    if i == j:
        defects.add(line.number, f"node {i} is its own neighbor; remove that, it always has its own model")
    elif (i, j) in edges:
        defects.add(line.number, f"{i} {j} is listed twice; the first is in line {edges[i, j]}, remove one")
    else:
        edges[i, j] = line.number


def _check_both_sides(edges: Edges, defects: Defects) -> None:
    for (i, j), number in edges.items():
        if (j, i) not in edges:
            defects.add(number, f"node {i} lists {j}, but node {j} does not list {i}; add it or set directed")


def _check_both_ways(edges: Edges, defects: Defects) -> None:
    """Refuses files that list only some edges both ways: the others are missing, or the file is directed."""
    single = {edge: number for edge, number in edges.items() if edge[::-1] not in edges}
    if len(single) == len(edges):
        return
    if 2 * len(single) > len(edges):
        (i, j), number = next(iter(single.items()))
        some = f"{len(single)} of {len(edges)} edges are listed one way only, such as '{i} {j}'"
        defects.add(number, f"{some}; set directed, or add the other way of each")
        return
    for (i, j), number in single.items():
        defects.add(number, f"'{i} {j}' is there, '{j} {i}' is not, unlike others; add it or set directed")
