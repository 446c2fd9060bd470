"""Krum: the model that has the nearest others."""

from dataclasses import dataclass

import numpy as np

from decentnode.core.registry import SHARINGS
from decentnode.options import Positive
from decentnode.sharing.robust.base import Numbers, Selection, squared_distances


@SHARINGS.register("krum", multi_krum="select: M")
@dataclass
class Krum(Selection):
    """Takes the model with the smallest sum of squared distances to the nearest (Blanchard et al., 2017).

    s_j = sum of |y_j - y_k|^2 over the m - f - 2 models y_k nearest to y_j
    x_i <- the mean of the `select` models with the smallest s_j

    `select` above 1 is Multi-Krum. Needs at least 2 f + 3 models, and `select` + f: f of the models that are
    kept last may be wrong, and one of them would have a share of the mean whatever its size.
    """

    select: Positive = 1

    def least(self) -> int:
        return max(2 * self.faults + 3, self.select + self.faults)

    def weigh(self, products: Numbers, weights: Numbers) -> Numbers:
        count = len(products)
        apart = squared_distances(products)
        np.fill_diagonal(apart, -1.0)  # itself comes first, and is left out
        nearest = np.sort(apart, axis=1)[:, 1 : count - self.faults - 1]
        chosen = np.argsort(nearest.sum(1), kind="stable")[: self.select]
        weights = np.zeros(count)
        weights[chosen] = 1 / len(chosen)
        return weights
