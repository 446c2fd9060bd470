"""Which nodes reach each other: components, and how fast."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

from decentnode.graph.base import Adjacency, Graph, transpose

SHOWN = 5
"""Nodes without a neighbor that are named."""


def reached(adjacency: Adjacency, start: int) -> set[int]:
    """Every rank that a message from `start` reaches, itself included."""
    seen = {start}
    frontier = {start}
    while frontier:
        frontier = {j for i in frontier for j in adjacency[i]} - seen
        seen |= frontier
    return seen


def components(adjacency: Adjacency) -> list[set[int]]:
    """The sets of nodes that reach each other (strongly connected where edges have a direction)."""
    backward = transpose(adjacency)
    parts: list[set[int]] = []
    assigned: set[int] = set()
    for rank in range(len(adjacency)):
        if rank not in assigned:
            parts.append(reached(adjacency, rank) & reached(backward, rank))
            assigned |= parts[-1]
    return parts


def components_without(graph: Graph, lost: Iterable[int]) -> list[list[int]]:
    """The sets of nodes that still exchange, directly or through others of them, without the lost ones.

    Edges of all rounds and both directions count.
    """
    absent = set(lost)
    ranks = range(graph.num_nodes)
    if graph.may_meet_all:
        return [sorted(set(ranks) - absent)]
    living = tuple(() if rank in absent else tuple(graph.partners(rank) - absent) for rank in ranks)
    return [sorted(part) for part in components(living) if not part & absent]


def is_connected(adjacency: Adjacency) -> bool:
    """Whether every node reaches every other."""
    return len(components(adjacency)) <= 1


def why_disconnected(adjacency: Adjacency) -> list[str]:
    """Returns why nodes do not reach each other, one line for each reason; empty when all do."""
    parts = components(adjacency)
    if len(parts) <= 1:
        return []
    with_sources = set().union(*adjacency)
    lonely = {i for i, targets in enumerate(adjacency) if not targets and i not in with_sources}
    reasons = []
    if lonely:
        shown = ", ".join(map(str, sorted(lonely)[:SHOWN])) + (", .." if len(lonely) > SHOWN else "")
        reasons.append(f"{len(lonely)} of {len(adjacency)} nodes have no neighbor ({shown})")
    first_nodes = [min(part) for part in parts if not part <= lonely]
    if len(first_nodes) > 1:
        apart = f"nodes {first_nodes[0]} and {first_nodes[1]} do not reach each other"
        reasons.append(f"the graph falls into {len(parts)} components, {apart}")
    return reasons


def rounds_to_reach(rounds: Sequence[Adjacency]) -> int | None:
    """Counts rounds, repeated, until every node has information from every other; None when never.

    Bit j of `known[i]` is set when i has information from j: one integer operation updates all j at once.
    """
    sources_by_round = [transpose(adjacency) for adjacency in rounds]
    everyone = (1 << len(rounds[0])) - 1
    known, passed = [1 << i for i in range(len(rounds[0]))], 0
    while True:
        before = known
        for sources in sources_by_round:
            if all(bits == everyone for bits in known):
                return passed
            known = [reduce(or_, (known[j] for j in senders), known[i]) for i, senders in enumerate(sources)]
            passed += 1
        if known == before:
            return None
