"""Cliques of nodes whose labels together look like those of all nodes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from decentnode.core.registry import GRAPHS
from decentnode.core.rng import generator
from decentnode.graph.base import SEED
from decentnode.graph.families import Edges, Family
from decentnode.options import NonNegative, Positive

T = TypeVar("T")
Clique = list[int]
Counts = NDArray[np.float64]
GAIN = 1e-12
"""A swap that gains less is a rounding error."""


@GRAPHS.register("d_cliques")
@dataclass
class DCliques(Family):
    """Cliques with nearly the labels of all nodes, linked by few edges (Bellet et al., SRDS 2022, Alg. 1).

    The skew of a clique C is sum_l |p_C(y = l) - p(y = l)|, where p_C and p are means of the nodes' label
    distributions: in a mix a node has the same weight whatever its number of samples. Cliques are drawn at
    random. Then, `steps` times, two random cliques swap two of their nodes, drawn from the swaps that
    decrease the sum of both skews. With `between`, edges link cliques as in Section 6.3: each clique with the
    next one, with all others, with those 1, 2, 4, 8, ... and 2, 3, 5, 9, ... further in both directions, or,
    fractal, groups of `clique_size` cliques with each other, then groups of such groups. An edge ends at the
    node of its clique that has the fewest of them. Until the labels are known, cliques are the random ones.
    """

    nodes: Positive
    clique_size: Positive = 10
    """Most nodes of a clique; sizes differ by 1 at most."""
    between: Literal["ring", "fractal", "small_world", "fully_connected"] = "fully_connected"
    steps: NonNegative = 1000
    seed: int = SEED
    histograms: tuple[tuple[int, ...], ...] = field(default=(), init=False, repr=False)
    """The number of samples of each label, for each rank; empty: unknown."""

    needs_labels = True

    @property
    def num_nodes(self) -> int:
        return self.nodes

    def with_labels(self, histograms: Sequence[Sequence[int]]) -> "DCliques":
        known = replace(self)
        known.histograms = tuple(map(tuple, histograms))
        return known

    def edges(self) -> Edges:
        cliques = self.cliques()
        for clique in cliques:
            yield from ((i, j) for i in clique for j in clique if i < j)
        yield from self._between(cliques)

    def cliques(self) -> list[Clique]:
        """The ranks of each clique (Algorithm 1)."""
        random, count = generator(self.seed, "d_cliques"), -(-self.nodes // self.clique_size)
        cliques = [part.tolist() for part in np.array_split(random.permutation(self.nodes), count)]
        if not self.histograms or count == 1:
            return cliques
        held = _shares(np.array(self.histograms, np.float64))
        p = _shares(held.sum(0))
        for _ in range(self.steps):
            first_clique, second_clique = (cliques[k] for k in random.choice(count, 2, replace=False))
            gains = _gains(held[first_clique], held[second_clique], p)
            if len(better := np.argwhere(gains > GAIN)):
                i, j = better[random.integers(len(better))]
                first_clique[i], second_clique[j] = second_clique[j], first_clique[i]
        return cliques

    def _between(self, cliques: list[Clique]) -> Iterator[tuple[int, int]]:
        ends: Counter[int] = Counter()

        def joined(first_clique: Clique, second_clique: Clique) -> tuple[int, int]:
            i, j = (min(clique, key=lambda rank: ends[rank]) for clique in (first_clique, second_clique))
            ends.update((i, j))
            return i, j

        if self.between == "fractal":
            while len(cliques) > 1:
                groups = [cliques[k : k + self._group] for k in range(0, len(cliques), self._group)]
                yield from (joined(*pair) for group in groups for pair in _pairs(group))
                cliques = [[rank for clique in group for rank in clique] for group in groups]
            return
        yield from (joined(cliques[a], cliques[b]) for a, b in self._linked(len(cliques)))

    @property
    def _group(self) -> int:
        return max(2, self.clique_size)

    def _linked(self, count: int) -> Iterator[tuple[int, int]]:
        """The positions of cliques that an edge links; a pair may have several."""
        if self.between == "ring":
            yield from ((k, (k + 1) % count) for k in range(count if count > 2 else count - 1))
        elif self.between == "fully_connected":
            yield from _pairs(range(count))
        else:
            offsets = [(1 << x) + k for x in range((count - 1).bit_length()) for k in (0, 1)]
            ways = (sign * offset for offset in offsets for sign in (-1, 1))
            hops = [hop for hop in ways if hop % count]
            yield from ((k, (k + hop) % count) for k in range(count) for hop in hops)


def _pairs(items: Sequence[T]) -> Iterator[tuple[T, T]]:
    return ((item, earlier) for k, item in enumerate(items) for earlier in items[:k])


def skew(held: Counts, clique: Sequence[int]) -> float:
    """sum_l |p_C(y = l) - p(y = l)|; `held` has the samples of each rank by label, shape (n, labels)."""
    held = _shares(held)
    return float(_skews(held[clique].sum(0), _shares(held.sum(0))))


def _shares(counts: Counts) -> Counts:
    shares: Counts = counts / np.maximum(counts.sum(-1, keepdims=True), 1.0)
    return shares


def _skews(counts: Counts, p: Counts) -> Counts:
    """The skews of cliques with these sums of their nodes' distributions, shape (..., labels)."""
    skews: Counts = np.abs(_shares(counts) - p).sum(-1)
    return skews


def _gains(first_counts: Counts, second_counts: Counts, p: Counts) -> Counts:
    """How much smaller the sum of both skews is after a swap of each pair of nodes, shape (first, second)."""
    moved = second_counts[None] - first_counts[:, None]
    a, b = first_counts.sum(0), second_counts.sum(0)
    return _skews(a, p) + _skews(b, p) - _skews(a + moved, p) - _skews(b - moved, p)
