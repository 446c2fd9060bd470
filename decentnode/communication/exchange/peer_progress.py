"""Where peers report to be, and for how long that extends their deadline.

A correct peer stays in one round for about one deadline: until the stopped node times out, at this peer or at
one that it waits for. A long chain adds little: a node further along starts to wait later by as much as it is
freed later. The rest is a margin for successive failures, each detected after another deadline, and for
unequal rounds.
"""

from decentnode.communication.exchange.handle import ExchangeHandle, Key
from decentnode.core.timeouts import Timeouts


class PeerProgress:
    """What the peers of one node report about their progress; guarded by the mailbox's lock."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, Key]] = {}
        self._rounds: dict[int, tuple[int, float]] = {}
        """By peer the highest round it was seen in, and since when."""

    def reach(self, peer: int, round: int, now: float) -> bool:
        """Records that a peer was seen in a round; False when it was in a later one before."""
        highest = self._rounds.get(peer, (-1, now))[0]
        if round > highest:
            self._rounds[peer] = (round, now)
        return round >= highest

    def wait(self, peer: int, key: Key, now: float) -> None:
        """Records that a peer is alive and waits in an exchange."""
        if self.reach(peer, key[0], now):
            self._last[peer] = (now, key)

    def get_on(self, peer: int, key: Key, now: float) -> None:
        """Records a peer's exchange if it is later than the last one it reported."""
        # Only progress extends the deadline: the I/O thread of a hung node answers, too.
        if key > self._last.get(peer, (now, (-1, 0, 0)))[1]:
            self.wait(peer, key, now)

    def forget(self, peer: int) -> None:
        """Forgets a peer that rejoins, possibly in an earlier round than before."""
        self._last.pop(peer, None)
        self._rounds.pop(peer, None)

    def forgive(self, seconds: float) -> None:
        """Extends all limits by seconds in which no message could be received."""
        self._rounds = {peer: (round, since + seconds) for peer, (round, since) in self._rounds.items()}

    def silent_since(self, peer: int, handle: ExchangeHandle) -> float:
        """The time from which the deadline of a missing peer counts."""
        heard, key = self._last.get(peer, (handle.opened, handle.key))
        # It has sent its payload for this exchange, so more time does not help.
        if key >= handle.key:
            return handle.opened
        # Bounds the wait for a peer that is behind, whatever it reports.
        limit = max(self._rounds[peer][1], handle.opened) + Timeouts.peer_behind(handle.timeout)
        return min(max(heard, handle.opened), limit)
