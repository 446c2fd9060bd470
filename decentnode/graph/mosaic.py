"""A random graph for each fragment of a model."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from decentnode.core.registry import GRAPHS
from decentnode.core.rng import key
from decentnode.graph.base import Pairs, as_pairs
from decentnode.graph.redrawn import EpidemicOracle


@GRAPHS.register("mosaic")
@dataclass(frozen=True)
class MosaicGraph(EpidemicOracle):
    """An `epidemic_oracle` for each fragment of a model, for the scheme `mosaic` (Biswas et al., 2026).

    Edges are those on which any fragment travels, so that a node has up to fragments * degree neighbors in a
    round, (n - 1) (1 - (1 - s/(n - 1))^K) on average for K fragments and degree s. With one fragment it is
    `epidemic_oracle` itself. Under another scheme it is a random graph like others.
    """

    fragments: Annotated[int, Ge(1), Le(1000)]

    @property
    def expected_factor(self) -> float | None:
        return None

    def most_targets(self, rank: int) -> int:
        return min(self.nodes - 1, self.fragments * self.degree)

    @cached_property
    def of_fragments(self) -> tuple[EpidemicOracle, ...]:
        """The graph of each fragment."""
        others = (key(self.seed, "fragment", k) for k in range(1, self.fragments))
        return tuple(EpidemicOracle(self.nodes, self.degree, seed=seed) for seed in (self.seed, *others))

    def edges(self, round: int) -> Pairs:
        return np.concatenate([as_pairs(graph.edges(round)) for graph in self.of_fragments])
