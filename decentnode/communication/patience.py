"""Whom the nodes of a process wait for: asked again, told that this node waits, and given up in the end."""

from collections.abc import Collection, Mapping

from decentnode.communication.edges import Edges, Tell
from decentnode.communication.handles import Key
from decentnode.communication.mailbox import PATIENCE, Mailbox
from decentnode.communication.wire import Kind


class Patience:
    """Belongs to the thread that serves the sockets."""

    def __init__(self, mailboxes: Mapping[int, Mailbox], tell: Tell, edges: Edges) -> None:
        self._mailboxes = mailboxes
        self._tell = tell
        self._edges = edges

    def judge(self, now: float, linked: Collection[int], forgive: float = 0.0) -> None:
        """Gives up who was silent for too long, after everything that has arrived was taken in.

        `linked`: ranks that there is a link to; `forgive`: for so long this process itself stood still.
        """
        for mailbox in self._mailboxes.values():
            if forgive:
                mailbox.forgive(forgive)
            for key, error in mailbox.overdue(now):
                self._edges.give_up(mailbox, key, error, now)
            self.ask(mailbox, now)
            neighbors = {*linked, *self._mailboxes} - mailbox.gone.keys() - {mailbox.rank}
            for key, peers in mailbox.waiting(now):
                for peer in sorted(neighbors - peers):
                    self._tell(Kind.WAITING, mailbox.rank, peer, key, 0)

    def ask(self, mailbox: Mailbox, now: float, patience: float = PATIENCE) -> None:
        """Asks for what a node has been waiting for, for longer than `patience` seconds."""
        for key, peers in mailbox.waiting(now, patience):
            for peer in sorted(peers):
                self.ask_for(mailbox, peer, key)

    def ask_for(self, mailbox: Mailbox, peer: int, key: Key) -> None:
        """Asks a peer for what it has sent in an exchange."""
        mailbox.asked[peer] = max(key, mailbox.asked.get(peer, key))
        self._tell(Kind.MISSING, mailbox.rank, peer, key, 0)
