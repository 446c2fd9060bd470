"""A random graph whose neighbors exchange through relays."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from decentnode.core.registry import GRAPHS
from decentnode.core.rng import generator
from decentnode.errors import Defect
from decentnode.graph.base import Pairs, as_pairs, kept_rounds
from decentnode.graph.redrawn import EpidemicOracle


@GRAPHS.register("relayed")
@dataclass(frozen=True)
class Relayed(EpidemicOracle):
    """`epidemic_oracle` where each node has a relay for what its neighbors send it (after Chaum, CACM 1981).

    In each round a random cycle through all nodes gives each node r another one, its relay g(r). Edges are
    those that messages take: from each neighbor of r to g(r), and from g(r) to r. Nodes have at most 2 degree
    + 2 peers. Under a scheme other than `shatter` it is a random graph like others.
    """

    @property
    def expected_factor(self) -> float | None:
        return None

    def most_targets(self, rank: int) -> int:
        return min(self.nodes - 1, 2 * self.degree + 2)

    def defects(self) -> Iterator[Defect]:
        yield from super().defects()
        if self.nodes < 2:
            yield Defect((), f"nodes must be at least 2, got {self.nodes}")

    def edges(self, round: int) -> Pairs:
        senders, receivers = as_pairs(self.neighbors.edges(round)).T
        relays = np.array(self.relays(round))
        ways = ((senders, relays[receivers]), (receivers, relays[senders]), (relays, np.arange(self.nodes)))
        return np.concatenate([np.stack(way, 1) for way in ways])

    @cached_property
    def neighbors(self) -> EpidemicOracle:
        """The graph of those that exchange."""
        return EpidemicOracle(self.nodes, self.degree, seed=self.seed)

    def relays(self, round: int) -> tuple[int, ...]:
        """The relay of each node in a round; each node is that of one other."""
        return self._relays(round)

    @cached_property
    def _relays(self) -> Callable[[int], tuple[int, ...]]:
        return lru_cache(kept_rounds(self.nodes))(self._draw_relays)

    def _draw_relays(self, round: int) -> tuple[int, ...]:
        cycle = generator(self.seed, "relays", round).permutation(self.nodes)
        relays = np.empty(self.nodes, np.int64)
        relays[cycle] = np.roll(cycle, 1)
        return tuple(relays.tolist())
