"""Graphs in which nodes have different roles: servers and their clients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product
from typing import Literal

import numpy as np

from decentnode.core.registry import GRAPHS, name_of
from decentnode.core.rng import generator
from decentnode.graph.base import KEPT_ROUNDS, Pairs
from decentnode.graph.redrawn import Redrawn
from decentnode.options import Fraction, NonNegative, Positive


@GRAPHS.register("federated")
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
    """Their number, instead of the rate."""
    standby: NonNegative | None = None
    """The rank that repeats the server's work and replaces it when it is lost."""
    down: Literal["next", "all"] = "next"
    """The clients that receive the model: those of the next round, or all."""

    directed = True
    has_rests = True

    def rules(self) -> dict[str, bool]:
        n, both = self.nodes, self.servers
        most = n - len(both)
        return {
            f"server must be a rank, 0..{n - 1}, got {self.server}": self.server >= n,
            f"standby must be a rank, 0..{n - 1}, got {self.standby}": max(both[1:], default=0) >= n,
            f"standby must be another rank than the server, {self.server}": self.standby == self.server,
            f"nodes must be at least {len(both) + 1}, so that there is a client, got {n}": most < 1,
            f"clients must be at most {most}, got {self.clients}": 0 < most < (self.clients or 0),
            "give the rate or the number of clients, not both": self.rate != 1 and self.clients is not None,
        }

    @property
    def servers(self) -> tuple[int, ...]:
        return (self.server,) if self.standby is None else (self.server, self.standby)

    @property
    def static(self) -> bool:
        return self.per_round == len(self.all_clients)

    @property
    def period(self) -> int | None:  # type: ignore[override]
        return 1 if self.static else None

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
        return lru_cache(KEPT_ROUNDS)(self._choose)

    def _choose(self, round: int) -> list[int]:
        if self.static:
            return self.all_clients
        random = generator(self.seed, name_of(self), round)
        found: list[int] = random.choice(self.all_clients, self.per_round, replace=False).tolist()
        return sorted(found)

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
