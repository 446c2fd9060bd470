"""The geometric median of models, found from their products alone."""

from dataclasses import dataclass

import numpy as np

from decentnode.core.registry import SHARINGS
from decentnode.options import Positive, PositiveFloat
from decentnode.sharing.robust.base import Numbers, Selection, squared_distances

LARGEST = 1e307
"""Models whose squared distance from the first one is larger are left out: sums of such numbers overflow."""


@SHARINGS.register("geometric_median", "geo_med")
@dataclass
class GeometricMedian(Selection):
    """The point with the smallest sum of distances to all models (Weiszfeld, 1937; Minsker, 2015).

    z <- sum_k b_k y_k / sum_k b_k,   b_k = a_k / max(smoothing, |y_k - z|)

    The steps start from the weighted mean of all models, or of some that are nearest to the model in the
    middle: from the mean with the least sum of distances, which no step makes larger. So z stays where the
    honest models are, however far away wrong ones and however few the steps are. With a weight d < 1/2 of
    wrong models, |z - h| <= (2 sum_honest a_k |y_k - h| + smoothing / 2) / (1 - 2 d) for each honest model h.
    From the mean of all, a wrong model at the distance D would pull z by about D (d / (1 - d))^steps.

    z is a weighted sum of the models, so distances follow from their Gram matrix and a step costs no pass
    over them. All a_k are equal.
    """

    steps: Positive = 100
    smoothing: PositiveFloat = 1e-6

    def least(self) -> int:
        return 1

    def weigh(self, products: Numbers, weights: Numbers) -> Numbers:
        return self._weiszfeld(products, np.full(len(products), 1 / len(products)))

    def _weiszfeld(self, products: Numbers, prior: Numbers) -> Numbers:
        usable = np.diagonal(products) < LARGEST
        products = np.where(usable[:, None] & usable[None, :], products, 0.0)
        start = prior * usable
        if not start.any():
            start[0] = 1.0
        weights = _least_mean(products, start)
        for _ in range(self.steps):
            scaled = start / np.maximum(self.smoothing, _distances(products, weights[None])[0])
            weights = scaled / scaled.sum()
        return weights


def _distances(products: Numbers, mixes: Numbers) -> Numbers:
    """The distances of all models from mixes of them, shape (mixes, models)."""
    within = mixes @ products
    squares = np.diagonal(products) - 2 * within + (within * mixes).sum(1, keepdims=True)
    distances: Numbers = np.sqrt(np.maximum(squares, 0.0))
    return distances


def _least_mean(products: Numbers, prior: Numbers) -> Numbers:
    """The weights of the mean with the least sum of distances: of all models, or of those near the middle."""
    apart = np.sqrt(squared_distances(products))
    middle = np.argmin(np.where(prior > 0, apart @ prior, np.inf))
    near = np.argsort(np.argsort(np.where(prior > 0, apart[middle], np.inf), kind="stable"))
    counted = np.count_nonzero(prior)
    means = prior * (near < np.arange(counted, 0, -1)[:, None])
    means /= means.sum(1, keepdims=True)
    least: Numbers = means[np.argmin(_distances(products, means) @ prior)]
    return least


@SHARINGS.register("rfa", "smoothed_weiszfeld")
@dataclass
class Rfa(GeometricMedian):
    """The smoothed geometric median in a few steps (RFA: Pillutla et al., IEEE TSP 2022, Alg. 2).

    As `geometric_median`, with a_k = w_ik.
    """

    steps: Positive = 8
    smoothing: PositiveFloat = 0.1

    def weigh(self, products: Numbers, weights: Numbers) -> Numbers:
        return self._weiszfeld(products, weights)
