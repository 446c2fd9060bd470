"""Epidemic Learning that waits for a time, not for peers."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import NonNegativeFloat, Positive
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage, Posts


@SHARINGS.register("epidemic_push", "el_local_timeout")
@dataclass
class EpidemicPush(AsyncSharing):
    """Pushes to random targets, and averages what has come after a while (EL-Local: De Vos et al., 2023).

    x <- (x + sum_j y_j) / (1 + number of y_j)        Algorithm 1, the uniform average

    After `every` local steps a node sends its model to `degree` random targets. It then waits for `timeout`
    seconds, and averages with the newest model of each peer that has arrived since its last average. It waits
    for no particular peer, and mixes models of earlier times, too. This is EL_Local_Timeout of decentralizepy
    (Dhasade et al., EuroMLSys 2023). The mean of all models is not kept. State: the models since the last
    average.
    """

    promises = replace(
        AsyncSharing.promises,
        about_mean="does not keep it: receivers average what arrives",
        wire="degree * C(d) per push",
    )
    state: ClassVar = (*AsyncSharing.state, "_models", "_collects")

    degree: Positive = 2
    timeout: NonNegativeFloat = 0.05
    """Seconds from a push to the average."""
    every: Positive = 1
    """Local steps between two pushes."""

    _due = math.inf
    """The time at which it averages; infinity: the clock was not read since the push."""

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._models: dict[int, Tensor] = {}
        self._collects = False
        """Whether it has pushed, and not averaged since."""

    def may_step(self, now: float) -> bool:
        if not self._collects:
            return True
        self._due = min(self._due, now + self.timeout)
        return now >= self._due

    def due(self, now: float) -> float:
        return self._due

    def before_step(self, vector: Tensor, view: View) -> Posts:
        if self._collects:
            for j in sorted(self._models):
                vector.add_(self._models[j])
            vector.div_(1 + len(self._models))
            self._models, self._collects, self._due = {}, False, math.inf
        return ()

    def after_step(self, vector: Tensor, view: View) -> Posts:
        self._steps += 1
        if self._steps % self.every:
            return ()
        self._collects = True
        return self.posts(vector, self.draw_targets(view, self.degree), view)

    def use(self, vector: Tensor, message: PeerMessage, signal: Tensor, view: View) -> Posts:
        self._models[message.source] = signal.to(vector.dtype, copy=True)
        return ()
