"""BALANCE: neighbors are believed that are near to the own model."""

from dataclasses import dataclass, replace
from math import exp

import numpy as np
import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import Fraction, NonNegativeFloat, Positive, PositiveFloat
from decentnode.sharing.robust.base import Models, Robust, gram


@SHARINGS.register("balance")
@dataclass
class Balance(Robust):
    """Mixes the neighbors' models that are near to the own one (BALANCE: Fang et al., CCS 2024, Alg. 1).

    A_i = those j with |y_i - y_j| <= limit exp(-kappa t / T) |y_i|
    x_i <- alpha y_i + (1 - alpha) mean of y_j over A_i;   y_i where A_i is empty

    The reach shrinks with the round t. T is `horizon`, usually the rounds of the run.
    """

    promises = replace(Robust.promises, wire="deg * C(d)")

    limit: PositiveFloat = 0.3
    """gamma in the paper."""
    kappa: NonNegativeFloat = 1.0
    alpha: Fraction = 0.5
    horizon: Positive = 100

    def combine(self, models: Models, view: View, out: Tensor) -> None:
        reach = self.limit * exp(-self.kappa * view.round / self.horizon)
        norm = float(torch.linalg.vector_norm(models[view.rank].double()))
        accepted = np.sqrt(np.diagonal(gram(models))) <= reach * norm
        accepted[0] = False
        weights = accepted * (1 - self.alpha) / max(1, accepted.sum())
        weights[0] = self.alpha if accepted.any() else 1.0
        self.add_up(models, weights, out)
