"""ClippedGossip: a neighbor moves a model only so far."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import NonNegative, PositiveFloat
from decentnode.sharing.robust.base import Models, Numbers, Robust, gram


@SHARINGS.register("clipped_gossip", "centered_clipping", "self_centered_clipping", "scc")
@dataclass
class ClippedGossip(Robust):
    """Clips the differences of the neighbors' models (ClippedGossip: He et al., 2022, Alg. 1).

    x_i <- y_i + sum_j w_ij clip(y_j - y_i, tau),   clip(v, tau) = v min(1, tau / |v|)

    Without `radius` tau_i adapts: the distance of the neighbor with rank `faults` + 1 from the far end. So
    the `faults` farthest models count as if they stood at its distance.
    """

    promises = replace(Robust.promises, wire="deg * C(d)")

    radius: PositiveFloat | Literal["adaptive"] = "adaptive"
    faults: NonNegative = 1
    """The neighbors that may be wrong, for the adaptive radius."""

    def combine(self, models: Models, view: View, out: Tensor) -> None:
        distances = np.sqrt(np.diagonal(gram(models)))
        graph_weights = np.array([view.weights[j] for j in models])
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.where(distances > 0, np.minimum(1.0, self._radius(distances) / distances), 1.0)
        weights = graph_weights * np.where(np.isfinite(reach), reach, 0.0)
        weights[0] += 1 - weights.sum()
        self.add_up(models, weights, out)

    def _radius(self, distances: Numbers) -> float:
        if self.radius != "adaptive":
            return float(self.radius)
        ascending = np.sort(distances[1:])
        # With no more neighbors than may be wrong, none is believed.
        return float(ascending[-1 - self.faults]) if self.faults < len(ascending) else 0.0
