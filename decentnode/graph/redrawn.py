"""Random graphs, another one in each round. Every node draws it by itself, from seed and round."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import GRAPHS, name_of
from decentnode.core.rng import generator
from decentnode.errors import Defect, GraphError, refuse
from decentnode.graph.base import (
    MOST_NODES,
    SEED,
    Adjacency,
    Graph,
    Pairs,
    RedrawnGraph,
    StaticGraph,
    kept_rounds,
)
from decentnode.graph.families import Exponential, FullyConnected, Ring
from decentnode.graph.files import read_graph
from decentnode.graph.mixing import MetropolisHastings, Uniform, Weights
from decentnode.graph.random_graphs import Regular
from decentnode.options import Fraction, NonNegative, Positive, Probability

GAIN = 1e-6
"""The least improvement that `matcha` counts as one, and the precision of its weight."""
SUPERGRADIENT_STAGES, STAGE_STEPS = 10, 30
MOST_SWAPS = 100
"""Attempts to remove loops and repeated edges from one draw."""

TOPOLOGIES: dict[str, Callable[[int], StaticGraph]] = {
    "ring": Ring, "fully_connected": FullyConnected, "exponential": Exponential,
}  # fmt: skip
"""The topologies that `teleport` can have, by name."""


@dataclass(frozen=True)
class Redrawn(RedrawnGraph):
    """A family of random graphs for any number of nodes. The same seed gives the same rounds everywhere."""

    nodes: Positive
    seed: int = field(default=SEED, kw_only=True)

    def __post_init__(self) -> None:
        if self.nodes > MOST_NODES:
            raise GraphError(f"{self.nodes:,} nodes are too many for a graph; at most {MOST_NODES:,}")
        refuse((f"{name_of(self)}: {defect}" for defect in self.defects()), GraphError)

    @property
    def num_nodes(self) -> int:
        return self.nodes

    def defects(self) -> Iterator[Defect]:
        """Yields the reasons why no such graph exists."""
        yield from ()

    def most_targets(self, rank: int) -> int:
        return getattr(self, "degree", super().most_targets(rank))

    def edges(self, round: int) -> Iterable[tuple[int, int]] | Pairs:
        return self.draw(generator(self.seed, name_of(self), round))

    def draw(self, random: np.random.Generator) -> Pairs:
        """The edges of one round."""
        raise NotImplementedError


@GRAPHS.register("epidemic_oracle", "el_oracle")
@dataclass(frozen=True)
class EpidemicOracle(Redrawn):
    """A fresh random graph with `degree` neighbors for each node (De Vos et al., 2023, EL-Oracle).

    With equal weights the expected squared disagreement shrinks in a round by
    (1/(s + 1)) (1 - s/(n - 1)), s the degree. The mean of all models is kept.
    """

    degree: NonNegative

    def defects(self) -> Iterator[Defect]:
        n, s = self.nodes, self.degree
        if s >= n:
            yield Defect((), f"degree must be below nodes, got {s} and {n}")
        if n * s % 2 == 1:
            yield Defect((), f"nodes * degree must be even, got {n} * {s}")

    @property
    def expected_factor(self) -> float | None:
        n, s = self.nodes, self.degree
        return (1 - s / (n - 1)) / (s + 1) if n > 1 else None

    def draw(self, random: np.random.Generator) -> Pairs:
        n, s = self.nodes, self.degree
        if s <= n // 2:
            return random_regular(n, s, random)
        # A dense draw would hardly ever end; the complement of a random graph is as random.
        others = np.ones((n, n), dtype=bool)
        left_out = random_regular(n, n - 1 - s, random)
        others[left_out[:, 0], left_out[:, 1]] = others[left_out[:, 1], left_out[:, 0]] = False
        return np.argwhere(np.triu(others, 1))


def random_regular(nodes: int, degree: int, random: np.random.Generator) -> Pairs:
    """A random regular graph: a random pairing of stubs, in which loops and repeated edges exchange an end
    with random other edges (McKay and Wormald, 1990). Its law does not depend on the numbering of nodes.
    """
    while True:
        pairs = random.permutation(np.repeat(np.arange(nodes), degree)).reshape(-1, 2)
        left, right = pairs[:, 0], pairs[:, 1]
        for _ in range(MOST_SWAPS):
            keys = np.minimum(left, right) * nodes + np.maximum(left, right)
            # Stable: of equal keys every processor must find the same one first.
            order = keys.argsort(kind="stable")
            ordered = keys[order]
            is_repeated = ordered[1:] == ordered[:-1]
            bad = np.concatenate([order[1:][is_repeated], np.flatnonzero(left == right)]).tolist()
            if not bad:
                return pairs
            for index, other in zip(bad, random.integers(len(pairs), size=len(bad)).tolist(), strict=True):
                right[index], right[other] = right[other], right[index]


@GRAPHS.register("epidemic_local", "el_local")
@dataclass(frozen=True)
class EpidemicLocal(Redrawn):
    """Directed: each node sends to `degree` random others (De Vos et al., 2023, EL-Local).

    Receivers average what came and their own model, which keeps the mean of all models only in expectation.
    The sources are known from the seed, so no node waits for a model that nobody sends.
    """

    directed = True
    degree: NonNegative

    def defects(self) -> Iterator[Defect]:
        n, s = self.nodes, self.degree
        if s >= n:
            yield Defect((), f"degree must be below nodes, got {s} and {n}")

    @property
    def expected_factor(self) -> float | None:
        n, s = self.nodes, self.degree
        return (1 - (1 - s / (n - 1)) ** n) / s - 1 / (n - 1) if s else None

    def draw(self, random: np.random.Generator) -> Pairs:
        n, s = self.nodes, self.degree
        # Robert Floyd's choice of s among n - 1, for all nodes at once, as hops from the sender.
        hops = np.zeros((n, s), dtype=np.int64)
        for k, last in enumerate(range(n - s, n)):
            drawn = random.integers(1, last + 1, size=n)
            taken = (hops[:, :k] == drawn[:, None]).any(1)
            hops[:, k] = np.where(taken, last, drawn)
        senders = np.arange(n)[:, None]
        return np.stack([np.broadcast_to(senders, (n, s)), (senders + hops) % n], -1).reshape(-1, 2)


@GRAPHS.register("random_matching", "random_pairs", "pairwise")
@dataclass(frozen=True)
class RandomMatching(Redrawn):
    """Random pairs that exchange alone; of an odd number of nodes one rests (Boyd et al., 2006).

    With weights 1/2 and even n the expected squared disagreement shrinks in a round by (n-2)/(2(n-1)).
    """

    @property
    def expected_factor(self) -> float | None:
        n = self.nodes
        return (n - 2) / (2 * (n - 1)) if n % 2 == 0 else None

    def most_targets(self, rank: int) -> int:
        return min(1, self.nodes - 1)

    def draw(self, random: np.random.Generator) -> Pairs:
        return random.permutation(self.nodes)[: self.nodes // 2 * 2].reshape(-1, 2)


@GRAPHS.register("equi_topo", "equi_static", "equi_dyn")
@dataclass(frozen=True)
class EquiTopo(Redrawn):
    """Random shifts on a circle of nodes, with weights of its own (Song et al., NeurIPS 2022, EquiTopo).

    Node i sends to i + a mod n for each of `shifts` random hops a: D-EquiStatic, or U-EquiStatic when not
    `directed`. With `one_peer` each round uses one of the hops alone: OD-EquiDyn, or OU-EquiDyn, in which
    the nodes are paired along the hop from a random start.
    """

    shifts: Positive
    directed: bool = True
    one_peer: bool = False
    eta: Fraction = 0.5
    """The share of the received model with `one_peer`."""

    has_weights = True

    def defects(self) -> Iterator[Defect]:
        if self.nodes < 2:
            yield Defect((), f"nodes must be at least 2, got {self.nodes}")

    @property
    def period(self) -> int | None:  # type: ignore[override]
        return None if self.one_peer else 1

    def most_targets(self, rank: int) -> int:
        return 1 if self.one_peer else super().most_targets(rank)

    @cached_property
    def hops(self) -> list[int]:
        """The hops, in the order drawn; some may be equal."""
        hops: list[int] = generator(self.seed, "equi_topo").integers(1, self.nodes, size=self.shifts).tolist()
        return hops

    def edges(self, round: int) -> Iterable[tuple[int, int]]:
        n, hops = self.nodes, self.hops
        if not self.one_peer:
            return ((i, (i + hop) % n) for hop in set(hops) for i in range(n))
        random = generator(self.seed, "equi_topo_round", round)
        hop, start = hops[random.integers(len(hops))], int(random.integers(n))
        if self.directed:
            return ((i, (i + hop) % n) for i in range(n))
        return self._pairs(hop, start)

    def _pairs(self, hop: int, start: int) -> Iterable[tuple[int, int]]:
        n, paired = self.nodes, [False] * self.nodes
        for i in ((start + k) % n for k in range(n)):
            j = (i + hop) % n
            if not paired[i] and not paired[j]:
                paired[i] = paired[j] = True
                yield i, j

    def weights(self, rank: int, round: int) -> dict[int, float]:
        n, most = self.nodes, (self.nodes - 1) / self.nodes
        if self.one_peer:
            return dict.fromkeys(self.sources(rank, round), self.eta * most)
        weights = dict.fromkeys(self.sources(rank, round), 0.0)
        ways = (1,) if self.directed else (1, -1)
        for hop in self.hops:
            for way in ways:
                weights[(rank - way * hop) % n] += most / len(self.hops) / len(ways)
        return weights


@GRAPHS.register("partial_participation")
@dataclass(frozen=True)
class PartialParticipation(Redrawn):
    """A random regular graph, of which a node is awake in a round with a probability (McMahan et al., 2017).

    Nodes that are awake train, and exchange with their neighbors that are awake; the others rest and keep
    their models.
    """

    degree: NonNegative
    probability: Probability

    has_rests = True

    def defects(self) -> Iterator[Defect]:
        yield from Regular(self.nodes, self.degree).defects()

    def edges(self, round: int) -> Pairs:
        awake = self.awake(round)
        return self._all[awake[self._all].all(1)]

    def trains(self, rank: int, round: int) -> bool:
        return bool(self.awake(round)[rank])

    @cached_property
    def awake(self) -> Callable[[int], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Returns which nodes are awake in a round, shape (n,)."""
        return lru_cache(kept_rounds(self.nodes))(
            lambda round: generator(self.seed, name_of(self), round).random(self.nodes) < self.probability
        )

    @cached_property
    def _all(self) -> Pairs:
        whole = Regular(self.nodes, self.degree, seed=self.seed)
        return np.array([*whole.edges()], np.int64).reshape(-1, 2)


@GRAPHS.register("teleport", "teleportation")
@dataclass(frozen=True)
class Teleport(Redrawn):
    """Directed: a few random nodes train and mix, then their models move (Takezawa and Stich, ICLR 2025).

    In each round other `active` nodes have the models, and make the local steps. Node S_t+1[i] replaces its
    model by sum_j w_ij y_j over the nodes S_t[j] that are neighbors in `topology`: mixing and moving in one
    exchange. So a round costs the same for every n. The other nodes keep the models that they had when they
    were active.
    """

    active: Positive
    topology: Literal["ring", "fully_connected", "exponential"] = "ring"

    directed = True
    has_weights = True
    has_rests = True

    def defects(self) -> Iterator[Defect]:
        if self.active > self.nodes:
            yield Defect((), f"active must be at most nodes, got {self.active} of {self.nodes}")

    def trains(self, rank: int, round: int) -> bool:
        return rank in self.places(round)

    @cached_property
    def places(self) -> Callable[[int], dict[int, int]]:
        """The place in the topology of each active node of a round, by rank."""
        return lru_cache(kept_rounds(self.nodes))(self._places)

    def _places(self, round: int) -> dict[int, int]:
        random = generator(self.seed, name_of(self), round)
        chosen = random.choice(self.nodes, self.active, replace=False).tolist()
        return {rank: place for place, rank in enumerate(chosen)}

    def edges(self, round: int) -> Pairs:
        senders, receivers = list(self.places(round)), list(self.places(round + 1))
        pairs = [(senders[j], receivers[i]) for i, row in enumerate(self._rows) for j in row]
        return np.array(pairs, np.int64).reshape(-1, 2)

    def weights(self, rank: int, round: int) -> Weights:
        place = self.places(round + 1).get(rank)
        if place is None:
            return {}
        senders = list(self.places(round))
        return {senders[j]: weight for j, weight in self._rows[place].items() if senders[j] != rank}

    @cached_property
    def _rows(self) -> list[Weights]:
        """Returns the rows of W of the topology, by place."""
        inner: Graph = TOPOLOGIES[self.topology](self.active)
        mixing = Uniform() if inner.directed else MetropolisHastings()
        return [mixing.incoming(inner, place, 0) for place in range(self.active)]


@GRAPHS.register("matcha")
@dataclass(frozen=True)
class Matcha(RedrawnGraph):
    """Matchings of a graph file, each with a probability of its own (Wang et al., ICC 2019, MATCHA).

    The edges are colored, and those of a color are active together; `budget` is the expected share of all
    colors in a round. The probabilities maximize the second eigenvalue of the expected Laplacian, and the
    weight alpha of an active edge minimizes `rho`, the largest eigenvalue of E[W^T W] - J. So the expected
    squared disagreement shrinks in a round by rho or more.
    """

    path: str
    budget: Fraction
    seed: int = SEED

    has_weights = True

    @property
    def num_nodes(self) -> int:
        return len(self._base)

    def edges(self, round: int) -> Pairs:
        active = generator(self.seed, name_of(self), round).random(len(self.matchings)) < self.probabilities
        chosen = [pairs for pairs, is_active in zip(self.matchings, active, strict=True) if is_active]
        return np.concatenate([np.empty((0, 2), np.int64), *chosen])

    def weights(self, rank: int, round: int) -> Weights:
        return dict.fromkeys(self.sources(rank, round), self.alpha)

    def partners(self, rank: int) -> set[int]:
        return set(self._base[rank])

    def most_targets(self, rank: int) -> int:
        return len(self._base[rank])

    @cached_property
    def _base(self) -> Adjacency:
        return read_graph(self.path)

    @cached_property
    def matchings(self) -> list[Pairs]:
        """The edges of each color."""
        import networkx  # type: ignore[import-untyped]

        edges = [(i, j) for i, targets in enumerate(self._base) for j in targets if i < j]
        if not edges:
            raise GraphError(f"{self.path}: no edge to color; {name_of(self)} needs one")
        lines = networkx.line_graph(networkx.Graph(edges))
        colors = networkx.greedy_color(lines, strategy="DSATUR")
        by_color: list[list[tuple[int, int]]] = [[] for _ in range(len(set(colors.values())))]
        for i, j in edges:
            by_color[colors[(i, j)] if (i, j) in colors else colors[(j, i)]].append((i, j))
        return [np.array(pairs, np.int64).reshape(-1, 2) for pairs in by_color]

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """How likely each matching is active, by projected supergradients, within a few thousandths of the
        largest second eigenvalue. Each stage starts from the best so far, with half the step length.
        """
        best, most = np.full(len(self.matchings), self.budget), 0.0
        for stage in range(SUPERGRADIENT_STAGES if self.budget < 1 else 0):
            chosen = best
            for _ in range(STAGE_STEPS):
                values, vectors = np.linalg.eigh(np.tensordot(chosen, self._laplacians, 1))
                if values[1] > most + GAIN:
                    best, most = chosen, values[1]
                slope = np.einsum("i,kij,j->k", vectors[:, 1], self._laplacians, vectors[:, 1])
                length = np.linalg.norm(slope - slope.mean())
                if length < GAIN:
                    return best
                step = slope / length / 2 ** (stage + 1)
                chosen = _onto_budget(chosen + step, self.budget * len(chosen))
        return best

    @cached_property
    def _laplacians(self) -> NDArray[np.float64]:
        """The Laplacian of each matching, shape (colors, n, n)."""
        laplacians = np.zeros((len(self.matchings), self.num_nodes, self.num_nodes))
        for laplacian, pairs in zip(laplacians, self.matchings, strict=True):
            i, j = pairs.T
            laplacian[i, j] = laplacian[j, i] = -1
            laplacian[i, i] = laplacian[j, j] = 1
        return laplacians

    @cached_property
    def _best(self) -> tuple[float, float]:
        """Returns alpha and rho: rho is convex in alpha, so thirds of an interval close in on its minimum."""
        p, n = self.probabilities, self.num_nodes
        mean = np.tensordot(p, self._laplacians, 1)
        # A matching has L^2 = 2 L, and matchings are drawn independently.
        square = mean @ mean + 2 * np.tensordot(p * (1 - p), self._laplacians, 1)

        def rho(alpha: float) -> float:
            return float(np.linalg.eigvalsh(np.eye(n) - 2 * alpha * mean + alpha**2 * square - 1 / n)[-1])

        low, high = 0.0, 1.0
        while high - low > GAIN:
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if rho(left) < rho(right) else (left, high)
        return low, rho(low)

    @property
    def alpha(self) -> float:
        """The weight of an active edge."""
        return self._best[0]

    @property
    def rho(self) -> float:
        """The expected factor of the squared disagreement in a round, at most."""
        return self._best[1]


def _onto_budget(p: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """The nearest probabilities of that sum, by bisection of the shift."""
    low, high = -p.max() - 1, 2 - p.min()
    while high - low > GAIN:
        shift = (low + high) / 2
        low, high = (shift, high) if np.clip(p + shift, 0, 1).sum() < total else (low, shift)
    nearest: NDArray[np.float64] = np.clip(p + high, 0, 1)
    return nearest
