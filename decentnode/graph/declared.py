"""What a graph from outside the package says of itself, held against whom its nodes meet.

A graph whose class is wrong about `static` or `period` would stay, in silence, as it is in the round that a
node asks for first, and a node that is resumed would ask for another one than its neighbors did.
"""

from collections.abc import Iterable

from decentnode.core.registry import is_own, name_of
from decentnode.errors import DecentnodeError, GraphError
from decentnode.graph.base import Adjacency, Graph, neighbor_lists, transpose
from decentnode.graph.connectivity import why_disconnected

MOST_ROUNDS = 64
MOST_RANKS = 64


def check_declared(graph: Graph) -> None:
    """Raises GraphError, in one line, where a graph from outside the package is not what it says.

    It must repeat after its period, as far as the first rounds of some ranks show; edges must go both ways
    unless it is directed; and where it has a period, all nodes must reach each other within it.
    """
    if not is_own(graph):
        return
    if graph.period is None:
        doubts(graph)  # refuses what is wrong in any round
        return
    _check_period(graph, graph.period)
    for reason in _rifts(graph, graph.cycle):
        raise GraphError(f"{name_of(graph)}: {reason}; add edges or set allow_disconnected = True")


def doubts(graph: Graph) -> list[str]:
    """Where the first rounds of a graph without a period leave nodes apart, one line for each reason."""
    if not is_own(graph) or graph.period is not None or graph.num_nodes > MOST_RANKS:
        return []
    reasons = _rifts(graph, range(MOST_ROUNDS))
    return [f"graph {name_of(graph)}: in its first {MOST_ROUNDS} rounds {reason}" for reason in reasons]


def _check_period(graph: Graph, period: int) -> None:
    for rank in range(0, graph.num_nodes, -(-graph.num_nodes // MOST_RANKS)):
        for round in range(MOST_ROUNDS):
            earlier, later = (_targets(graph, rank, r) for r in (round, round + period))
            if earlier == later:
                continue
            found = f"targets({rank}, {round}) is {earlier}, targets({rank}, {round + period}) is {later}"
            if period == 1:
                says, remedy = "declares static, but changes", "set static = False, or give its period"
            else:
                says = f"declares that it repeats after {period} rounds, but does not"
                remedy = "correct period"
            bases = "AperiodicGraph or PeriodicGraph of decentnode.graph"
            raise GraphError(f"{name_of(graph)} {says}: {found}; {remedy} ({bases})")


def _rifts(graph: Graph, rounds: Iterable[int]) -> list[str]:
    union = _union(graph, rounds)
    return [] if graph.allow_disconnected else why_disconnected(union)


def _union(graph: Graph, rounds: Iterable[int]) -> Adjacency:
    """Whom each rank sends to in any of these rounds."""
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
            what = f"targets({rank}, {round}) has {one_way}, but targets({one_way}, {round}) lacks {rank}"
            raise GraphError(f"{name_of(graph)}: {what}; correct that, or set directed = True")


def _targets(graph: Graph, rank: int, round: int) -> tuple[int, ...]:
    """What the graph says; raises GraphError for what is no list of other ranks, ascending."""
    nodes, call = graph.num_nodes, f"{name_of(graph)}: targets({rank}, {round})"
    try:
        found = tuple(graph.targets(rank, round))
        right = list(found) == sorted({*found} & {*range(nodes)} - {rank})
    except DecentnodeError:
        raise
    except Exception as error:  # whatever somebody else's code raises
        raise GraphError(f"{call} fails: {type(error).__name__}: {error}") from error
    if not right:
        others = f"ranks 0..{nodes - 1} other than {rank}, ascending"
        raise GraphError(f"{call} must be {others}, not {found}")
    return found
