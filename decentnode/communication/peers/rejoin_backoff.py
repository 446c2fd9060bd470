"""Whether a dropped edge may be restored if one of its ends was too slow.

The socket thread answers even while its node hangs or computes for long. If such a node rejoined because its
thread answers, its peers would wait a whole deadline for it in every second round. So the slow end accepts
only after it has made progress, and a peer that times out again soon is excluded for longer each time.
"""

from decentnode.communication.exchange.handle import Key
from decentnode.core.timeouts import Timeouts

Pair = tuple[int, int]
"""(local rank, peer)."""
Spot = tuple[int, Key | None]
"""The position of a node: the next round that it starts, and its latest exchange."""
SETTLED = 20
"""Rounds after rejoining within which another timeout counts as repeated."""


class RejoinBackoff:
    """The back-off of all nodes of a process; belongs to the thread that serves the sockets."""

    def __init__(self) -> None:
        self._blamed: dict[Pair, Spot] = {}
        """The position of a local node when a peer timed out on it."""
        self._pauses: dict[Pair, tuple[int, float]] = {}
        """By pair the number of successive timeouts, and the time until which the peer is excluded."""
        self._back: dict[Pair, int] = {}
        """By pair the round in which the peer last rejoined."""

    def blame(self, pair: Pair, spot: Spot) -> None:
        """Records that a peer timed out on a local node at this position."""
        self._blamed[pair] = spot

    def give_up(self, pair: Pair, round: int, deadline: float, now: float) -> None:
        """Records that a local node timed out on a peer after `deadline` seconds."""
        times, _ = self._pauses.get(pair, (0, 0.0))
        # A peer that has never rejoined cannot time out again.
        is_again = round - self._back.get(pair, round - SETTLED) < SETTLED
        times = times + 1 if is_again else 1
        # No exclusion after the first timeout: the peer accepts when it has made progress.
        self._pauses[pair] = times, now + Timeouts.exclusion(deadline, times)

    def take_back(self, pair: Pair, round: int) -> None:
        """Records that both ends agreed to exchange again from this round on."""
        self._back[pair] = round

    def holds(self, pair: Pair, spot: Spot, now: float) -> bool:
        """Whether the two ends must not agree yet, with the local node at `spot`."""
        return self._blamed.get(pair) == spot or now < self._pauses.get(pair, (0, 0.0))[1]

    def forget(self, peer: int) -> None:
        """Forgets a peer whose process was replaced by a new one."""
        for known in (self._blamed, self._pauses, self._back):
            for pair in [pair for pair in known if pair[1] == peer]:
                del known[pair]
