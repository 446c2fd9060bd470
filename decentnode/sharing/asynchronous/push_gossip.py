"""Gossip learning: models walk through the network and merge by their ages."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import Positive
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage, Posts

MOST_AGE = 1 << 31
"""A node that took a larger age could soon not send its own: a message has 32 bits for it."""


@SHARINGS.register("push_gossip", "gossip_learning")
@dataclass
class PushGossip(AsyncSharing):
    """Pushes its model to one random neighbor, which merges both by age (Ormandi et al., 2013, Alg. 1).

    x <- (a x + b y) / (a + b),   a <- max(a, b);     a <- a + 1 after each local step

    y is the model that arrives, b its age. The ages are those of Hegedus, Danner and Jelasity (DAIS 2019,
    Alg. 2). Nobody waits, nothing is answered, and a lost message is only missing. The mean of all models is
    not kept. State: the age.
    """

    promises = replace(AsyncSharing.promises, about_mean="does not keep it: one end of a push changes")
    state: ClassVar = (*AsyncSharing.state, "_age")

    every: Positive = 1
    """Steps between two pushes."""

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._age = 0

    def after_step(self, vector: Tensor, view: View) -> Posts:
        self._steps += 1
        self._age += 1
        if self._steps % self.every:
            return ()
        # The age rises with each step, so it also tells which of two pushes is newer.
        return self.posts(vector, self.draw_targets(view, 1), view, number=self._age)

    def use(self, vector: Tensor, message: PeerMessage, signal: Tensor, view: View) -> Posts:
        a, b = self._age, message.number
        if not 0 < b <= MOST_AGE:
            self.refuse(message.source, view, PayloadError(f"an age of {b} steps"))
            return ()
        vector.lerp_(signal.to(vector.dtype), b / (a + b))
        self._age = max(a, b)
        return ()
