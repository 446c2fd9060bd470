"""UBAR: neighbors are believed that are near and whose model is no worse on own samples."""

from dataclasses import dataclass, replace
from math import ceil, isfinite

import numpy as np
from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.core.registry import SHARINGS
from decentnode.errors import RunFailed, is_out_of_memory
from decentnode.graph.base import View
from decentnode.options import Fraction
from decentnode.sharing.base import Requirements
from decentnode.sharing.robust.base import Models, Robust, gram


@SHARINGS.register("ubar", "mozi")
@dataclass
class Ubar(Robust):
    """Tests near models on own samples (UBAR: Guo et al., 2020, Alg. 1).

    N1 = the ceil(rho deg) neighbors nearest to y_i;   N2 = those of N1 with loss(y_j) <= loss(y_i)
    x_i <- alpha y_i + (1 - alpha) mean of y_j over N2

    Where N2 is empty it is the one of N1 with the smallest loss. A model whose loss is not finite is in
    neither, and with no other the node keeps its own. The loss is that of a minibatch of the node's own
    training samples, so a round costs rho deg + 1 further forward passes.
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
            own_loss, losses = local_loss(models[view.rank], view.round), dict[int, float]()
            for k in (near + 1).tolist():
                try:
                    loss = local_loss(models[ranks[k]], view.round)
                except (ArithmeticError, ValueError, RuntimeError) as error:
                    if is_out_of_memory(error):
                        raise
                    # A network may check its numbers, and has just taken the own ones.
                    self.refuse(ranks[k], view, PayloadError(f"own samples cannot test it: {error}"))
                    continue
                if isfinite(loss):
                    losses[k] = loss
            better = [k for k, loss in losses.items() if loss <= own_loss]
            if chosen := better or sorted(losses, key=losses.__getitem__)[:1]:
                weights[0] = self.alpha
                weights[chosen] = (1 - self.alpha) / len(chosen)
        self.add_up(models, weights, out)
