"""The peers that the nodes of a process wait for: requests, notices that a node waits, and timeouts."""

from collections.abc import Callable, Collection, Mapping
from math import inf, nextafter

from decentnode.communication.exchange.handle import Key
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.peers.edges import EdgeProtocol
from decentnode.communication.peers.rejoin import SendControl
from decentnode.communication.wire import Kind
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerTimeout


class FailureDetector:
    """Belongs to the thread that serves the sockets."""

    def __init__(
        self, mailboxes: Mapping[int, Mailbox], send_control: SendControl, edges: EdgeProtocol
    ) -> None:
        self._mailboxes = mailboxes
        self._send_control = send_control
        self._edges = edges
        self.most_pause = inf
        """Most seconds between two checks, for nodes that may wait where they start no check themselves."""

    def check(self, now: float, concerned: Callable[[int], Collection[int]]) -> float:
        """Does what is due, after everything that arrived has been processed; returns when something is due
        again.

        Drops edges to peers past their deadline, requests what is missing, and sends that nodes wait.
        `concerned`: the ranks that may wait for a local one. A late check means that this process was
        suspended; that time counts against no peer.
        """
        waiting = [box for box in self._mailboxes.values() if lateness(box, now) > -inf]
        late = max((lateness(mailbox, now) for mailbox in waiting), default=0.0)
        for mailbox in waiting:
            if late > Timeouts.standstill:
                mailbox.extend_deadlines(late)
            # Timeouts first: a peer that is dropped here receives DROP_EDGE instead of another request.
            for key, error in overdue(mailbox, now):
                self._edges.time_out(mailbox, key, error, now)
            if lateness(mailbox, now) >= 0.0:
                self._send_requests(mailbox, now, concerned)
        return min([now + self.most_pause, *map(next_due, waiting)])

    def _send_requests(
        self, mailbox: Mailbox, now: float, concerned: Callable[[int], Collection[int]]
    ) -> None:
        self.request_missing(mailbox)
        for handle, peers in mailbox.awaited():
            handle.lengthen_pause(now)
            # Peers that wait for this node, directly or through others, extend its deadline on this message.
            if now - handle.opened > Timeouts.waiting_notice(handle.deadline):
                # The awaited peers have received RESEND, which is the same sign of life.
                others = {*concerned(mailbox.rank)} - peers
                for peer in sorted(p for p in others if mailbox.peers.error(p) is None):
                    self._send_control(Kind.WAITING, mailbox.rank, peer, handle.key, 0)

    def request_missing(self, mailbox: Mailbox) -> None:
        """Requests everything that a node waits for."""
        for handle, peers in mailbox.awaited():
            for peer in sorted(peers) if handle.due < inf else ():
                self.request_resend(mailbox, peer, handle.key)

    def request_resend(self, mailbox: Mailbox, peer: int, key: Key) -> None:
        """Requests from a peer what it has sent in an exchange."""
        # Recorded first: the answer may be a duplicate, which must not count as a refused message.
        mailbox.peers[peer].requested = max(key, mailbox.peers[peer].requested)
        self._send_control(Kind.RESEND, mailbox.rank, peer, key, 0)


def overdue(mailbox: Mailbox, now: float) -> list[tuple[Key, PeerTimeout]]:
    """Peers past their deadline in some open exchange, each with that exchange.

    A peer that waits in an *earlier* exchange is only behind and gets more time, within a limit
    (`peer.py`). A peer that waits in this exchange or a later one has sent its payload, so that was
    lost on the way. In any circle of waiting nodes one is in the earliest exchange, so one times out, and no
    peer times out for another's delay.
    """
    late: list[tuple[Key, PeerTimeout]] = []
    for handle, peers in mailbox.awaited():
        for peer in peers:
            if now > mailbox.times_out_at(peer, handle):
                where = "/".join(map(str, handle.key))
                reason = f"silent for {handle.deadline:.0f} s in exchange {where}"
                late.append((handle.key, PeerTimeout(peer, reason, handle.deadline)))
    return late


def lateness(mailbox: Mailbox, now: float) -> float:
    """Seconds since a request was due, negative before that; -inf: no wait of the node needs this thread."""
    due = [handle.due for handle, _ in mailbox.awaited() if handle.is_long or now >= handle.due]
    return now - min(due, default=inf)


def next_due(mailbox: Mailbox) -> float:
    """When a node must request, or time out a peer, although nothing arrives."""
    due = [inf]
    for handle, peers in mailbox.awaited():
        due.append(handle.due)
        # At the deadline itself no peer is overdue yet.
        due += [nextafter(mailbox.times_out_at(peer, handle), inf) for peer in peers]
    return min(due)
