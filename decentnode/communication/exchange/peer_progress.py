"""Where peers say that they are, and for how long that excuses what they do not send."""

from decentnode.communication.exchange.handle import ExchangeHandle, Key

LENIENCE = 10
"""Deadlines for which a peer may be behind in one round before it counts as silent, whatever it says.

An honest peer stays in one round for about one deadline: until it, or whoever it waits for through others,
has given up the node that stopped. However long the chain between them is, that adds little, because whoever
is further away began to wait later by as much as it is freed later. What is left: nodes that fail one after
the other, each found out after another deadline, and rounds that last longer at one node than at another.
"""


class PeerProgress:
    """What the peers of one node say of their progress; guarded by the lock of its mailbox."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, Key]] = {}
        self._rounds: dict[int, tuple[int, float]] = {}
        """By peer the highest round that it was seen in, and since when."""

    def reach(self, peer: int, round: int, now: float) -> bool:
        """Notes that a peer was seen in a round; false when it was in a later one before."""
        highest = self._rounds.get(peer, (-1, now))[0]
        if round > highest:
            self._rounds[peer] = (round, now)
        return round >= highest

    def wait(self, peer: int, key: Key, now: float) -> None:
        """Notes that a peer is alive and waits in an exchange."""
        if self.reach(peer, key[0], now):
            self._last[peer] = (now, key)

    def get_on(self, peer: int, key: Key, now: float) -> None:
        """Notes that a peer is in an exchange, if that is a later one than it said last."""
        if key > self._last.get(peer, (now, (-1, 0, 0)))[1]:
            self.wait(peer, key, now)

    def forget(self, peer: int) -> None:
        """The peer comes back, and may be in an earlier round than before."""
        self._last.pop(peer, None)
        self._rounds.pop(peer, None)

    def forgive(self, seconds: float) -> None:
        """Nobody could be heard for so long."""
        self._rounds = {peer: (round, since + seconds) for peer, (round, since) in self._rounds.items()}

    def silent_since(self, peer: int, handle: ExchangeHandle) -> float:
        """From when on the deadline of a peer counts that is missing in an exchange."""
        heard, key = self._last.get(peer, (handle.opened, handle.key))
        if key >= handle.key:
            return handle.opened
        limit = max(self._rounds[peer][1], handle.opened) + (LENIENCE - 1) * handle.timeout
        return min(max(heard, handle.opened), limit)
