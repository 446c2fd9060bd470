"""Compares what a graph from outside the package declares with its edges.

Nodes would silently reuse the first round they request of a graph whose `period` is wrong. A
resumed node would request another round than its neighbors did.
"""

from collections.abc import Iterable

from decentnode.core.registry import is_third_party, name_of
from decentnode.errors import DecentnodeError, GraphError
from decentnode.graph.base import Adjacency, Graph, StaticGraph, neighbor_lists, transpose
from decentnode.graph.connectivity import why_disconnected
from decentnode.graph.files import GraphFile

MOST_ROUNDS = 64
MOST_RANKS = 64


def check_declared(graph: Graph) -> None:
    """Raises GraphError, in one line, where a graph from outside the package differs from its declaration.

    The first rounds of some ranks must repeat after its period. Edges must have both directions unless it is
    directed. Where it has a period, all nodes must reach each other within it. Of a static graph the options
    and the file are checked first, whoever wrote it.
    """
    if isinstance(graph, StaticGraph):
        len(graph.adjacency)
    if not is_third_party(graph):
        return
    if graph.period is None:
        notices(graph)  # raises GraphError for defects of any round
        return
    _check_period(graph, graph.period)
    for reason in _rifts(graph, graph.changes.rounds()):
        raise GraphError(f"{name_of(graph)}: {reason}; add edges or set allow_disconnected = True")


def notices(graph: Graph) -> list[str]:
    """Returns which ranks the nodes of a file are, where that is to be said, one line each.

    Also why the first rounds of a graph without a period do not connect all nodes.
    """
    if isinstance(graph, GraphFile):
        return [*filter(None, [graph.lists.notice])]
    if not is_third_party(graph) or graph.period is not None or graph.num_nodes > MOST_RANKS:
        return []
    reasons = _rifts(graph, range(MOST_ROUNDS))
    return [f"graph {name_of(graph)}: in its first {MOST_ROUNDS} rounds {reason}" for reason in reasons]


def _check_period(graph: Graph, period: int) -> None:
    for rank in range(0, graph.num_nodes, -(-graph.num_nodes // MOST_RANKS)):
        for round in range(MOST_ROUNDS):
            earlier, later = (_targets(graph, rank, r) for r in (round, round + period))
            if earlier == later:
                continue
            change = f"targets({rank}, {round}) is {earlier}, targets({rank}, {round + period}) is {later}"
            if period == 1:
                defect, remedy = "declares static, but changes", "set period = None, or give its period"
            else:
                defect = f"declares that it repeats after {period} rounds, but does not"
                remedy = "correct period"
            bases = "AperiodicGraph or PeriodicGraph of decentnode.graph"
            raise GraphError(f"{name_of(graph)} {defect}: {change}; {remedy} ({bases})")


def _rifts(graph: Graph, rounds: Iterable[int]) -> list[str]:
    union = _union(graph, rounds)
    return [] if graph.allow_disconnected else why_disconnected(union)


def _union(graph: Graph, rounds: Iterable[int]) -> Adjacency:
    """The ranks that each rank sends to in any of these rounds."""
    ranks, edges = range(graph.num_nodes), set()
    for round in rounds:
        adjacency = tuple(_targets(graph, rank, round) for rank in ranks)
        if not graph.directed:
            _check_both_ways(graph, adjacency, round)
        edges |= {(i, j) for i, targets in enumerate(adjacency) for j in targets}
    return neighbor_lists(graph.num_nodes, edges, directed=True)


def _check_both_ways(graph: Graph, adjacency: Adjacency, round: int) -> None:
    for rank, (targets, sources) in enumerate(zip(adjacency, transpose(adjacency), strict=True)):
        for one_way in set(targets) - set(sources):
            lack = f"targets({rank}, {round}) has {one_way}, but targets({one_way}, {round}) lacks {rank}"
            raise GraphError(f"{name_of(graph)}: {lack}; correct that, or set directed = True")


def _targets(graph: Graph, rank: int, round: int) -> tuple[int, ...]:
    """The targets that the graph returns; raises GraphError unless they are other ranks, ascending."""
    nodes, call = graph.num_nodes, f"{name_of(graph)}: targets({rank}, {round})"
    try:
        targets = tuple(graph.targets(rank, round))
        right = list(targets) == sorted({*targets} & {*range(nodes)} - {rank})
    except DecentnodeError:
        raise
    except Exception as error:  # code from outside the package may raise anything
        raise GraphError(f"{call} fails: {type(error).__name__}: {error}") from error
    if not right:
        others = f"ranks 0..{nodes - 1} other than {rank}, ascending"
        raise GraphError(f"{call} must be {others}, not {targets}")
    return targets
