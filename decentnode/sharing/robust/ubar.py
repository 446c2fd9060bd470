"""UBAR: neighbors are believed that are near and whose model is no worse on own samples."""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.errors import RunFailed
from decentnode.graph.base import View
from decentnode.options import Fraction
from decentnode.sharing.base import Requirements
from decentnode.sharing.robust.base import Models, Robust, gram


@SHARINGS.register("ubar")
@dataclass
class Ubar(Robust):
    """Tests near models on own samples (UBAR: Guo et al., 2020, Alg. 1).

    N1 = the ceil(rho deg) neighbors nearest to y_i;   N2 = those of N1 with loss(y_j) <= loss(y_i)
    x_i <- alpha y_i + (1 - alpha) mean of y_j over N2

    Where N2 is empty it is the one of N1 with the smallest loss. The loss is that of a minibatch of the
    node's own training samples, so a round costs rho deg + 1 further forward passes.
    """

    requirements = Requirements(local_loss=True)
    promises = replace(Robust.promises, wire="deg * C(d)")

    rho: Fraction = 0.4
    alpha: Fraction = 0.5

    def combine(self, models: Models, view: View, out: Tensor) -> None:
        if (local_loss := self.setup.local_loss) is None:
            raise RunFailed("ubar has no samples to test models on")
        weights, ranks = np.eye(len(models))[0], list(models)
        near = np.argsort(np.diagonal(gram(models))[1:], kind="stable")[: ceil(self.rho * (len(models) - 1))]
        if len(near):
            loss = {k: local_loss(models[ranks[k]], view.round) for k in (0, *(near + 1).tolist())}
            losses = np.array([loss[k] for k in (near + 1).tolist()])
            better = near[losses <= loss[0]] + 1
            chosen = better if len(better) else near[[np.nanargmin(losses)]] + 1
            weights[0] = self.alpha
            weights[chosen] = (1 - self.alpha) / len(chosen)
        self.add_up(models, weights, out)
