"""Which nodes exchange, possibly different in each round."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from decentnode.core.rng import Context
from decentnode.errors import GraphError

if TYPE_CHECKING:
    from torch import Tensor

Pairs = NDArray[np.int64]
"""Edges i -> j, one per row, shape (edges, 2)."""
SEED = 1
"""The seed of a graph that is made without one. A configuration gives its graph that of the run, which is the
same where it names none; so `decentnode graph NAME` shows what such a run has."""
GRAPH_FILE = r".*(/.*|\.edges|\.adj|\.adjacency|\.txt|\.gml|\.graphml|\.edgelist|\.adjlist)"
"""Matches the name of a graph that is a file."""
MOST_EDGES = 10_000_000
"""Edges of the densest graph: those of a complete graph of 4,472 nodes."""
MOST_NODES = 1_000_000
"""More nodes than any run has; larger numbers are mistakes."""
Adjacency = tuple[tuple[int, ...], ...]
"""The ranks that each rank sends to, ascending, without itself."""
MORE_THAN_EDGES = (
    "is more than the edges of each round (servers, levels, a service, labels, or messages of nodes); "
    "choose a graph that follows from its options and the seed"
)
"""What is wrong with such a graph inside another one."""
ENDLESS = sys.maxsize
"""The end of the rounds of a graph that holds to the end of a run."""
FORESEEN_ROUNDS = 3
"""Rounds after the current one whose neighbors a node connects to."""
LEAST_KEPT_ROUNDS, MOST_KEPT_ROUNDS, MOST_KEPT_NODES = 4 + FORESEEN_ROUNDS, 256, 1 << 20
"""Limits of the rounds of a redrawn graph that a process keeps, and of their nodes, added up: some 100 MB."""
MOST_AHEAD_ROUNDS, MOST_AHEAD_EDGES = 1000, 500_000
"""Limits of the edges drawn before the fork: some tenths of a second, and 10 MB that all nodes share."""


def kept_rounds(nodes: int) -> int:
    """How many rounds of a redrawn graph a process keeps, as its nodes may be in different rounds."""
    return min(MOST_KEPT_ROUNDS, max(LEAST_KEPT_ROUNDS, MOST_KEPT_NODES // max(1, nodes)))


def as_pairs(edges: Iterable[tuple[int, int]] | Pairs) -> Pairs:
    """The edges as an array; raises GraphError for so many that the lists of neighbors take minutes."""
    if not isinstance(edges, np.ndarray):
        edges = np.fromiter(islice(edges, MOST_EDGES + 1), np.dtype((np.int64, 2)))
    refuse_dense(len(edges))
    return edges


def refuse_dense(edges: float) -> None:
    """Raises GraphError for so many edges that a graph takes minutes and gigabytes."""
    if edges > MOST_EDGES:
        raise GraphError(f"more than {MOST_EDGES:,} edges; choose fewer nodes, or fewer neighbors of each")


def neighbor_lists(nodes: int, edges: Iterable[tuple[int, int]] | Pairs, directed: bool = False) -> Adjacency:
    """Builds the adjacency of edges i -> j, both ways unless `directed`, without loops and repetitions.

    Raises IndexError for a rank that is not 0..nodes - 1.
    """
    targets, ends = (column.tolist() for column in _sorted_edges(nodes, as_pairs(edges), directed))
    return tuple(tuple(targets[begin:end]) for begin, end in pairwise(ends))


class NeighborRows(Sequence[tuple[int, ...]]):
    """The neighbors of all nodes in one array; a row becomes a tuple when it is read.

    Every node draws a random graph as a whole in each round, and reads the rows of a few neighbors.
    """

    def __init__(self, nodes: int, edges: Iterable[tuple[int, int]] | Pairs, directed: bool = False) -> None:
        self._targets, self._ends = _sorted_edges(nodes, as_pairs(edges), directed)
        self._read: dict[int, tuple[int, ...]] = {}
        self.edges = len(self._targets)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def degree(self, rank: int) -> int:
        """The length of a row, which is not read for it."""
        return int(self._ends[rank + 1] - self._ends[rank])

    @overload
    def __getitem__(self, rank: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, rank: slice) -> Adjacency: ...
    def __getitem__(self, rank: int | slice) -> tuple[int, ...] | Adjacency:
        if isinstance(rank, slice):
            return tuple(self[i] for i in range(*rank.indices(len(self))))
        row = self._read.get(rank)
        if row is None:
            if not 0 <= rank < len(self):
                raise IndexError(f"there is no rank {rank}")
            row = tuple(self._targets[self._ends[rank] : self._ends[rank + 1]].tolist())
            self._read[rank] = row
        return row


def _sorted_edges(nodes: int, pairs: Pairs, directed: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The targets of all ranks in order, and where those of each rank begin and end."""
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < nodes:
        raise IndexError(f"an edge has a rank outside 0..{nodes - 1}")
    sources, targets = pairs[:, 0], pairs[:, 1]
    keys = sources * nodes + targets
    both = keys if directed else np.concatenate([keys, targets * nodes + sources])
    both.sort()
    sources = both // nodes
    targets = both - sources * nodes
    is_edge = sources != targets
    is_edge[1:] &= both[1:] != both[:-1]
    ends = np.zeros(nodes + 1, np.int64)
    np.bincount(sources[is_edge], minlength=nodes).cumsum(out=ends[1:])
    return targets[is_edge], ends


def transpose(adjacency: Adjacency) -> Adjacency:
    """Returns the ranks that each rank receives from, ascending."""
    backward = ((j, i) for i, targets in enumerate(adjacency) for j in targets)
    return neighbor_lists(len(adjacency), backward, directed=True)


@dataclass(frozen=True)
class View:
    """One node's part of the graph in one round: everything a sharing scheme may know about it.

    `weights[j]` is the weight of the model of j in this node's mix, itself included. They sum to 1.
    `outgoing_weights[j]` is the weight of this node's model in the mix of j. They sum to 1 when W is doubly
    stochastic. Both are ascending by rank and shared between rounds: do not change them.
    """

    rank: int
    round: int
    targets: tuple[int, ...]
    """Ranks that the node sends to, ascending."""
    sources: tuple[int, ...]
    """Ranks that the node receives from, ascending; the same as `targets` when undirected."""
    weights: dict[int, float]
    outgoing_weights: dict[int, float]
    co_senders: dict[int, tuple[int, ...]]
    """All ranks that each target receives from, this node included, ascending."""
    learning_rate: float = 0.0
    """The rate of this round's local steps; 0 where the node rests, or the round only mixes."""
    servers: tuple[int, ...] = ()
    """The servers that the node follows or is one of, the first one first; none in a graph of peers."""
    levels: "tuple[View, ...]" = ()
    """The node's part in each level of the graph, where it has levels."""
    clusters: "dict[int, tuple[int, ...]]" = field(default_factory=dict)
    """In a level of heads: the ranks that each head stands for."""
    seed: int = 0
    """The key of the random choices that nodes share in the contexts of payloads."""

    def context(
        self, sender: int, receiver: int | None = None, *, fill: "Tensor | None" = None, phase: int = 0,
        number: int | None = None,
    ) -> Context:  # fmt: skip
        """Returns what both ends know of a payload in this round.

        Args:
            receiver: None where one payload serves all receivers.
            fill: what stands where nothing was sent, shape (d,); None: zeros.
            phase: the number of the exchange within the round.
            number: that of a message between local steps, in place of the round.
        """
        return Context(
            self.seed,
            self.round if number is None else number,
            sender,
            receiver=receiver,
            fill=fill,
            phase=phase,
        )

    def at(self, round: int, learning_rate: float) -> "View":
        """Returns this view in another round; `dataclasses.replace` takes ten times as long."""
        view = object.__new__(View)
        levels = tuple(level.at(round, learning_rate) for level in self.levels) if self.levels else ()
        vars(view).update(vars(self), round=round, learning_rate=learning_rate, levels=levels)
        return view

    @property
    def rests(self) -> bool:
        """Whether the node neither trains nor exchanges, so that no momentum may move its model."""
        return not (self.learning_rate or self.sources or self.targets)

    @property
    def degree(self) -> int:
        """The number of nodes that the node receives from."""
        return len(self.sources)


@dataclass(frozen=True)
class Changes:
    """How the edges of a run change from round to round."""

    spans: "tuple[tuple[range, Graph], ...]"
    """The graphs that hold one after the other, each with its rounds; most runs have one."""

    @property
    def repeats(self) -> bool:
        """Whether every round is like one of `rounds()`."""
        return all(graph.period is not None for _, graph in self.spans)

    def rounds(self, unending: int = 1) -> list[int]:
        """The rounds of a period of each graph; as many as `unending` of one without a period."""
        return [r for rounds, graph in self.spans for r in rounds[: graph.period or unending]]


class Graph(ABC):
    """Neighbors per round. Every node computes them by itself from the same settings, without I/O.

    A graph that does not declare its period counts as static; `decentnode validate` checks that. The
    subclasses below declare it.
    """

    directed: bool = False
    """Whether edges go one way."""
    has_weights: bool = False
    """Whether the graph has mixing weights of its own."""
    allow_disconnected: bool = False
    """Whether a graph in several components is accepted."""
    has_rests: bool = False
    """Whether nodes make no local steps in some rounds."""
    needs_service: bool = False
    """Whether edges are those that a service answers; `prepare` awaits them."""
    is_negotiated: bool = False
    """Whether nodes agree on edges by messages during the run; then `targets` are only those of the start."""
    needs_local_steps: bool = False
    """Whether the edges of a round depend on its local steps, which then come before the exchange."""
    needs_labels: bool = False
    """Whether the edges depend on the labels of the nodes' samples."""

    @property
    @abstractmethod
    def num_nodes(self) -> int:
        """The number of nodes n; ranks are 0..n-1."""

    @property
    def period(self) -> int | None:
        """Rounds after which the graph repeats; None when it never does, or when that is unknown."""
        return 1

    @property
    def static(self) -> bool:
        """Whether the graph is the same in every round."""
        return self.period == 1

    @property
    def changes(self) -> Changes:
        """How the graph changes."""
        return Changes(((range(ENDLESS), self),))

    @property
    def servers(self) -> tuple[int, ...]:
        """The ranks that have the model of all, first the one to follow; none in a graph of peers."""
        return ()

    def followed(self, rank: int) -> tuple[int, ...]:
        """The servers that `rank` follows or is one of."""
        return self.servers

    @property
    def levels(self) -> "tuple[Graph, ...]":
        """The graphs of the levels, the innermost first; none where there is one level."""
        return ()

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """In a level of heads: the ranks that each head stands for."""
        return {}

    @property
    def is_more_than_edges(self) -> bool:
        """Whether the graph is not told by the edges, weights and rests of each round alone."""
        has_roles = bool(self.servers or self.levels)
        needs_more = self.needs_service or self.needs_labels or self.needs_local_steps
        return has_roles or needs_more or self.is_negotiated

    @abstractmethod
    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        """Ranks that `rank` sends to in `round`, ascending, without itself."""

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        """Ranks that `rank` receives from in `round`, ascending, without itself."""
        if not self.directed:
            return self.targets(rank, round)
        return tuple(j for j in range(self.num_nodes) if rank in self.targets(j, round))

    def weights(self, rank: int, round: int) -> dict[int, float]:
        """The weight of each source of `rank` in `round`; only where the graph `has_weights`."""
        raise NotImplementedError(f"{type(self).__name__} has no weights of its own")

    def trains(self, rank: int, round: int) -> bool:
        """Whether `rank` makes local steps in `round`; only where the graph `has_rests`."""
        return True

    def service_port(self, machines: int) -> int | None:
        """The TCP port at machine 0 of a service that a run on so many machines starts; None: no port."""
        return None

    async def prepare(self, rank: int, round: int) -> None:  # noqa: B027 - most graphs ask nobody
        """Makes a round available before its edges are read; returns at once where edges are computed."""

    def draw_ahead(self, rounds: range) -> None:  # noqa: B027 - most graphs draw nothing
        """Draws the first of these rounds once, for all processes that are forked from this one."""

    def with_labels(self, histograms: Sequence[Sequence[int]]) -> "Graph":
        """The graph of nodes that have so many samples of each label; only where the graph `needs_labels`."""
        return self

    def most_targets(self, rank: int) -> int:
        """The most ranks that `rank` can send to in one round, as far as that is known."""
        if not self.changes.repeats:
            return self.num_nodes - 1
        return max(len(self.targets(rank, round)) for round in self.changes.rounds())

    def in_degree(self, rank: int, round: int) -> int:
        """The number of nodes that `rank` receives from."""
        return len(self.sources(rank, round))

    def peers_in(self, rank: int, rounds: Iterable[int]) -> set[int]:
        """All ranks that `rank` sends to or receives from in these rounds."""
        peers = {peer for r in rounds for peer in self.targets(rank, r)}
        return peers.union(*(self.sources(rank, r) for r in rounds)) if self.directed else peers

    @property
    def may_meet_all(self) -> bool:
        """Whether each node may exchange with each other one in some round."""
        return not self.changes.repeats and type(self).partners is Graph.partners

    def partners(self, rank: int) -> set[int]:
        """All ranks that `rank` may send to or receive from in any round."""
        if not self.changes.repeats:
            return set(range(self.num_nodes)) - {rank}
        return self.peers_in(rank, self.changes.rounds())

    def is_partner(self, rank: int, peer: int) -> bool:
        """Whether `rank` may send to or receive from `peer` in any round."""
        return rank != peer if self.may_meet_all else peer in self.partners(rank)


class StaticGraph(Graph):
    """A graph that is the same in every round, held as adjacency lists."""

    @property
    @abstractmethod
    def adjacency(self) -> Adjacency:
        """Returns the ranks that each rank sends to, ascending; raises GraphError for impossible options."""

    @property
    def num_nodes(self) -> int:
        return len(self.adjacency)

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self.adjacency[rank]

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._incoming[rank]

    @cached_property
    def _incoming(self) -> Adjacency:
        return self.adjacency if not self.directed else transpose(self.adjacency)


class PeriodicGraph(Graph):
    """A graph that changes from round to round and repeats after its period."""

    @property
    @abstractmethod
    def period(self) -> int: ...


class AperiodicGraph(Graph):
    """A graph that changes from round to round and never repeats.

    A node may request the same round more than once. So `targets` must depend only on the options, the rank
    and the round; draw random numbers with `decentnode.core.rng.generator`.
    """

    @property
    def period(self) -> None:
        return None


class RedrawnGraph(AperiodicGraph):
    """A graph that is drawn as a whole in each round; every node draws the same graph by itself."""

    @property
    def expected_factor(self) -> float | None:
        """The expected factor of the squared disagreement in a round; None where it is unknown."""
        return None

    @abstractmethod
    def edges(self, round: int) -> Iterable[tuple[int, int]] | Pairs:
        """The edges i -> j of `round`, in both directions unless `directed`; the same at each call."""

    def draw_ahead(self, rounds: range) -> None:
        drawn = 0
        for round in rounds[:MOST_AHEAD_ROUNDS]:
            self._ahead[round] = self._draw(round)
            drawn += self._ahead[round][0].edges
            if drawn > MOST_AHEAD_EDGES:
                return

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self._drawn(round)[0][rank]

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._drawn(round)[1][rank]

    def in_degree(self, rank: int, round: int) -> int:
        return self._drawn(round)[1].degree(rank)

    @cached_property
    def _drawn(self) -> Callable[[int], tuple[NeighborRows, NeighborRows]]:
        """Targets and sources of all ranks in a round; the latest rounds are kept."""
        return lru_cache(kept_rounds(self.num_nodes))(self._draw)

    @cached_property
    def _ahead(self) -> dict[int, tuple[NeighborRows, NeighborRows]]:
        return {}

    def _draw(self, round: int) -> tuple[NeighborRows, NeighborRows]:
        if round in self._ahead:
            return self._ahead[round]
        pairs = as_pairs(self.edges(round))
        adjacency = NeighborRows(self.num_nodes, pairs, self.directed)
        if not self.directed:
            return adjacency, adjacency
        return adjacency, NeighborRows(self.num_nodes, pairs[:, ::-1], directed=True)
