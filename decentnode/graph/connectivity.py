"""Who can reach whom: components and diameter."""

from decentnode.graph.base import Adjacency, transpose


def reached(adjacency: Adjacency, start: int) -> set[int]:
    """Every rank that a message from `start` gets to, itself included."""
    found = {start}
    frontier = {start}
    while frontier:
        frontier = {j for i in frontier for j in adjacency[i]} - found
        found |= frontier
    return found


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


def is_connected(adjacency: Adjacency) -> bool:
    """Whether every node reaches every other."""
    return len(components(adjacency)) <= 1


def diameter(adjacency: Adjacency) -> int | None:
    """Most hops between any two nodes; None when some node does not reach some other.

    Bit j of `known[i]` says that i reaches j within the hops counted so far: one integer operation
    stands for all start nodes at once.
    """
    everyone = (1 << len(adjacency)) - 1
    known = [1 << i for i in range(len(adjacency))]
    hops = 0
    while any(bits != everyone for bits in known):
        wider = [_union(known, i, targets) for i, targets in enumerate(adjacency)]
        if wider == known:
            return None
        known = wider
        hops += 1
    return hops


def _union(known: list[int], rank: int, targets: tuple[int, ...]) -> int:
    bits = known[rank]
    for j in targets:
        bits |= known[j]
    return bits
