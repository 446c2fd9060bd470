"""What all robust rules have in common: which models they see, and how far those are apart."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import name_of
from decentnode.core.rng import generator
from decentnode.core.vector import accumulator
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.options import NonNegative, Positive
from decentnode.sharing.base import Incoming
from decentnode.sharing.blocks.weighted_sum import weighted_sum
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.robust.order import pieces_of
from decentnode.transforms.chain import Chain

Numbers = NDArray[np.float64]
Models = Mapping[int, Tensor]
"""The models that a rule mixes by rank, the own one first, each of shape (d,)."""


@dataclass
class Robust(Gossip):
    """Gossip whose mix limits what a wrong model of a neighbor can do.

    Signals are whole models: transforms that select send the own coordinates in place of those left out. A
    model that is not finite is refused before the rule sees it.
    """

    promises = replace(
        Gossip.promises,
        by_coordinate=False,
        overlaps=False,
        takes_correction=False,
        takes_strength=False,
        about_mean="",
        limits_models=True,
    )

    _shares: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """The weight of each model in the last mix, by rank; coordinate-wise rules count watched ones alone."""

    def preserves_mean(self, chain: Chain) -> bool:
        return False

    @property
    def watched_weight(self) -> float | None:
        watched = self.setup.watched
        return sum(self._shares.get(rank, 0.0) for rank in watched) if watched and self._shares else None

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        models = self.models_to_mix(vector, incoming, view)
        self._sent = None
        self.refuse_not_finite(models, view)
        mixed = torch.empty_like(models[view.rank]) if self.chain.basis else out
        self.combine(models, view, mixed)
        if self.chain.basis:
            out.copy_(self.chain.from_basis(mixed, view.context(view.rank)))

    @abstractmethod
    def combine(self, models: Models, view: View, out: Tensor) -> None:
        """Writes the mix of these models to all of `out`, shape (d,), and sets their `shares`."""

    def add_up(self, models: Models, weights: Numbers, out: Tensor) -> None:
        """Writes the weighted sum of the models, in their order."""
        self._shares = dict(zip(models, weights.tolist(), strict=True))
        # A product of 0 and a large number may overflow in a half precision.
        weighted_sum([(w, x) for w, x in zip(weights.tolist(), models.values(), strict=True) if w], out)


def gram(models: Models) -> Numbers:
    """The products <x_j - x_i, x_k - x_i> of all models with the first one, x_i, float64, shape (m, m).

    Differences first: the distances of models that are close would vanish in the rounding of their norms.
    """
    origin, *others = models.values()
    wide = accumulator(origin.dtype)
    products = torch.zeros(len(models), len(models), dtype=torch.float64, device=origin.device)
    for start, *pieces in pieces_of(origin, *others) if others else ():
        apart = (torch.stack(pieces).to(wide) - start.to(wide)).double()
        products[1:, 1:] += apart @ apart.T
    gram_matrix: Numbers = products.cpu().numpy()
    return gram_matrix


def squared_distances(products: Numbers) -> Numbers:
    """Returns |x_j - x_k|^2 of all pairs, from their products; infinite where a product overflows."""
    squares = np.diagonal(products)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = squares[:, None] + squares[None, :] - 2 * products
    apart = np.nan_to_num(np.maximum(apart, 0.0), nan=np.inf, posinf=np.inf)
    np.fill_diagonal(apart, 0.0)
    return apart


@dataclass
class Aggregation(Robust):
    """A rule for a set of models of which `faults` may be wrong, all of the same weight.

    `before` replaces the models first. `nnm`: each by the mean of its m - f nearest ones, itself included
    (nearest neighbor mixing: Allouah et al., AISTATS 2023). `bucketing`: by the means of random groups of
    `bucket` models, the last one of what is left (Karimireddy et al., ICLR 2022, Alg. 1). A node that
    receives too few models for the rule keeps its own (`own`), or takes their plain mean (`mean`). With
    `refuse` a graph where that would happen is refused before the start, and a node that loses neighbors
    later keeps its own model.
    """

    promises = replace(Robust.promises, wire="deg * C(d)")

    faults: NonNegative = 1
    """The number f of neighbors of each node that may be wrong."""
    before: Literal["none", "nnm", "bucketing"] = "none"
    bucket: Positive = 2
    few: Literal["refuse", "own", "mean"] = "refuse"

    @abstractmethod
    def least(self) -> int:
        """The fewest models, the own one included, that the rule can be applied to."""

    @abstractmethod
    def aggregate(self, models: Models, mixes: Numbers | None, view: View, out: Tensor) -> None:
        """Writes the aggregate; `mixes`, shape (k, m): the rule's inputs as mixes of the m models."""

    def check(self, graph: WeightedGraph) -> None:
        super().check(graph)
        if self.few != "refuse":
            return
        for round in graph.graph.changes.rounds():
            for rank in range(graph.num_nodes):
                models = 1 + len(graph.graph.sources(rank, round))
                if self._inputs(models) < self.least():
                    raise BadInput(
                        f"{name_of(self)} with faults {self.faults} needs {self._needed()} models, and rank "
                        f"{rank} has {models} with its own; lower faults, add neighbors, or set few: own"
                    )

    def combine(self, models: Models, view: View, out: Tensor) -> None:
        count = len(models)
        if self._inputs(count) >= self.least():
            self.aggregate(models, self._mixes(models, view), view, out=out)
            return
        weights = np.full(count, 1 / count) if self.few == "mean" else np.eye(count)[0]
        self.add_up(models, weights, out)

    def _inputs(self, models: int) -> int:
        return ceil(models / self.bucket) if self.before == "bucketing" else models

    def _needed(self) -> int:
        return self.least() if self.before != "bucketing" else (self.least() - 1) * self.bucket + 1

    def _mixes(self, models: Models, view: View) -> Numbers | None:
        count = len(models)
        if self.before == "nnm":
            order = np.argsort(squared_distances(gram(models)), axis=1, kind="stable")
            kept = max(1, count - self.faults)
            mixes = np.zeros((count, count))
            np.put_along_axis(mixes, order[:, :kept], 1 / kept, axis=1)
            return mixes
        if self.before == "bucketing":
            order = generator(self.setup.seed, "bucketing", view.round, view.rank).permutation(count)
            mixes = np.zeros((self._inputs(count), count))
            groups = np.split(order, range(self.bucket, count, self.bucket))
            for group, row in zip(groups, mixes, strict=True):
                row[group] = 1 / len(group)
            return mixes
        return None


@dataclass
class Selection(Aggregation):
    """A rule whose result is a weighted sum of its inputs, which it finds from their distances alone."""

    @abstractmethod
    def weigh(self, products: Numbers, weights: Numbers) -> Numbers:
        """The weight of each input, shape (k,), from their Gram matrix, (k, k).

        `weights`: those of W, for rules that use them.
        """

    def aggregate(self, models: Models, mixes: Numbers | None, view: View, out: Tensor) -> None:
        products = gram(models)
        if mixes is None:
            graph_weights = np.array([view.weights.get(j, 0.0) for j in models])
            if not graph_weights.any():  # it is alone, and W gives it no weight
                graph_weights[0] = 1.0
            weights = self.weigh(products, graph_weights / graph_weights.sum())
        else:
            # A mix with a model that is infinitely far is as far, and 0 times infinity is not a number.
            far = ~np.isfinite(np.diagonal(products))
            inputs = mixes @ np.where(far[:, None] | far[None, :], 0.0, products) @ mixes.T
            is_far = mixes @ far > 0
            inputs[is_far[:, None] | is_far[None, :]] = np.inf
            weights = self.weigh(inputs, np.full(len(mixes), 1 / len(mixes))) @ mixes
        self.add_up(models, weights, out)
