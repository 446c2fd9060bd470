"""Checks every mixing matrix of a period, or of the first rounds, for what a scheme needs."""

from dataclasses import dataclass

import numpy as np

from decentnode.core.text import counted
from decentnode.graph.base import Adjacency, Graph
from decentnode.graph.connectivity import rounds_to_reach, why_disconnected
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import Array

TOLERANCE = 1e-9
MOST_NODES = 2000
"""Nodes of a graph, at most, whose whole matrices are checked."""
UNENDING = 200
"""Rounds that are checked of a graph that never repeats."""
MOST_ROUNDS = 2000
"""Rounds that are checked of a long period."""


@dataclass(frozen=True)
class MatrixNeeds:
    """What a scheme needs of every W, besides rows that sum to 1."""

    scheme: str
    columns: bool
    """Columns that sum to 1: it promises to keep the mean of all models."""
    symmetric: bool
    """W = W^T: it needs an undirected graph."""


def check_matrices(weighted: WeightedGraph, needs: MatrixNeeds) -> str:
    """Returns what was checked, in one line; or the first round that fails, and how."""
    graph = weighted.graph
    if graph.num_nodes > MOST_NODES:
        return f"not checked, as there are more than {MOST_NODES:,} nodes"
    rounds = graph.changes.rounds(UNENDING)[:MOST_ROUNDS]
    adjacencies = []
    for round in rounds:
        adjacencies.append(tuple(graph.targets(rank, round) for rank in range(graph.num_nodes)))
        if fault := _fault(weighted, round, needs):
            return f"round {round + 1}: {fault}"
    if reason := _apart(graph, adjacencies):
        return f"in {counted(len(rounds), 'round')}: {reason}"
    sums = "rows and columns sum to 1" if needs.columns else "rows sum to 1"
    shape = ", W = W^T" if needs.symmetric else ""
    reached = rounds_to_reach(adjacencies) if len(graph.changes.spans) == 1 else None
    within = f", all nodes reach each other within {counted(reached, 'round')}" if reached else ""
    return f"{counted(len(rounds), 'round')} checked for {needs.scheme}: {sums}{shape}{within}"


def _fault(weighted: WeightedGraph, round: int, needs: MatrixNeeds) -> str:
    """Returns what is wrong with W of a round; empty where nothing is."""
    W = weighted.matrix(round)
    if not np.isfinite(W).all():
        return "a weight is not a finite number"
    if fault := _strays(weighted.graph, W, round):
        return fault
    if fault := _sums(W, 1, "row"):
        return fault
    if needs.columns and (fault := _sums(W, 0, "column")):
        return f"{fault}; {needs.scheme} keeps the mean of all models only where columns sum to 1"
    if needs.symmetric and np.abs(W - W.T).max() > TOLERANCE:
        i, j = np.unravel_index(np.abs(W - W.T).argmax(), W.shape)
        return f"w_{i},{j} is {W[i, j]:g}, w_{j},{i} is {W[j, i]:g}; {needs.scheme} expects W = W^T"
    return ""


def _sums(W: Array, axis: int, name: str) -> str:
    sums = W.sum(axis)
    worst = int(np.abs(sums - 1).argmax())
    return f"{name} {worst} sums to {sums[worst]:g}" if abs(sums[worst] - 1) > TOLERANCE else ""


def _strays(graph: Graph, W: Array, round: int) -> str:
    """A weight of a model that does not arrive."""
    for rank in range(graph.num_nodes):
        allowed = {rank, *graph.sources(rank, round)}
        for j in np.flatnonzero(W[rank]).tolist():
            if j not in allowed:
                return f"node {rank} gives node {j} the weight {W[rank, j]:g}, but does not receive from it"
    return ""


def _apart(graph: Graph, adjacencies: list[Adjacency]) -> str:
    """Returns why all rounds together do not connect the nodes."""
    if graph.allow_disconnected:
        return ""
    ranks = range(graph.num_nodes)
    union = tuple(tuple(sorted({j for adjacency in adjacencies for j in adjacency[i]})) for i in ranks)
    return "; ".join(why_disconnected(union))
