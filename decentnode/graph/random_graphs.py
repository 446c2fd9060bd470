"""Graphs drawn at random, the same on every machine for the same seed, and always connected."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import log

from decentnode.core.registry import GRAPHS, name_of
from decentnode.core.rng import generator, key
from decentnode.errors import Defect, GraphError, refuse
from decentnode.graph.base import SEED, neighbor_lists, refuse_dense
from decentnode.graph.connectivity import is_connected
from decentnode.graph.families import Edges, Sized
from decentnode.options import NonNegative, Positive, Probability

ATTEMPTS = 100

# networkx is imported where it is used: most nodes read a graph file and start without it.


@dataclass(frozen=True)
class Drawn(Sized):
    """A family that is drawn until the graph is connected, at most `ATTEMPTS` times."""

    seed: int = field(default=SEED, kw_only=True)

    def defects(self) -> Iterator[Defect]:
        """Yields the reasons why no such graph exists."""
        yield from ()

    @property
    @abstractmethod
    def mean_degree(self) -> float:
        """How many neighbors a node has, about."""

    @abstractmethod
    def draw(self, attempt: int) -> Edges:
        """The edges of one such graph, connected or not; depends only on seed and attempt."""

    @abstractmethod
    def advice(self) -> str:
        """An option that makes a connected graph likely."""

    def edges(self) -> Edges:
        refuse((f"{name_of(self)}: {defect}" for defect in self.defects()), GraphError)
        refuse_dense(self.nodes * self.mean_degree / 2)
        for attempt in range(ATTEMPTS):
            edges = list(self.draw(attempt))
            if is_connected(neighbor_lists(self.nodes, edges)):
                return edges
        raise GraphError(f"none of {ATTEMPTS} draws of {self} was connected; {self.advice()}")

    def _by_networkx(self, draw: str, attempt: int, *arguments: float) -> Edges:
        import networkx  # type: ignore[import-untyped]

        seed = key(self.seed, name_of(self), attempt)
        edges: Edges = getattr(networkx, draw)(*arguments, seed=seed).edges
        return edges


@GRAPHS.register("regular", "random_regular", "k_regular")
@dataclass(frozen=True)
class Regular(Drawn):
    """A random connected graph where every node has `degree` neighbors (Steger and Wormald, 1999)."""

    degree: NonNegative

    def defects(self) -> Iterator[Defect]:
        n, d = self.nodes, self.degree
        if d >= n:
            yield Defect((), f"degree must be below nodes, got degree {d} for {n} nodes")
        if n * d % 2 == 1:
            yield Defect((), f"nodes * degree must be even, got {n} * {d}")
        if d < min(2, n - 1):
            yield Defect((), f"degree must be at least 2 to connect {n} nodes, got {d}")

    @property
    def mean_degree(self) -> float:
        return self.degree

    def advice(self) -> str:
        return "take another seed or a higher degree"

    def draw(self, attempt: int) -> Edges:
        n, d = self.nodes, self.degree
        if d == 2:  # the usual draw has many small cycles; a connected graph is one cycle through all
            order = generator(self.seed, "regular", attempt).permutation(n).tolist()
            return zip(order, order[1:] + order[:1], strict=True)
        if d > n // 2:  # a draw would hardly ever end; the complement of a random graph is as random
            complement = self._by_networkx("random_regular_graph", attempt, n - 1 - d, n)
            left_out = {frozenset(edge) for edge in complement}
            return (edge for edge in combinations(range(n), 2) if frozenset(edge) not in left_out)
        return self._by_networkx("random_regular_graph", attempt, d, n)


@GRAPHS.register("small_world", "watts_strogatz")
@dataclass(frozen=True)
class SmallWorld(Drawn):
    """A ring lattice of even `degree`, each edge rewired with a probability (Watts and Strogatz, 1998)."""

    degree: Positive
    rewire: Probability

    def defects(self) -> Iterator[Defect]:
        n, d = self.nodes, self.degree
        if d >= n:
            yield Defect((), f"degree must be below nodes, got degree {d} for {n} nodes")
        if d % 2 == 1:
            yield Defect((), f"degree must be even, half of it on each side, got {d}")

    @property
    def mean_degree(self) -> float:
        return self.degree

    def advice(self) -> str:
        return "take a higher degree or a lower rewire"

    def draw(self, attempt: int) -> Edges:
        return self._by_networkx("watts_strogatz_graph", attempt, self.nodes, self.degree, self.rewire)


@GRAPHS.register("erdos_renyi", "gnp", "er", "binomial")
@dataclass(frozen=True)
class ErdosRenyi(Drawn):
    """Each pair is an edge with the same probability, drawn until connected (Erdos and Renyi, 1959)."""

    probability: Probability

    @property
    def mean_degree(self) -> float:
        return self.probability * (self.nodes - 1)

    def advice(self) -> str:
        return f"take a probability above ln(n)/n = {log(self.nodes) / self.nodes:.3g}"

    def draw(self, attempt: int) -> Edges:
        return self._by_networkx("fast_gnp_random_graph", attempt, self.nodes, self.probability)
