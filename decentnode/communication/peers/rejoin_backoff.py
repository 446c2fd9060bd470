"""Whether an edge may come back that was given up because one of its ends was too slow.

The thread that serves the sockets answers also while its node hangs, or takes long. Taken back on its word,
that node would be waited for once more, for a whole deadline in every second round. So the slow end agrees
once its node has got on; and who is too slow again soon after that is left out for longer each time.
"""

from decentnode.communication.exchange.handle import Key

Pair = tuple[int, int]
"""A local rank and a peer."""
Spot = tuple[int, Key | None]
"""How far a node has got: the next round that it begins, and its latest exchange."""
SETTLED = 20
"""Rounds after a return in which being too slow once more counts as doing it again."""
MOST_PAUSE = 64
"""Deadlines for which a peer is left out at most."""


class RejoinBackoff:
    """Of all nodes of a process; belongs to the thread that serves the sockets."""

    def __init__(self) -> None:
        self._blamed: dict[Pair, Spot] = {}
        """Where a local node was when a peer gave it up."""
        self._pauses: dict[Pair, tuple[int, float]] = {}
        """How often a peer was given up in a row, and until when it is left out."""
        self._back: dict[Pair, int] = {}
        """The round in which a peer came back the last time."""

    def blame(self, pair: Pair, spot: Spot) -> None:
        """A peer has given up a local node, which was there."""
        self._blamed[pair] = spot

    def give_up(self, pair: Pair, round: int, deadline: float, now: float) -> None:
        """A local node has given up a peer that was silent for `deadline` seconds."""
        times, _ = self._pauses.get(pair, (0, 0.0))
        is_again = round - self._back.get(pair, round - SETTLED) < SETTLED
        times = times + 1 if is_again else 1
        # The first time there is none: it agrees when it has got on.
        pause = deadline * min(2 ** (times - 1) - 1, MOST_PAUSE)
        self._pauses[pair] = times, now + pause

    def take_back(self, pair: Pair, round: int) -> None:
        """Both ends have agreed to exchange again from this round on."""
        self._back[pair] = round

    def holds(self, pair: Pair, spot: Spot, now: float) -> bool:
        """Whether they are not to agree yet, where the local node is at `spot`."""
        return self._blamed.get(pair) == spot or now < self._pauses.get(pair, (0, 0.0))[1]

    def forget(self, peer: int) -> None:
        """Another process has taken the place of this peer's."""
        for known in (self._blamed, self._pauses, self._back):
            for pair in [pair for pair in known if pair[1] == peer]:
                del known[pair]
