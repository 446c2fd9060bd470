"""Random graphs in which each round follows from the one before it: nodes walk, or tokens do."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import GRAPHS, name_of
from decentnode.core.rng import generator
from decentnode.errors import Defect
from decentnode.graph.base import Adjacency, Pairs, kept_rounds
from decentnode.graph.files import read_graph
from decentnode.graph.mixing import Weights
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import Redrawn
from decentnode.options import Positive, PositiveFloat


@dataclass(frozen=True)
class Stepwise(Redrawn):
    """A redrawn graph whose rounds follow from a state, and each state from the one before it."""

    def first(self) -> Any:
        """The state of round 0."""
        raise NotImplementedError

    def following(self, state: Any, random: np.random.Generator) -> Any:
        """The state of the next round."""
        raise NotImplementedError

    def state(self, round: int) -> Any:
        """The state of a round."""
        kept = self._kept
        done = max((earlier for earlier in kept if earlier <= round), default=-1)
        if done < 0:
            done, kept[0] = 0, self.first()
        state = kept[done]
        for later in range(done, round):
            state = self.following(state, generator(self.seed, name_of(self), later))
        kept[round] = state
        while len(kept) > kept_rounds(self.num_nodes):
            del kept[min(kept)]
        return state

    @cached_property
    def _kept(self) -> dict[int, Any]:
        """The latest rounds; an earlier one is reached again from the start."""
        return {}


@GRAPHS.register("mobility")
@dataclass(frozen=True)
class Mobility(Stepwise):
    """Nodes that walk in the unit square; those at most `radius` apart exchange (Johnson and Maltz, 1996).

    Random waypoint: each node walks `speed` a round straight to a random point, and from there to the next.
    """

    radius: PositiveFloat
    speed: PositiveFloat

    def edges(self, round: int) -> Pairs:
        places = self.places(round)
        squared = ((places[:, None] - places[None]) ** 2).sum(-1)
        # In the unit square no two nodes are 2 apart.
        return np.argwhere(np.triu(squared <= min(self.radius, 2.0) ** 2, 1))

    def places(self, round: int) -> NDArray[np.float64]:
        """Returns the positions of the nodes, shape (n, 2)."""
        walk: Walk = self.state(round)
        return walk.places

    def first(self) -> "Walk":
        random = generator(self.seed, "mobility_start")
        return Walk(random.random((self.nodes, 2)), random.random((self.nodes, 2)))

    def following(self, walk: "Walk", random: np.random.Generator) -> "Walk":
        return walk.step(self.speed, random)


class Walk(NamedTuple):
    """Places and goals of walking nodes, each of shape (n, 2)."""

    places: NDArray[np.float64]
    goals: NDArray[np.float64]

    def step(self, length: float, random: np.random.Generator) -> "Walk":
        """The walk after a step of at most this length; nodes that arrive take new goals."""
        way = self.goals - self.places
        far = np.maximum(np.linalg.norm(way, axis=1, keepdims=True), length)
        arrived = far <= length
        places = np.where(arrived, self.goals, self.places + way * (length / far))
        return Walk(places, np.where(arrived, random.random(places.shape), self.goals))


@GRAPHS.register("token_walk")
@dataclass(frozen=True)
class TokenWalk(Stepwise):
    """Directed: models are tokens that walk at random; their nodes train (Johansson et al., SIAM Opt. 2009).

    Each token goes from its node i to a random neighbor j with probability min(1, deg_i / deg_j), and stays
    otherwise (Metropolis-Hastings). So it visits all nodes equally often. The receiver replaces its model by
    the token's; of several tokens it takes the mean (Hendrikx, AISTATS 2023). The walk is on a random
    `regular` graph, or on a file.
    """

    degree: Positive | None = None
    path: str | None = None
    """A graph file, instead of the degree."""
    tokens: Positive = 1

    directed = True
    has_weights = True
    has_rests = True

    def defects(self) -> Iterator[Defect]:
        if (self.degree is None) == (self.path is None):
            yield Defect((), "give either degree or path")
            return
        if self.degree is not None:
            yield from Regular(self.nodes, self.degree).defects()
            return
        n = len(self._base)
        if n != self.nodes:
            yield Defect((), f"nodes must be those of the file, {n}, got {self.nodes}")

    @cached_property
    def _base(self) -> Adjacency:
        if self.path is not None:
            return read_graph(self.path)
        assert self.degree is not None, "a rule of the options"
        return Regular(self.nodes, self.degree, seed=self.seed).adjacency

    def places(self, round: int) -> list[int]:
        """The node of each token."""
        places: list[int] = self.state(round)
        return places

    def first(self) -> list[int]:
        places: list[int] = (
            generator(self.seed, "token_walk_start").integers(self.nodes, size=self.tokens).tolist()
        )
        return places

    def following(self, state: list[int], random: np.random.Generator) -> list[int]:
        draws = random.random((self.tokens, 2)).tolist()
        return [self._moved(i, *draw) for i, draw in zip(state, draws, strict=True)]

    def _moved(self, i: int, which: float, whether: float) -> int:
        """The next node of a token, given two numbers from [0, 1)."""
        near = self._base[i]
        j = near[int(which * len(near))] if near else i
        return j if not near or whether * len(self._base[j]) < len(near) else i

    def edges(self, round: int) -> Pairs:
        moves = zip(self.places(round), self.places(round + 1), strict=True)
        return np.array([*moves], np.int64).reshape(-1, 2)

    def weights(self, rank: int, round: int) -> Weights:
        moves = zip(self.places(round), self.places(round + 1), strict=True)
        origins = [i for i, j in moves if j == rank]
        return {i: origins.count(i) / len(origins) for i in sorted(set(origins) - {rank})}

    def trains(self, rank: int, round: int) -> bool:
        return rank in self.places(round)

    def partners(self, rank: int) -> set[int]:
        return set(self._base[rank])
