"""Who may talk to whom, possibly different each round."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

MOST_NODES = 1_000_000
"""More than anybody can run; what takes longer to build than to name is a mistake."""
Adjacency = tuple[tuple[int, ...], ...]
"""For each rank the ranks it sends to, ascending, without itself."""
KEPT_ROUNDS = 4
"""Rounds of a graph that is drawn in each, which a process keeps: its nodes are in different ones."""


def neighbor_lists(nodes: int, edges: Iterable[tuple[int, int]], directed: bool = False) -> Adjacency:
    """Adjacency of the edges i -> j, taken both ways unless `directed`; loops and repetitions vanish."""
    neighbors: list[set[int]] = [set() for _ in range(nodes)]
    for i, j in edges:
        neighbors[i].add(j)
        if not directed:
            neighbors[j].add(i)
    return tuple(tuple(sorted(found - {i})) for i, found in enumerate(neighbors))


def transpose(adjacency: Adjacency) -> Adjacency:
    """For each rank the ranks it hears from, ascending."""
    backward = ((j, i) for i, targets in enumerate(adjacency) for j in targets)
    return neighbor_lists(len(adjacency), backward, directed=True)


@dataclass(frozen=True)
class View:
    """One node's place in one round: everything a sharing scheme may know about the graph.

    `weights[j]` is what this node gives to the model of j (itself included; they sum to 1);
    `outgoing_weights[j]` is what j gives to this node's model (itself included; they sum to 1 when W is
    doubly stochastic). Both are ascending by rank, are shared between rounds, and are not to be changed.
    """

    rank: int
    round: int
    targets: tuple[int, ...]
    """Whom I send to, ascending."""
    sources: tuple[int, ...]
    """Whom I hear from, ascending; the same as `targets` when undirected."""
    weights: dict[int, float]
    outgoing_weights: dict[int, float]
    co_senders: dict[int, tuple[int, ...]]
    """For each target everybody it hears from, this node included, ascending."""
    learning_rate: float = 0.0
    """The rate of this round's local steps."""

    @property
    def degree(self) -> int:
        """How many nodes I hear from."""
        return len(self.sources)


class Graph(ABC):
    """Neighbors per round. Every node computes it alone from the same settings; it does no I/O.

    One that does not say whether it changes counts as the same in every round (`declared.py` looks whether
    that is so). The subclasses below say it.
    """

    directed: bool = False
    has_weights: bool = False
    """Whether it comes with mixing weights of its own."""
    allow_disconnected: bool = False
    """Whether some nodes may have no way to some others in any round."""

    @property
    @abstractmethod
    def num_nodes(self) -> int:
        """n; ranks are 0..n-1."""

    @property
    def static(self) -> bool:
        """Whether it is the same in every round."""
        return True

    @property
    def period(self) -> int | None:
        """After how many rounds it repeats; None when it never does, or when nobody knows."""
        return 1 if self.static else None

    @property
    def cycle(self) -> range:
        """The rounds that show all that it does: one period; round 0 alone where there is none."""
        return range(self.period or 1)

    @abstractmethod
    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        """Ranks that `rank` sends to in `round`, ascending, without itself."""

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        """Ranks that `rank` hears from in `round`, ascending, without itself."""
        if not self.directed:
            return self.targets(rank, round)
        return tuple(j for j in range(self.num_nodes) if rank in self.targets(j, round))

    def weights(self, rank: int, round: int) -> dict[int, float]:
        """What `rank` gives to each of its sources in `round`; only where it `has_weights`."""
        raise NotImplementedError(f"{type(self).__name__} has no weights of its own")

    def partners(self, rank: int) -> set[int]:
        """Everybody whom `rank` may send to or hear from in any round."""
        if self.period is None:
            return set(range(self.num_nodes)) - {rank}
        return {
            peer for round in self.cycle for peer in (*self.targets(rank, round), *self.sources(rank, round))
        }


class StaticGraph(Graph):
    """A graph that is the same in every round, held as adjacency lists."""

    @property
    @abstractmethod
    def adjacency(self) -> Adjacency:
        """For each rank the ranks it sends to, ascending; GraphError when the options allow no graph."""

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
    """A graph that changes from round to round and begins anew after its period."""

    @property
    @abstractmethod
    def period(self) -> int: ...

    @property
    def static(self) -> bool:
        return self.period == 1


class AperiodicGraph(Graph):
    """A graph that changes from round to round and never repeats.

    Each node asks for one round after another, and for the same round more than once: what `targets` draws
    depends on nothing but its options, the rank and the round (`decentnode.core.rng.generator`).
    """

    @property
    def static(self) -> bool:
        return False

    @property
    def period(self) -> None:
        return None


class RedrawnGraph(AperiodicGraph):
    """A graph that is drawn as a whole in each round, by every node alone, and read off row by row."""

    @abstractmethod
    def edges(self, round: int) -> Iterable[tuple[int, int]]:
        """The edges i -> j of `round`, taken both ways unless `directed`; the same whenever it is asked."""

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self._drawn(round)[0][rank]

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._drawn(round)[1][rank]

    @cached_property
    def _drawn(self) -> Callable[[int], tuple[Adjacency, Adjacency]]:
        """Targets and sources of all ranks in a round; the latest rounds are kept."""
        return lru_cache(KEPT_ROUNDS)(self._draw)

    def _draw(self, round: int) -> tuple[Adjacency, Adjacency]:
        adjacency = neighbor_lists(self.num_nodes, self.edges(round), self.directed)
        return adjacency, transpose(adjacency) if self.directed else adjacency
