"""Graphs drawn at random, the same on every machine for the same seed, and always connected."""

from abc import abstractmethod
from dataclasses import dataclass, field
from itertools import combinations
from math import log

from decentnode.core.registry import GRAPHS
from decentnode.core.rng import generator, key
from decentnode.errors import GraphError
from decentnode.graph.base import neighbor_lists
from decentnode.graph.connectivity import is_connected
from decentnode.graph.families import Edges, Sized
from decentnode.options import NonNegative, Positive, Probability

ATTEMPTS = 100

# networkx is imported where it is used: most nodes read a graph file and start without it.


@dataclass(frozen=True)
class Drawn(Sized):
    """A family that is drawn until the graph is connected, at most `ATTEMPTS` times."""

    seed: int = field(default=0, kw_only=True)

    def broken_rules(self) -> list[str]:
        """Why no such graph exists, one line for each reason; empty when one does."""
        return []

    @abstractmethod
    def draw(self, attempt: int) -> Edges:
        """The edges of one such graph, connected or not; depends only on seed and attempt."""

    @abstractmethod
    def advice(self) -> str:
        """An option that makes a connected graph likely."""

    def edges(self) -> Edges:
        broken = self.broken_rules()
        if broken:
            raise GraphError(*broken)
        for attempt in range(ATTEMPTS):
            edges = list(self.draw(attempt))
            if is_connected(neighbor_lists(self.nodes, edges)):
                return edges
        raise GraphError(f"none of {ATTEMPTS} draws of {self} was connected; {self.advice()}")


@GRAPHS.register("regular")
@dataclass(frozen=True)
class Regular(Drawn):
    """A random connected graph where every node has `degree` neighbors (Steger and Wormald, 1999)."""

    degree: NonNegative

    def broken_rules(self) -> list[str]:
        n, d = self.nodes, self.degree
        rules = {
            f"degree must be below nodes, got degree {d} for {n} nodes": d >= n,
            f"nodes * degree must be even, got {n} * {d}": n * d % 2 == 1,
            f"degree must be at least 2 to connect {n} nodes, got {d}": d < min(2, n - 1),
        }
        return [f"regular: {rule}" for rule, broken in rules.items() if broken]

    def advice(self) -> str:
        return "take another seed or a higher degree"

    def draw(self, attempt: int) -> Edges:
        n, d = self.nodes, self.degree
        if d == 2:  # the usual draw has many small cycles; a connected graph is one cycle through all
            order = generator(self.seed, "regular", attempt).permutation(n).tolist()
            return zip(order, order[1:] + order[:1], strict=True)
        if d > n // 2:  # a draw would hardly ever end; the complement of a random graph is as random
            left_out = {frozenset(edge) for edge in self._match(n - 1 - d, attempt)}
            return (edge for edge in combinations(range(n), 2) if frozenset(edge) not in left_out)
        return self._match(d, attempt)

    def _match(self, degree: int, attempt: int) -> Edges:
        import networkx  # type: ignore[import-untyped]

        seed = key(self.seed, "regular", attempt)
        edges: Edges = networkx.random_regular_graph(degree, self.nodes, seed=seed).edges
        return edges


@GRAPHS.register("small_world")
@dataclass(frozen=True)
class SmallWorld(Drawn):
    """A ring lattice of even `degree`, each edge rewired with a probability (Watts and Strogatz, 1998)."""

    degree: Positive
    rewire: Probability

    def broken_rules(self) -> list[str]:
        n, d = self.nodes, self.degree
        rules = {
            f"degree must be below nodes, got degree {d} for {n} nodes": d >= n,
            f"degree must be even, half of it on each side, got {d}": d % 2 == 1,
        }
        return [f"small_world: {rule}" for rule, broken in rules.items() if broken]

    def advice(self) -> str:
        return "take a higher degree or a lower rewire"

    def draw(self, attempt: int) -> Edges:
        import networkx

        seed = key(self.seed, "small_world", attempt)
        edges: Edges = networkx.watts_strogatz_graph(self.nodes, self.degree, self.rewire, seed=seed).edges
        return edges


@GRAPHS.register("erdos_renyi")
@dataclass(frozen=True)
class ErdosRenyi(Drawn):
    """Each pair is an edge with the same probability, drawn until connected (Erdos and Renyi, 1959)."""

    probability: Probability

    def advice(self) -> str:
        return f"take a probability above ln(n)/n = {log(self.nodes) / self.nodes:.3g}"

    def draw(self, attempt: int) -> Edges:
        import networkx

        seed = key(self.seed, "erdos_renyi", attempt)
        edges: Edges = networkx.fast_gnp_random_graph(self.nodes, self.probability, seed=seed).edges
        return edges
