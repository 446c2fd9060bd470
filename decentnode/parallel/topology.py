"""Turns the name of a topology, a graph, or a matrix of weights into a graph with weights."""

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from decentnode.config import maker
from decentnode.core.registry import GRAPHS, MIXINGS, Registry, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import Adjacency, Graph, StaticGraph
from decentnode.graph.declared import check_declared, notices
from decentnode.graph.mixing import ROW_SUM_TOLERANCE, FromGraph, Mixing, WeightedGraph, default_weights

Topology = str | Mapping[str, Any] | Graph | Tensor | NDArray[Any] | Sequence[Sequence[float]]
"""A name, a mapping with `name` and options, a graph, or W itself: row i has the weights that rank i uses."""
MOST_CHECKED_ROUNDS = 64


class MatrixGraph(StaticGraph):
    """The graph of a matrix W, with its weights: i receives from j where w_ij is not 0."""

    directed = has_weights = True

    def __init__(self, matrix: NDArray[np.float64]) -> None:
        self.matrix = matrix

    @cached_property
    def adjacency(self) -> Adjacency:
        edges = (self.matrix != 0) & ~np.eye(len(self.matrix), dtype=bool)
        return tuple(tuple(map(int, np.flatnonzero(column))) for column in edges.T)

    def weights(self, rank: int, round: int) -> dict[int, float]:
        return {j: float(self.matrix[rank, j]) for j in self.sources(rank, round)}


def weighted_graph(
    topology: Topology, weights: str | Mapping[str, Any] | Mixing | None, size: int
) -> WeightedGraph:
    """The graph of `size` nodes with its weights; raises BadInput."""
    if isinstance(topology, str | Mapping):
        topology = made(GRAPHS, topology, {"nodes": size} | _per_machine())
    if not isinstance(topology, Graph):
        if weights is not None:
            raise BadInput("weights: the topology is a matrix of weights already")
        # The own weight gets the rounding error of a row's sum.
        return WeightedGraph(MatrixGraph(_matrix(topology, size)), FromGraph())
    if topology.num_nodes != size:
        raise BadInput(f"topology: has {topology.num_nodes} nodes; {size} ranks were started")
    if topology.servers:
        raise BadInput(f"topology: {name_of(topology)} has a server; here all ranks do the same")
    if topology.has_rests:
        raise BadInput(f"topology: nodes of {name_of(topology)} rest in some rounds; here your loop trains")
    if topology.needs_labels:
        raise BadInput(f"topology: {name_of(topology)} needs the labels of all ranks; your loop has them")
    if topology.needs_service:
        raise BadInput(f"topology: {name_of(topology)} asks a service, and here is none; use epidemic_oracle")
    if topology.is_negotiated:
        raise BadInput(f"topology: nodes of {name_of(topology)} agree on edges by messages; here are none")
    check_declared(topology)
    for notice in notices(topology):
        warnings.warn(notice, stacklevel=3)
    rule = weights if weights is not None else default_weights(topology)
    return WeightedGraph(topology, rule if isinstance(rule, Mixing) else made(MIXINGS, rule))


def averages_all(graph: WeightedGraph) -> bool:
    """Whether W = 11^T / n in every round, within rounding: each rank's mix is the mean of all models."""
    n, period = graph.num_nodes, graph.graph.period
    if period is None or period > MOST_CHECKED_ROUNDS:
        return False
    rows = (graph.mixing.incoming(graph.graph, i, t) for t in range(period) for i in range(n))
    return all(len(row) == n and np.allclose([*row.values()], 1 / n, rtol=1e-12, atol=0) for row in rows)


def _per_machine() -> dict[str, int]:
    """The number of ranks of each machine, where torchrun sets it."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return {"per_machine": int(text)} if text.isdecimal() else {}


def digest(graph: WeightedGraph) -> str:
    """A hash of the weights in the first rounds of each graph, which must be the same on all ranks."""
    state = xxhash.xxh3_64()
    for rounds, part in graph.graph.changes.spans:
        for round in rounds[: min(part.period or MOST_CHECKED_ROUNDS, MOST_CHECKED_ROUNDS)]:
            for rank in range(graph.num_nodes):
                state.update(repr((round, graph.mixing.incoming(graph.graph, rank, round))).encode())
    return state.hexdigest()


def made(registry: Registry, named: str | Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> Any:
    """The plug-in of that name, with errors that name it; `usual` are options for those that have them."""
    try:
        return maker.made(registry, named, usual)
    except BadInput as error:
        name = named if isinstance(named, str) else named.get("name")
        lines = [
            f"{registry.kind} {name}: {defect}" if defect.key else str(defect) for defect in error.defects
        ]
        raise BadInput(*lines) from error


def _matrix(content: Any, size: int) -> NDArray[np.float64]:
    """Returns W as float64, checked."""
    try:
        matrix = np.asarray(content.tolist() if isinstance(content, Tensor) else content, dtype=np.float64)
    except (ValueError, TypeError) as error:
        wanted = "must be a name, a mapping, a Graph, or a matrix of numbers whose rows are of one length"
        raise BadInput(f"topology: {wanted}") from error
    if matrix.shape != (size, size):
        raise BadInput(
            f"topology: a matrix of weights for {size} ranks is {size} x {size}, not {matrix.shape}"
        )
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise BadInput("topology: weights must be numbers from 0 to 1")
    sums = matrix.sum(axis=1)
    for rank in np.flatnonzero(abs(sums - 1) > ROW_SUM_TOLERANCE):
        raise BadInput(f"topology: the weights that rank {rank} gives sum to {sums[rank]:g}, not to 1")
    return matrix
