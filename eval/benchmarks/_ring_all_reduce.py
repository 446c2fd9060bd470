"""The time of training steps by ring all-reduce on a modelled network: the baseline of virtual time.

Each of n ranks sends its right neighbor 2 (n - 1) parts of S / n bytes, the k-th when k - 1 have come from
its left one (Patarasuk and Yuan, 2009). The ring begins after the forward pass, a third of a step, and is
hidden by the backward pass; a rank begins its next step when both have ended. So it is faster than a real
one, where gradients come one by one, in several buckets.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import ceil

from decentnode.simulation.clock import SECOND, VirtualClock
from decentnode.simulation.loop import VirtualLoop
from decentnode.simulation.network import Network

FORWARD = 1 / 3
"""The forward pass, of the time of a step's computation."""


class Ring:
    """Ranks that make so many steps, of `seconds(rank, step)` each without communication."""

    def __init__(self, network: Network, seconds: Callable[[int, int], float], size: int, steps: int) -> None:
        """`size`: the bytes of the gradient."""
        self.ranks = len(network.uplink)
        self._network, self._seconds, self._steps = network, seconds, steps
        self._part = ceil(size / self.ranks)
        self._messages = 2 * (self.ranks - 1)
        self._loop = VirtualLoop(clock := VirtualClock())
        self._clock = clock
        self._step = [0] * self.ranks
        self._sent = [0] * self.ranks
        self._has_gradient = [False] * self.ranks
        self._has_computed = [False] * self.ranks
        self._arrived = Counter[tuple[int, int]]()
        """By rank and step; a left neighbor may be a step ahead."""

    def step_seconds(self) -> float:
        """The time of a step: that of the last rank for all of them, divided by their number."""
        for rank in range(self.ranks):
            self._loop.call_at_nanosecond(0, self._begin, rank)
        self._loop.run_forever()
        self._loop.close()
        return self._clock.now() / self._steps

    def _begin(self, rank: int) -> None:
        now, seconds = self._clock.nanoseconds, self._seconds(rank, self._step[rank])
        self._sent[rank], self._has_gradient[rank], self._has_computed[rank] = 0, False, False
        self._loop.call_at_nanosecond(now + round(FORWARD * seconds * SECOND), self._end_forward, rank)
        self._loop.call_at_nanosecond(now + round(seconds * SECOND), self._end_backward, rank)

    def _end_forward(self, rank: int) -> None:
        self._has_gradient[rank] = True
        self._send(rank)

    def _end_backward(self, rank: int) -> None:
        self._has_computed[rank] = True
        self._end_step(rank)

    def _send(self, rank: int) -> None:
        """Sends the parts that may be sent by now."""
        step, target = self._step[rank], (rank + 1) % self.ranks
        while self._has_gradient[rank] and self._sent[rank] < min(
            self._messages, 1 + self._arrived[rank, step]
        ):
            self._sent[rank] += 1
            arrives = partial(self._arrive, target, step)
            self._network.send(
                self._loop, self._clock.nanoseconds, rank, target, size=self._part, deliver=arrives
            )

    def _arrive(self, rank: int, step: int) -> None:
        self._arrived[rank, step] += 1
        if step == self._step[rank]:
            self._send(rank)
            self._end_step(rank)

    def _end_step(self, rank: int) -> None:
        step = self._step[rank]
        arrived = self._arrived[rank, step]
        if not self._has_computed[rank] or min(self._sent[rank], arrived) < self._messages:
            return
        del self._arrived[rank, step]
        self._step[rank] += 1
        if self._step[rank] < self._steps:
            self._begin(rank)
        elif min(self._step) == self._steps:
            self._loop.stop()
