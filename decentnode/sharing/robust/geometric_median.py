"""The geometric median of models, found from their products alone."""

from dataclasses import dataclass

import numpy as np

from decentnode.core.registry import SHARINGS
from decentnode.options import Positive, PositiveFloat
from decentnode.sharing.robust.base import Numbers, Selection


@SHARINGS.register("geometric_median")
@dataclass
class GeometricMedian(Selection):
    """The point with the smallest sum of distances to all models (Weiszfeld, 1937; Minsker, 2015).

    z <- sum_k b_k y_k / sum_k b_k,   b_k = a_k / max(smoothing, |y_k - z|)

    The steps start from the weighted mean. z is a weighted sum of the models, so distances follow from their
    Gram matrix and a step costs no pass over them. All a_k are equal.
    """

    steps: Positive = 100
    smoothing: PositiveFloat = 1e-6

    def least(self) -> int:
        return 1

    def weigh(self, products: Numbers, weights: Numbers) -> Numbers:
        return self._weiszfeld(products, np.full(len(products), 1 / len(products)))

    def _weiszfeld(self, products: Numbers, prior: Numbers) -> Numbers:
        usable = np.isfinite(np.diagonal(products))
        products = np.where(usable[:, None] & usable[None, :], products, 0.0)
        start = prior * usable
        weights: Numbers = start / start.sum()
        for _ in range(self.steps):
            squares = np.diagonal(products) - 2 * products @ weights + weights @ products @ weights
            scaled = start / np.maximum(self.smoothing, np.sqrt(np.maximum(squares, 0.0)))
            weights = scaled / scaled.sum()
        return weights


@SHARINGS.register("rfa")
@dataclass
class Rfa(GeometricMedian):
    """The smoothed geometric median in a few steps (RFA: Pillutla et al., IEEE TSP 2022, Alg. 2).

    As `geometric_median`, with a_k = w_ik.
    """

    steps: Positive = 8
    smoothing: PositiveFloat = 0.1

    def weigh(self, products: Numbers, weights: Numbers) -> Numbers:
        return self._weiszfeld(products, weights)
