"""The peers that the nodes of a process wait for: requests, notices that a node waits, and timeouts.

Threads: the socket thread alone.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf, nextafter

from decentnode.communication.exchange.handle import Key
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.peers.edges import EdgeProtocol
from decentnode.communication.peers.peers import Peers
from decentnode.communication.peers.rejoin import SendControl
from decentnode.communication.wire import Kind
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerTimeout


class FailureDetector:
    """Requests what is missing, says that nodes wait, and drops the edges to silent peers."""

    def __init__(
        self, peers_by_rank: Mapping[int, Peers], send_control: SendControl, edges: EdgeProtocol
    ) -> None:
        self._peers_by_rank = peers_by_rank
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
        waiting = [peers for peers in self._peers_by_rank.values() if lateness(peers.mailbox, now) > -inf]
        late = max((lateness(peers.mailbox, now) for peers in waiting), default=0.0)
        for peers in waiting:
            if late > Timeouts.standstill:
                peers.extend_deadlines(late)
            # Timeouts first: a peer that is dropped here receives DROP_EDGE instead of another request.
            for key, error in overdue(peers, now):
                self._edges.time_out(peers, key, error, now)
            if lateness(peers.mailbox, now) >= 0.0:
                self._send_requests(peers, now, concerned)
        return min([now + self.most_pause, *map(next_due, waiting)])

    def _send_requests(self, peers: Peers, now: float, concerned: Callable[[int], Collection[int]]) -> None:
        self.request_missing(peers)
        for handle, awaited in peers.mailbox.awaited():
            handle.lengthen_pause(now)
            # Peers that wait for this node, directly or through others, extend its deadline on this message.
            if now - handle.opened > Timeouts.waiting_notice(handle.deadline):
                # The awaited peers have received RESEND, which is the same sign of life.
                others = {*concerned(peers.rank)} - awaited
                for peer in sorted(p for p in others if peers.error(p) is None):
                    self._send_control(Kind.WAITING, peers.rank, peer, handle.key, 0)

    def request_missing(self, peers: Peers) -> None:
        """Requests everything that a node waits for."""
        for handle, awaited in peers.mailbox.awaited():
            for peer in sorted(awaited) if handle.due < inf else ():
                self.request_resend(peers, peer, handle.key)

    def request_resend(self, peers: Peers, peer: int, key: Key) -> None:
        """Requests from a peer what it has sent in an exchange."""
        # Recorded first: the answer may be a duplicate, which must not count as a refused message.
        peers[peer].requested = max(key, peers[peer].requested)
        self._send_control(Kind.RESEND, peers.rank, peer, key, 0)


def overdue(peers: Peers, now: float) -> list[tuple[Key, PeerTimeout]]:
    """Peers past their deadline in some open exchange, each with that exchange.

    A peer that waits in an *earlier* exchange is only behind and gets more time, within a limit
    (`peer.py`). A peer that waits in this exchange or a later one has sent its payload, so that was
    lost on the way. In any circle of waiting nodes one is in the earliest exchange, so one times out, and no
    peer times out for another's delay.
    """
    late: list[tuple[Key, PeerTimeout]] = []
    for handle, awaited in peers.mailbox.awaited():
        for peer in awaited:
            if now > peers.times_out_at(peer, handle):
                where = "/".join(map(str, handle.key))
                reason = f"silent for {handle.deadline:.0f} s in exchange {where}"
                late.append((handle.key, PeerTimeout(peer, reason, handle.deadline)))
    return late


def lateness(mailbox: Mailbox, now: float) -> float:
    """Seconds since a request was due, negative before that; -inf: no wait of the node needs this thread."""
    due = [handle.due for handle, _ in mailbox.awaited() if handle.is_long or now >= handle.due]
    return now - min(due, default=inf)


def next_due(peers: Peers) -> float:
    """When a node must request, or time out a peer, although nothing arrives."""
    due = [inf]
    for handle, awaited in peers.mailbox.awaited():
        due.append(handle.due)
        # At the deadline itself no peer is overdue yet.
        due += [nextafter(peers.times_out_at(peer, handle), inf) for peer in awaited]
    return min(due)
