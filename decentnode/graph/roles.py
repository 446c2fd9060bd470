"""Graphs in which nodes have different roles: servers and their clients, clusters and their heads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product
from typing import Literal

import numpy as np

from decentnode.core.registry import GRAPHS, name_of
from decentnode.core.rng import generator
from decentnode.errors import Defect, GraphError
from decentnode.graph.base import MOST_NODES, Graph, Pairs, PeriodicGraph, kept_rounds
from decentnode.graph.families import Chain, FullyConnected, Ring, Star
from decentnode.graph.redrawn import Redrawn
from decentnode.options import Fraction, NonNegative, Positive


@GRAPHS.register("federated", "client_server")
@dataclass(frozen=True)
class Federated(Redrawn):
    """Directed: a server and, in each round, some of its clients (McMahan et al., AISTATS 2017, Alg. 1).

    S_r, the clients of round r, train and send to the server. The server sends its model to S_r+1, or with
    `down: all` to all clients. m = max(1, rate * K) of the K clients are drawn without replacement. With a
    `standby`, clients exchange with both servers, and the servers with each other.
    """

    server: NonNegative = 0
    rate: Fraction = 1.0
    """The share of the clients in a round."""
    clients: Positive | None = None
    """The number of clients, instead of the rate."""
    standby: NonNegative | None = None
    """The rank that repeats the server's work and replaces it when it is lost."""
    down: Literal["next", "all"] = "next"
    """The clients that receive the model: those of the next round, or all."""

    directed = True
    has_rests = True

    def defects(self) -> Iterator[Defect]:
        n, both = self.nodes, self.servers
        most = n - len(both)
        if self.server >= n:
            yield Defect((), f"server must be a rank, 0..{n - 1}, got {self.server}")
        if max(both[1:], default=0) >= n:
            yield Defect((), f"standby must be a rank, 0..{n - 1}, got {self.standby}")
        if self.standby == self.server:
            yield Defect((), f"standby must be another rank than the server, {self.server}")
        if most < 1:
            yield Defect((), f"nodes must be at least {len(both) + 1}, so that there is a client, got {n}")
        if 0 < most < (self.clients or 0):
            yield Defect((), f"clients must be at most {most}, got {self.clients}")
        if self.rate != 1 and self.clients is not None:
            yield Defect((), "give the rate or the number of clients, not both")

    @property
    def servers(self) -> tuple[int, ...]:
        return (self.server,) if self.standby is None else (self.server, self.standby)

    @property
    def period(self) -> int | None:  # type: ignore[override]
        return 1 if self.per_round == len(self.all_clients) else None

    @cached_property
    def all_clients(self) -> list[int]:
        """The ranks that are no servers, ascending."""
        return sorted(set(range(self.nodes)) - set(self.servers))

    @property
    def per_round(self) -> int:
        """The number of clients of a round."""
        return self.clients or max(1, round(self.rate * len(self.all_clients)))

    @cached_property
    def chosen(self) -> Callable[[int], list[int]]:
        """The clients of a round, ascending."""
        return lru_cache(kept_rounds(self.num_nodes))(self._choose)

    def _choose(self, round: int) -> list[int]:
        if self.static:
            return self.all_clients
        random = generator(self.seed, name_of(self), round)
        clients: list[int] = random.choice(self.all_clients, self.per_round, replace=False).tolist()
        return sorted(clients)

    def edges(self, round: int) -> Pairs:
        receivers = self.all_clients if self.down == "all" else self.chosen(round + 1)
        pairs = [
            *product(self.chosen(round), self.servers),
            *product(self.servers, receivers),
            *permutations(self.servers, 2),
        ]
        return np.array(pairs, np.int64).reshape(-1, 2)

    def trains(self, rank: int, round: int) -> bool:
        return rank in self.servers or rank in self.chosen(round)

    def partners(self, rank: int) -> set[int]:
        everyone = range(self.nodes) if rank in self.servers else self.servers
        return set(everyone) - {rank}


Level = Literal["ring", "chain", "star", "fully_connected", "federated"]
LEVELS: dict[str, Callable[[int], Graph]] = {
    "ring": Ring, "chain": Chain, "star": Star, "fully_connected": FullyConnected, "federated": Federated,
}  # fmt: skip
"""The graphs that a level can have, by name."""


@dataclass(frozen=True)
class Grouped(PeriodicGraph):
    """One graph on each of some groups of ranks, in every `every`-th round alone."""

    nodes: int
    base: Graph
    """The graph by places in a group; the same in every round."""
    groups: tuple[tuple[int, ...], ...]
    every: int = 1
    of_heads: tuple[tuple[int, ...], ...] = ()
    """The clusters of the ranks of a single group."""
    registered_name: str = "the level"
    """The name of the level in messages."""

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @property
    def period(self) -> int:
        return self.every

    @property
    def directed(self) -> bool:  # type: ignore[override]
        return self.base.directed

    @property
    def servers(self) -> tuple[int, ...]:
        return tuple(group[place] for group in self.groups for place in self.base.servers)

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        return dict(zip(self.groups[0], self.of_heads, strict=False))

    def followed(self, rank: int) -> tuple[int, ...]:
        group, _ = self._places.get(rank, ((), 0))
        return tuple(group[place] for place in self.base.servers) if group else ()

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self._ranks(rank, round, self.base.targets)

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return self._ranks(rank, round, self.base.sources)

    def _ranks(self, rank: int, round: int, of: Callable[[int, int], tuple[int, ...]]) -> tuple[int, ...]:
        if (round + 1) % self.every or rank not in self._places:
            return ()
        group, place = self._places[rank]
        return tuple(sorted(group[peer] for peer in of(place, 0)))

    @cached_property
    def _places(self) -> dict[int, tuple[tuple[int, ...], int]]:
        return {rank: (group, place) for group in self.groups for place, rank in enumerate(group)}


@GRAPHS.register("hierarchical", "two_level")
@dataclass(frozen=True)
class Hierarchical(PeriodicGraph):
    """Clusters, and a graph of their heads in every `every`-th round (Liu et al., ICC 2020).

    Cluster a has the ranks a k .. a k + k - 1, k = nodes_per_cluster; the first one is its head. `inner` is
    the graph in each cluster, in all rounds; `outer` is that of the heads. In a level that is `federated` the
    first node is the server, and all others are its clients.
    """

    nodes: Positive
    nodes_per_cluster: Positive
    inner: Level = "fully_connected"
    outer: Level = "ring"
    every: Positive = 1

    def __post_init__(self) -> None:
        n, k = self.nodes, self.nodes_per_cluster
        if n > MOST_NODES:
            raise GraphError(f"{n:,} nodes are too many for a graph; at most {MOST_NODES:,}")
        if n % k:
            raise GraphError(f"hierarchical: nodes must be a multiple of nodes_per_cluster, got {n} and {k}")
        for name, level, size in (("inner", self.inner, k), ("outer", self.outer, n // k)):
            if level == "federated" and size < 2:
                raise GraphError(f"hierarchical: {name} federated needs two nodes in a group, got {size}")

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @property
    def period(self) -> int:
        return self.every

    @property
    def directed(self) -> bool:  # type: ignore[override]
        return any(level.directed for level in self.levels)

    @property
    def servers(self) -> tuple[int, ...]:
        return tuple(sorted({server for level in self.levels for server in level.servers}))

    @property
    def levels(self) -> tuple[Graph, ...]:
        return self._levels

    @cached_property
    def _levels(self) -> tuple[Grouped, Grouped]:
        n, k = self.nodes, self.nodes_per_cluster
        clusters = tuple(tuple(range(first, first + k)) for first in range(0, n, k))
        heads = tuple(cluster[0] for cluster in clusters)
        return (
            Grouped(n, LEVELS[self.inner](k), clusters, registered_name="the inner level"),
            Grouped(
                n,
                LEVELS[self.outer](n // k),
                (heads,),
                every=self.every,
                of_heads=clusters,
                registered_name="the outer level",
            ),
        )

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return tuple(sorted({j for level in self._levels for j in level.targets(rank, round)}))

    def sources(self, rank: int, round: int) -> tuple[int, ...]:
        return tuple(sorted({j for level in self._levels for j in level.sources(rank, round)}))
