"""Wait-free averaging with the last models of all neighbors."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.graph.mixing import live_weights
from decentnode.options import Positive
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage, Posts


@SHARINGS.register("swift")
@dataclass
class Swift(AsyncSharing):
    """Averages with the newest model of each neighbor, without waiting (SWIFT: Bornstein et al., ICLR 2023).

    x_i <- sum_j w_ij x_j - eta g(x_i)            Algorithm 1

    A node sends x_i to all neighbors, makes a local step at x_i, and then averages with the models that it
    has. Until a neighbor's first model arrives, that is the model from which all start. The own model
    replaces those of lost neighbors. With `every: k` this happens in each k-th step (the communication set
    C_s of section 4 has k = s + 1). The mean of all models is not kept. State: a model per neighbor, and two.
    """

    promises = replace(
        AsyncSharing.promises,
        about_mean="does not keep it: W is applied to models of different times",
        sends_one_payload=True,
        wire="deg * C(d) per broadcast",
    )
    state: ClassVar = (*AsyncSharing.state, "_models", "_initial")

    every: Positive = 1
    """Steps between two averages."""

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._models: dict[int, Tensor] = {}
        self._initial = vector.clone()

    def before_step(self, vector: Tensor, view: View) -> Posts:
        number = self._steps + 1
        if number % self.every:
            return ()
        self._before = vector.clone()
        return self.posts(vector, self.live_targets(view), view, number=number)

    def after_step(self, vector: Tensor, view: View) -> Posts:
        self._steps += 1
        if self._steps % self.every:
            return ()
        live_sources = [j for j in view.sources if j not in self._lost]
        for j, weight in live_weights(view.weights, view.rank, live_sources).items():
            if j != view.rank:
                vector.add_(self._models.get(j, self._initial) - self._before, alpha=weight)
        del self._before
        return ()

    def use(self, vector: Tensor, message: PeerMessage, signal: Tensor, view: View) -> Posts:
        self._models[message.source] = signal.to(vector.dtype, copy=True)
        return ()
