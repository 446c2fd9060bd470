"""When a node makes the local steps of a round: before its exchange, or while that runs."""

from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatSlot
from decentnode.core.clock import Clock
from decentnode.graph.base import View
from decentnode.training.training import Training, TrainReport


class AdaptThenCombine:
    """Adapts, then combines: what is exchanged is what the local steps have made of the model.

    x_i <- sum_j w_ij y_j,   y_j = trained_j(x_j)
    """

    def __init__(self, training: Training, beacon: HeartbeatSlot, clock: Clock) -> None:
        self.report: TrainReport
        """Of the round's local steps, once they were made."""
        self.seconds = 0.0
        """How long they took."""
        self._training = training
        self._beacon = beacon
        self._clock = clock

    async def before(self, round: int) -> float:
        """Comes before the exchange; gives the learning rate of the round's steps."""
        await self._adapt(round)
        return self.report.learning_rate

    async def meanwhile(self) -> None:
        """Comes while the first exchange of the round is under way."""

    async def after(self, view: View) -> None:
        """Comes when the vector's spare slot holds the mix."""

    async def _adapt(self, round: int) -> None:
        began = self._clock.now()
        self._beacon.mark(round, Activity.TRAIN)
        self.report = await self._training.train(round)
        self.seconds = self._clock.now() - began


class AdaptWhileCommunicating(AdaptThenCombine):
    """Adapts while it communicates (D-PSGD as in Lian et al., NeurIPS 2017, Alg. 1; Decent-DP, ICLR 2025).

    x_i <- sum_j w_ij x_j + (trained_i(x_i) - x_i)

    The steps are made on a copy, because the neighbors read x_i in place. One more vector of memory.
    """

    async def before(self, round: int) -> float:
        self._round, self._is_due = round, True
        return self._training.learning_rate

    async def meanwhile(self) -> None:
        if self._is_due:
            self._is_due = False
            self._training.vector.step_aside()
            await self._adapt(self._round)

    async def after(self, view: View) -> None:
        # In a round that has exchanged nothing there was no mix.
        own_weight = 1.0 if self._is_due else view.weights.get(view.rank, 1.0)
        await self.meanwhile()
        self._training.vector.rejoin(own_weight)
