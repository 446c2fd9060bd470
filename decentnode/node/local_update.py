"""When a node runs the local steps of a round: before its exchange, or during it."""

from dataclasses import dataclass, field
from functools import partial

from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatSlot
from decentnode.core.clock import Clock
from decentnode.graph.base import View
from decentnode.sharing.base import Sharing
from decentnode.training.local_steps import LocalSteps, TrainReport


@dataclass(eq=False)
class AdaptThenCombine:
    """Adapts, then combines: the node exchanges the model that its local steps return.

    x_i <- sum_j w_ij y_j,   y_j = trained_j(x_j)
    """

    local_steps: LocalSteps
    heartbeat: HeartbeatSlot
    clock: Clock
    report: TrainReport = field(init=False, repr=False)
    """The report of the round's local steps."""
    seconds: float = field(default=0.0, init=False)
    """Seconds of the round's local steps."""

    async def before(self, round: int) -> float:
        """Runs before the exchange; returns the learning rate of the round."""
        await self._adapt(round)
        return self.report.learning_rate

    async def meanwhile(self) -> None:
        """Runs during the first exchange of the round."""

    async def after(self, view: View, sharing: Sharing | None) -> None:
        """Runs when the vector's spare slot holds the mix; `sharing`: the scheme, None where it has none."""

    async def _adapt(self, round: int) -> None:
        began = self.clock.now()
        self.heartbeat.mark(round, Activity.TRAIN)
        self.report = await self.local_steps.train(round)
        self.seconds = self.clock.now() - began


class AdaptWhileCommunicating(AdaptThenCombine):
    """Adapts while it communicates (D-PSGD as in Lian et al., NeurIPS 2017, Alg. 1; Decent-DP, ICLR 2025).

    x_i <- sum_j w_ij x_j + (trained_i(x_i) - x_i)

    The steps run on a copy, because the neighbors read x_i in place. This takes one more vector of memory.
    """

    async def before(self, round: int) -> float:
        self._round, self._is_due = round, True
        return self.local_steps.rate_in(round)

    async def meanwhile(self) -> None:
        if self._is_due:
            self._is_due = False
            # Peers read the slot while the node trains.
            self.local_steps.vector.step_aside()
            await self._adapt(self._round)

    async def after(self, view: View, sharing: Sharing | None) -> None:
        # A round without an exchange has no mix, and `meanwhile` has not run.
        own_weight = 1.0 if self._is_due else view.weights.get(view.rank, 1.0)
        await self.meanwhile()
        adjust_change = None if sharing is None else partial(sharing.adjust_change, view=view)
        self.local_steps.vector.rejoin(own_weight, adjust_change)
