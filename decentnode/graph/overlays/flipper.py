"""Regular graphs whose nodes swap links among neighbors, so that no service has to draw them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import GRAPHS
from decentnode.core.rng import generator, key
from decentnode.graph.base import SEED, Adjacency, AperiodicGraph, kept_rounds, neighbor_lists
from decentnode.graph.random_graphs import Regular
from decentnode.options import Positive

Bools = NDArray[np.bool_]
HUBS = 0.3
"""The share of hubs, with which a turn has the most flips where nodes have 4 to 8 neighbors."""


@GRAPHS.register("flipper")
@dataclass(frozen=True)
class Flipper(AperiodicGraph):
    """A regular graph in which neighbors swap links (Mahlmann and Schindelhauer, SPAA 2005).

    A flip turns the path a - u - v - b into b - u - v - a. So all degrees stay, and a connected graph stays
    connected. In a turn of flips each node is by chance a hub or a leaf. Two hubs are partners where their
    edge comes first, by a random order, among all edges of either to hubs. A leaf is at the disposal of the
    hub that comes first among its own. Partners u and v each draw such a leaf, a and b, that is no neighbor
    of the other one. The probabilities of a flip and of its reverse are equal, so in the limit all connected
    regular graphs are as likely. Nodes know their own links alone: this is a gossip-based shuffle, as Cyclon
    (Voulgaris, Gavidia and van Steen, 2005), with links in both directions and constant degree.

    What is computed here without messages is the graph of the start, and the random choices that all know.
    """

    nodes: Positive
    degree: Positive
    every: Positive = 1
    """Rounds between two rounds with flips; the first is round 1."""
    repeats: Positive = 1
    """How often nodes flip in such a round, three small exchanges each."""
    start: Literal["random", "lattice"] = "random"
    """A random regular graph, or each node with the nearest on a circle."""
    seed: int = field(default=SEED, kw_only=True)

    is_negotiated = True
    adjacency: Adjacency = field(init=False, repr=False, compare=False)
    """The graph of the start."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", self._at_start())

    @property
    def num_nodes(self) -> int:
        return self.nodes

    def _at_start(self) -> Adjacency:
        regular = Regular(self.nodes, self.degree, seed=self.seed)
        if self.start == "random" or any(regular.defects()):
            return regular.adjacency
        n, half = self.nodes, [*range(1, self.degree // 2 + 1)]
        hops = half + [n // 2] * (self.degree % 2)
        return neighbor_lists(n, ((i, (i + hop) % n) for i in range(n) for hop in hops))

    def targets(self, rank: int, round: int) -> tuple[int, ...]:
        return self.adjacency[rank]

    def turns(self, round: int) -> range:
        """The turns of flips before nodes exchange models in this round."""
        first = round * self.repeats
        return range(first, first + (self.repeats if round and round % self.every == 0 else 0))

    @cached_property
    def _hubs(self) -> Callable[[int], Bools]:
        def drawn(turn: int) -> Bools:
            return generator(self.seed, "flipper_hubs", turn).random(self.nodes) < HUBS

        return lru_cache(kept_rounds(self.num_nodes))(drawn)

    def is_hub(self, rank: int, turn: int) -> bool:
        """The role of a rank in a turn of flips."""
        return bool(self._hubs(turn)[rank])

    def partner(self, hub: int, neighbors: Iterable[int], turn: int) -> int | None:
        """The hub among these neighbors whose edge comes first; partners are each other's."""

        def order(other: int) -> int:
            return key(self.seed, "flipper_edge", turn, min(hub, other), max(hub, other))

        return min((j for j in neighbors if self.is_hub(j, turn)), key=order, default=None)

    def served(self, leaf: int, neighbors: Iterable[int], turn: int) -> int | None:
        """The hub among these neighbors of a leaf that may swap the edge to it."""

        def order(hub: int) -> int:
            return key(self.seed, "flipper_leaf", turn, leaf, hub)

        return min((j for j in neighbors if self.is_hub(j, turn)), key=order, default=None)

    def drawn(self, hub: int, leaves: Collection[int], turn: int) -> int | None:
        """Draws one of these leaves; None without any."""
        if not leaves:
            return None
        return sorted(leaves)[generator(self.seed, "flipper_draw", turn, hub).integers(len(leaves))]
