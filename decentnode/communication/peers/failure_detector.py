"""Whom the nodes of a process wait for: asked again, told that this node waits, and given up in the end."""

from collections.abc import Collection, Mapping
from math import nextafter

from decentnode.communication.exchange.handle import Key
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.exchange.retransmission import NEVER, SHARE
from decentnode.communication.peers.rejoin import EdgeProtocol, Tell
from decentnode.communication.wire import Kind
from decentnode.errors import PeerTimeout

PATIENCE = 1.0
"""Seconds in an exchange after which a node that asks for what is missing tells all others that it waits."""
STANDSTILL = 1.0
"""Seconds by which a look is late where this process itself has stood still."""


class FailureDetector:
    """Belongs to the thread that serves the sockets."""

    def __init__(self, mailboxes: Mapping[int, Mailbox], tell: Tell, edges: EdgeProtocol) -> None:
        self._mailboxes = mailboxes
        self._tell = tell
        self._edges = edges
        self.most_pause = NEVER
        """Seconds between two looks at most: for nodes that may wait where they start no look themselves."""

    def look(self, now: float, linked: Collection[int]) -> float:
        """Does what is due, after everything that has arrived was taken in; returns when something is again.

        Gives up who was silent for too long; asks for what is missing, and says that nodes wait. `linked`:
        ranks that there is a link to. Who looks late has stood still, and accuses nobody of that time.
        """
        waiting = [box for box in self._mailboxes.values() if box.timer.has_expired or now >= box.timer.due]
        late = max((now - mailbox.timer.due for mailbox in waiting), default=0.0)
        for mailbox in waiting:
            if late > STANDSTILL:
                mailbox.forgive(late)
            for key, error in overdue(mailbox, now):
                self._edges.give_up(mailbox, key, error, now)
            if now >= mailbox.timer.due:
                self._speak(mailbox, now, {*linked, *self._mailboxes} - {mailbox.rank})
        return min([now + self.most_pause, *map(next_due, waiting)])

    def _speak(self, mailbox: Mailbox, now: float, linked: set[int]) -> None:
        self.ask(mailbox)
        for handle, peers in mailbox.awaited():
            mailbox.timer.start_again(handle.timeout, now)
            if now - handle.opened > min(PATIENCE, SHARE * handle.timeout):
                for peer in sorted(linked - mailbox.gone.keys() - peers):
                    self._tell(Kind.WAITING, mailbox.rank, peer, handle.key, 0)

    def ask(self, mailbox: Mailbox) -> None:
        """Asks for everything that a node waits for."""
        for handle, peers in mailbox.awaited():
            for peer in sorted(peers) if handle.opened < NEVER else ():
                self.ask_for(mailbox, peer, handle.key)

    def ask_for(self, mailbox: Mailbox, peer: int, key: Key) -> None:
        """Asks a peer for what it has sent in an exchange."""
        mailbox.asked[peer] = max(key, mailbox.asked.get(peer, key))
        self._tell(Kind.RESEND, mailbox.rank, peer, key, 0)


def overdue(mailbox: Mailbox, now: float) -> list[tuple[Key, PeerTimeout]]:
    """Peers that were silent for too long in some open exchange, and in which.

    A peer that says it waits in an *earlier* exchange is only behind, and is given more time, though not
    for ever (`peer_progress.py`). One that waits in this or a later one has sent what we miss: it was lost
    on the way. So in any circle of waiting nodes somebody always gives up, and nobody accuses a peer that
    is merely held up.
    """
    late: list[tuple[Key, PeerTimeout]] = []
    for handle, peers in mailbox.awaited():
        for peer in peers:
            if now > mailbox.silent_since(peer, handle) + handle.timeout:
                where = "/".join(map(str, handle.key))
                reason = f"silent for {handle.timeout:.0f} s in exchange {where}"
                late.append((handle.key, PeerTimeout(peer, reason, handle.timeout)))
    return late


def next_due(mailbox: Mailbox) -> float:
    """When a node has to ask, or to give somebody up, although nothing arrives."""
    deadlines = [
        mailbox.silent_since(peer, handle) + handle.timeout
        for handle, peers in mailbox.awaited()
        for peer in peers
    ]
    # At the deadline itself nobody is overdue.
    return min([mailbox.timer.due, nextafter(min(deadlines), NEVER)]) if deadlines else NEVER
