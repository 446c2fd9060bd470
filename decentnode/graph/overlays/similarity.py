"""Graphs that link nodes with similar, or with dissimilar, labels, models or gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from decentnode.core.registry import GRAPHS
from decentnode.core.rng import generator
from decentnode.errors import GraphError, refuse
from decentnode.graph.base import (
    SEED,
    Adjacency,
    AperiodicGraph,
    StaticGraph,
    as_pairs,
    kept_rounds,
    neighbor_lists,
)
from decentnode.graph.redrawn import EpidemicOracle
from decentnode.options import NonNegative, Positive

UNIT = 32767
"""The length of a descriptor: integers, so that all machines compute the same sums, in any order."""
SPARE_EXCHANGES = 1
"""Exchanges beyond those that spread all descriptors, so that most losses do no harm."""
MOST_EXCHANGES = 64
Array = NDArray[Any]


@GRAPHS.register("similarity", "knn")
@dataclass
class Similarity(AperiodicGraph):
    """Links each node with those most like it (KNN), or least like it (KFN), as in decentralizepy (2023).

    A descriptor of a node is a vector of length 1: its numbers of samples of each label, or a random
    projection (Charikar, Chen and Farach-Colton, 2002: a sketch of random signs) of its model without the
    model of the start, or of its local steps of a round. Descriptors spread by gossip: in each of a few
    exchanges nodes send all that they know to some random others, which all draw alike. Then every node
    computes the same graph: i and j are neighbors where either is among the `neighbors` nodes with the
    largest (dissimilar: smallest) cosine to the other one. Equal cosines are ordered at random.
    """

    nodes: Positive
    neighbors: Positive
    """Nodes that each node chooses; with those that choose it, it may have more."""
    of: Literal["labels", "model", "gradient"] = "labels"
    prefer: Literal["similar", "dissimilar"] = "similar"
    every: NonNegative = 0
    """Rounds between two choices; 0: only in the first round."""
    random: NonNegative = 0
    """Further neighbors of each node, drawn at each choice, which connect groups that are alike."""
    contacts: Positive = 4
    """Nodes that a node sends descriptors to in one exchange."""
    dimensions: Annotated[int, Ge(8), Le(1024)] = 32
    """Numbers of a descriptor, but of labels."""
    seed: int = SEED
    histograms: tuple[tuple[int, ...], ...] = field(default=(), init=False, repr=False)
    """The number of samples of each label, for each rank; a node uses only its own."""

    is_negotiated = True

    def __post_init__(self) -> None:
        n, of_labels = self.nodes, self.of == "labels"
        rules = {
            f"neighbors must be below nodes, got {self.neighbors} and {n}": self.neighbors >= n,
            f"random must be below nodes, got {self.random} and {n}": self.random >= n,
            f"nodes * random must be even, got {n} * {self.random}": n * self.random % 2 == 1,
            "labels do not change; leave every out, or take of: model": of_labels and self.every > 0,
        }
        refuse((f"similarity: {rule}" for rule, is_broken in rules.items() if is_broken), GraphError)

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @property
    def needs_labels(self) -> bool:  # type: ignore[override]
        return self.of == "labels"

    @property
    def needs_local_steps(self) -> bool:  # type: ignore[override]
        return self.of == "gradient"

    def with_labels(self, histograms: Sequence[Sequence[int]]) -> "Similarity":
        known = replace(self)
        known.histograms = tuple(map(tuple, histograms))
        return known

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        """The contacts of the first exchange: the neighbors are known after the last one."""
        return self.spread[0][rank]

    def chooses(self, round: int) -> bool:
        """Whether nodes choose their neighbors before they exchange models in this round."""
        return round % self.every == 0 if self.every else round == 0

    @cached_property
    def size(self) -> int:
        """Numbers of a descriptor."""
        return len(self.histograms[0]) if self.histograms else self.dimensions

    @cached_property
    def spread(self) -> tuple[Adjacency, ...]:
        """The graphs over which nodes exchange descriptors, one after another, until all have all of them."""
        n = self.nodes
        contacts = min(self.contacts, n - 1)
        drawn = EpidemicOracle(n, contacts + (n * contacts % 2), seed=self.seed)
        known, graphs = [1 << rank for rank in range(n)], list[Adjacency]()
        while len(graphs) < MOST_EXCHANGES and any(has != (1 << n) - 1 for has in known):
            graphs.append(neighbor_lists(n, drawn.edges(len(graphs))))
            known = [
                reduce(or_, (known[rank] for rank in peers), known[i]) for i, peers in enumerate(graphs[-1])
            ]
        more = (neighbor_lists(n, drawn.edges(len(graphs) + k)) for k in range(SPARE_EXCHANGES))
        return (*graphs, *more)

    @cached_property
    def chosen(self) -> Callable[[bytes, bytes, int], Adjacency]:
        """The graph by the descriptors that a node knows: ranks as int64, then UNIT * x as int16, one for
        each. Nodes of one process that know the same compute it once. The last argument is the round.
        """
        return lru_cache(kept_rounds(self.num_nodes))(self._choose)

    def _choose(self, ranks: bytes, descriptors: bytes, round: int) -> Adjacency:
        known = np.frombuffer(ranks, np.int64)
        x = np.frombuffer(descriptors, np.int16).reshape(len(known), -1).astype(np.float64)
        # Exact: sums of integers below 2^53, whatever the order of a matrix product.
        order = x @ x.T * (-1 if self.prefer == "similar" else 1)
        np.fill_diagonal(order, np.inf)
        edges = []
        for i, row in zip(known.tolist(), order, strict=True):
            ties = generator(self.seed, "similarity_ties", i).permutation(self.nodes)[known]
            first = np.lexsort((ties, row))[: min(self.neighbors, len(known) - 1)]
            edges += [(i, j) for j in known[first].tolist()]
        if self.random:
            more = EpidemicOracle(self.nodes, self.random, seed=self.seed).edges(-1 - round)
            edges += as_pairs(more).tolist()
        return neighbor_lists(self.nodes, edges)

    @cached_property
    def signs(self) -> Callable[[int], NDArray[np.int8]]:
        """Returns random signs for the projection of so many numbers; all nodes have the same."""

        def drawn(elements: int) -> NDArray[np.int8]:
            bits = generator(self.seed, "similarity_signs").integers(0, 2, elements, np.int8)
            return (2 * bits - 1).astype(np.int8)

        return lru_cache(1)(drawn)


class ChosenGraph(StaticGraph):
    """The graph between two choices."""

    def __init__(self, adjacency: Adjacency) -> None:
        self._adjacency = adjacency

    @property
    def adjacency(self) -> Adjacency:
        return self._adjacency


def unit(x: Array) -> NDArray[np.int16]:
    """UNIT * x / |x|, rounded; zeros for a vector of zeros, or one that is not finite."""
    x = np.asarray(x, np.float64)
    length = float(np.linalg.norm(x))
    if not 0 < length < np.inf:
        return np.zeros(len(x), np.int16)
    return np.rint(x * (UNIT / length)).astype(np.int16)
