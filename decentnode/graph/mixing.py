"""Mixing weights: the weight of each received model and of the node's own in a mix.

W is doubly stochastic where rows and columns sum to 1; then mixing keeps the mean of all models.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decentnode.core import rng
from decentnode.core.registry import MIXINGS
from decentnode.core.text import quoted
from decentnode.errors import BadInput
from decentnode.graph.base import FORESEEN_ROUNDS, Graph, View
from decentnode.graph.text import INTEGER, Defects, Line, filled, read_lines

Weights = dict[int, float]
"""Weights by rank, ascending, the own rank included; they sum to 1."""

ROW_SUM_TOLERANCE = 1e-6


class Mixing(ABC):
    """A rule for the weights of one round."""

    symmetric: ClassVar[bool] = False
    """Whether W is symmetric: a column is the row with the same number."""
    static: ClassVar[bool] = True
    """Whether W only changes where the graph does."""
    serves_negotiated: ClassVar[bool] = False
    """Whether it suits graphs whose nodes agree on edges by messages (`Graph.is_negotiated`)."""

    def check(self, graph: Graph) -> None:  # noqa: B027 - most rules serve every graph
        """Raises BadInput when this rule does not fit that graph."""

    def of_part(self, graph: Graph) -> "Mixing":
        """The rule of a graph that holds for some rounds of the one that this is the rule of."""
        return self

    @abstractmethod
    def incoming(self, graph: Graph, rank: int, round: int) -> Weights:
        """The weights of the models that `rank` receives in `round` and of its own: row `rank` of W."""


@MIXINGS.register("metropolis_hastings", "metropolis", "mh", "metro_hastings")
@dataclass(frozen=True)
class MetropolisHastings(Mixing):
    """w_ij = 1/(1 + max(deg_i, deg_j)), rest to self: doubly stochastic (Xiao, Boyd and Lall, 2006)."""

    symmetric = True
    serves_negotiated = True

    def check(self, graph: Graph) -> None:
        if graph.directed:
            others = "from_graph" if graph.has_weights else "uniform or file"
            raise BadInput(f"metropolis_hastings weights need an undirected graph; use {others}")

    def incoming(self, graph: Graph, rank: int, round: int) -> Weights:
        neighbors = graph.sources(rank, round)
        degree = len(neighbors)
        weights = {j: 1 / (1 + max(degree, graph.in_degree(j, round))) for j in neighbors}
        return complete(weights, rank)


@MIXINGS.register("uniform", "average", "mean", "equal")
@dataclass(frozen=True)
class Uniform(Mixing):
    """The plain mean of the received models and the node's own (De Vos et al., 2023, Algorithm 1).

    w_ij = 1/(1 + deg_i): doubly stochastic only where all degrees are equal.
    """

    serves_negotiated = True

    def incoming(self, graph: Graph, rank: int, round: int) -> Weights:
        sources = graph.sources(rank, round)
        return complete(dict.fromkeys(sources, 1 / (1 + len(sources))), rank)


@MIXINGS.register("from_graph")
@dataclass(frozen=True)
class FromGraph(Mixing):
    """The weights that the graph itself defines (Takezawa et al., 2023: each edge has its own)."""

    def check(self, graph: Graph) -> None:
        if not graph.has_weights:
            raise BadInput(
                "from_graph weights need a graph that comes with its own, such as base_k_plus_one; "
                f"use {default_weights(graph)}"
            )

    def of_part(self, graph: Graph) -> Mixing:
        rule: Mixing = MIXINGS.find(default_weights(graph))()
        return rule

    def incoming(self, graph: Graph, rank: int, round: int) -> Weights:
        return complete(graph.weights(rank, round), rank)


def default_weights(graph: Graph) -> str:
    """The default rule of a graph."""
    if graph.has_weights:
        return "from_graph"
    return "uniform" if graph.directed else "metropolis_hastings"


@MIXINGS.register("file")
@dataclass(frozen=True)
class WeightFile(Mixing):
    """W from a text file: n rows of n numbers, or one `i j w_ij` per line (Xiao and Boyd, 2004: any W).

    Row i has the weights of node i. Rows must sum to 1 within 1e-6; the node's own weight receives the
    rounding error of the file.
    """

    path: str

    def check(self, graph: Graph) -> None:
        if not graph.static:
            raise BadInput("weights from a file need a graph that is the same in every round")
        entries, syntax = self._read
        defects = Defects(self.path, list(syntax.entries))
        _check_support(entries, graph, defects)
        if entries or not syntax.entries:
            _check_sums(entries, graph.num_nodes, defects)
        defects.raise_any()

    def incoming(self, graph: Graph, rank: int, round: int) -> Weights:
        entries, _ = self._read
        sources = graph.sources(rank, round)
        return complete({j: entries[rank, j].weight if (rank, j) in entries else 0.0 for j in sources}, rank)

    @cached_property
    def _read(self) -> tuple["Entries", Defects]:
        defects, lines = Defects(self.path), filled(read_lines(self.path))
        if not lines:
            defects.add(1, "the file is empty; it holds n rows of n weights, or lines 'i j weight'")
        return _read_weights(lines, defects), defects


class WeightEntry(NamedTuple):
    """One weight of a file and its line."""

    weight: float
    line: int


Entries = dict[tuple[int, int], WeightEntry]
"""Weights other than 0 by (row, column)."""


class WeightedGraph:
    """A graph with its mixing weights: one node's view of each round."""

    def __init__(self, graph: Graph, mixing: Mixing, seed: int = 0) -> None:
        """`seed`: the seed of the views. Raises BadInput when the weights do not fit the graph."""
        mixing.check(graph)
        self.graph = graph
        self.mixing = mixing
        self.seed = seed
        self.num_nodes = graph.num_nodes
        self.directed = graph.directed
        self.static = graph.static and mixing.static
        self._period = graph.period if mixing.static else None
        self._views: dict[tuple[int, int], View] = {}

    def view(self, rank: int, round: int, learning_rate: float = 0.0) -> View:
        """One node's view of one round, with its learning rate; computed once where the graph repeats."""
        if self._period is None:
            view = self._compute(rank, round)
        else:
            phase = (rank, round % self._period)
            if phase not in self._views:
                self._views[phase] = self._compute(rank, round)
            view = self._views[phase]
        return view.at(round, learning_rate)

    @cached_property
    def levels(self) -> tuple["WeightedGraph", ...]:
        """The levels of the graph, each with its default weights and random choices of its own."""
        seeds = (self.seed, rng.key(self.seed, "outer level"))
        return tuple(
            WeightedGraph(level, MIXINGS.find(default_weights(level))(), seed)
            for level, seed in zip(self.graph.levels, seeds, strict=False)
        )

    async def prepare(self, rank: int, round: int) -> None:
        """Waits until the view is known; must be awaited before `view` in a run."""
        await self.graph.prepare(rank, round)

    def most_targets(self, rank: int) -> int:
        """The most nodes that `rank` can send to in one round."""
        return self.graph.most_targets(rank)

    def foreseen(self, rank: int, round: int, rounds: int) -> set[int]:
        """The peers of `rank` in `round` and the next ones, of so many rounds in the run."""
        return self.graph.peers_in(rank, range(round, min(round + 1 + FORESEEN_ROUNDS, rounds)))

    def matrix(self, round: int = 0) -> NDArray[np.float64]:
        """W of one round, float64, shape (n, n)."""
        matrix = np.zeros((self.num_nodes, self.num_nodes))
        for rank in range(self.num_nodes):
            for j, weight in self.mixing.incoming(self.graph, rank, round).items():
                matrix[rank, j] = weight
        return matrix

    def _compute(self, rank: int, round: int) -> View:
        targets, weights = self.graph.targets(rank, round), self.mixing.incoming(self.graph, rank, round)
        outgoing = weights
        if not self.mixing.symmetric:
            receivers = sorted((*targets, rank))
            outgoing = {j: self.mixing.incoming(self.graph, j, round)[rank] for j in receivers}
        return View(
            rank=rank,
            round=round,
            targets=targets,
            sources=self.graph.sources(rank, round),
            weights=weights,
            outgoing_weights=outgoing,
            co_senders={j: self.graph.sources(j, round) for j in targets},
            servers=self.graph.followed(rank),
            levels=tuple(level.view(rank, round) for level in self.levels),
            clusters=self.graph.clusters,
            seed=self.seed,
        )


def complete(weights: Mapping[int, float], rank: int) -> Weights:
    """Adds the node's own weight, 1 minus all others, in its place by rank."""
    own_weight = 1 - fsum(weights.values())
    return {j: weights[j] if j != rank else own_weight for j in sorted((*weights, rank))}


def live_weights(weights: Weights, rank: int, received: Container[int]) -> Weights:
    """The weights of a round in which only `received` arrived: the node itself gets those of the others.

    W stays doubly stochastic when both ends of every lost edge do this (and symmetric where it was).
    """
    lost = [j for j in weights if j != rank and j not in received]
    if not lost:
        return weights
    own_weight = fsum([weights[rank], *(weights[j] for j in lost)])
    return {j: own_weight if j == rank else w for j, w in weights.items() if j == rank or j in received}


def _read_weights(lines: list[Line], defects: Defects) -> Entries:
    """The weights other than 0; three lines of three words are a matrix, else three words are `i j w`."""
    entries: Entries = {}
    for row, line in enumerate(lines):
        if len(lines[0].words) == 3 and len(lines) != 3:
            columns = _read_triple(line, defects)
        else:
            columns = _read_row(line, row, len(lines), defects=defects)
        for (i, j), word in columns.items():
            weight = _weight(word, line, defects)
            if (i, j) in entries:
                defects.add(
                    line.number, f"a second weight for {i} {j}; the first is in line {entries[i, j].line}"
                )
            elif weight:
                entries[i, j] = WeightEntry(weight, line.number)
    return entries


def _read_triple(line: Line, defects: Defects) -> dict[tuple[int, int], str]:
    if len(line.words) != 3 or not all(INTEGER.fullmatch(word) for word in line.words[:2]):
        defects.add(
            line.number, f"expected 'i j weight', two ranks and a number, not {quoted(' '.join(line.words))}"
        )
        return {}
    return {(int(line.words[0]), int(line.words[1])): line.words[2]}


def _read_row(line: Line, row: int, rows: int, defects: Defects) -> dict[tuple[int, int], str]:
    if len(line.words) != rows:
        defects.add(
            line.number, f"{len(line.words)} weights in a file of {rows} rows; the matrix is n times n"
        )
    return {(row, j): word for j, word in enumerate(line.words)}


def _weight(word: str, line: Line, defects: Defects) -> float:
    try:
        weight = float(word)
    except ValueError:
        weight = -1.0
    if 0 <= weight <= 1:
        return weight
    defects.add(line.number, f"{quoted(word)} is not a weight; expected a number from 0 to 1")
    return 0.0


def _check_support(entries: Entries, graph: Graph, defects: Defects) -> None:
    ranks = range(graph.num_nodes)
    for (i, j), entry in entries.items():
        if i not in ranks or j not in ranks:
            defects.add(
                entry.line, f"weight {i} {j} is out of range; ranks of this graph are 0..{len(ranks) - 1}"
            )
        elif i != j and j not in graph.sources(i, 0):
            defects.add(
                entry.line, f"node {i} does not receive from node {j} in this graph; its weight must be 0"
            )


def _check_sums(entries: Entries, nodes: int, defects: Defects) -> None:
    rows: list[list[WeightEntry]] = [[] for _ in range(nodes)]
    for (i, _), entry in entries.items():
        if 0 <= i < nodes:
            rows[i].append(entry)
    last = max((entry.line for entry in entries.values()), default=1)
    for i, row in enumerate(rows):
        total = fsum(entry.weight for entry in row)
        if abs(total - 1) > ROW_SUM_TOLERANCE:
            line = row[0].line if row else last
            defects.add(line, f"the weights that node {i} gives sum to {total:g}; they must sum to 1")
