"""The life of a node's peers: who is live, lost, leaving or rejoining, and what that does to its exchanges.

Threads: any thread may call. The socket thread does when a link breaks or a message about an edge arrives,
the node's thread when it starts a round or skips some. The lock of the mailbox guards the records, too: a
peer is lost and its exchanges end in one step. `Peers.error` and `Peers.has_left` need no lock.
"""

from collections import defaultdict
from collections.abc import Iterable

from decentnode.communication.exchange.early_messages import NEVER
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Transport
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.peers.peer import Peer, PeerEvent, PeerState
from decentnode.core.clock import Clock
from decentnode.errors import PeerError, PeerLeft, PeerLost


class PeerTransport(Transport):
    """What peers and their mailbox ask of the endpoint.

    The defaults fit a transport without links, whose memory is not written while it is read.
    """

    def introduce(self, peer: Peer) -> None:
        """Brings a peer that was never heard of into its first state, if that is not LIVE."""

    def is_linked(self, peer: int) -> bool:
        """Whether a link to a peer is open; where there are no links, always."""
        return True

    def note_lost(self) -> None:
        """Records that a peer is lost, to which this end may propose to exchange again."""

    def invalidate(self, peer: int) -> None:
        """Invalidates, for a peer that exchanges nothing any more, the memory it may still read."""

    def give_model(self) -> None:
        """Sends the node's model to the peers that requested it."""


class PeersByRank(dict[int, "Peers"]):
    """The peers of each node of a process, as the nodes are made."""

    def __init__(self) -> None:
        super().__init__()
        self.known_to: defaultdict[int, set[int]] = defaultdict(set)
        """By rank the nodes of the process that have a record of it."""


class Peers(dict[int, Peer]):
    """The peers of a node by rank, those that it has met and not forgotten; and its mailbox."""

    def __init__(
        self, rank: int, transport: PeerTransport, alone: bool = False, numbered_from: int = 0,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """All parameters are those of the mailbox, too."""
        super().__init__()
        self.rank = rank
        self.clock = clock or Clock()
        self.mailbox = Mailbox(
            rank, transport, self, alone=alone, numbered_from=numbered_from, clock=self.clock
        )
        self.lock = self.mailbox.lock
        self.ahead = 0
        """The round to continue in because the peers are there already; 0: the next one."""
        self._transport = transport
        self._unsettled: set[int] = set()

    def __missing__(self, rank: int) -> Peer:
        peer = Peer(rank)
        self._transport.introduce(peer)
        self._note_link(peer)
        self._update_unsettled(peer)
        return self.setdefault(rank, peer)

    def _update_unsettled(self, peer: Peer) -> None:
        """Records whether a peer whose record has changed must be looked at in each round."""
        if peer.is_settled:
            self._unsettled.discard(peer.rank)
        else:
            self._unsettled.add(peer.rank)
        if peer.state is PeerState.LOST:
            self._transport.note_lost()

    def known(self, ranks: Iterable[int]) -> list[int]:
        """Returns the ranks, of those given, that this node has a record of; for any thread."""
        with self.lock:
            return [rank for rank in ranks if rank in self]

    def unsettled(self) -> list[Peer]:
        """The peers that a round must look at: usually none, however many are known."""
        return [self[rank] for rank in tuple(self._unsettled)] if self._unsettled else []

    def error(self, rank: int) -> PeerError | None:
        """Why a peer exchanges nothing; None: it does, or it was never heard of. For any thread."""
        peer = self.get(rank)
        return None if peer is None else peer.error

    def has_left(self, rank: int) -> bool:
        """Whether a peer has finished, or is finishing; for any thread."""
        peer = self.get(rank)
        return peer is not None and peer.state in (PeerState.LEAVING, PeerState.LEFT)

    # The end of exchanges with a peer.

    def lose(self, peer: int, error: PeerError) -> None:
        """Stops waiting for a peer until it rejoins; what it had sent still counts."""
        self._stop_exchanging(peer, PeerEvent.LOSE, error)

    def replace(self, peer: int, error: PeerError) -> None:
        """Records that a new process has taken a peer's place: old payloads must not count for it."""
        with self.lock:
            self._stop_exchanging(peer, PeerEvent.RESTART, error)
            self[peer].forget_timeouts()
            self.mailbox.drop_early(peer)

    def _stop_exchanging(self, peer: int, event: PeerEvent, error: PeerError) -> None:
        """Moves a peer to a state in which it exchanges nothing."""
        with self.lock:
            was_exchanging = self[peer].error is None
            self[peer].step(event, error)
            self._update_unsettled(self[peer])
            if was_exchanging:
                # First, because the mailbox may finish an exchange whose memory the peer is still reading.
                self._transport.invalidate(peer)
                self.mailbox.stop_exchanging(peer, error)
                self.mailbox.messages.wake()

    def drop_edge(self, peer: int, error: PeerError, until: int = NEVER) -> None:
        """Drops the edge to a peer that may be alive; nothing of it is mixed any more.

        Otherwise W would not be symmetric in rounds whose payloads had arrived before. Payloads of round
        `until` and later ones count again.
        """
        with self.lock:
            self.lose(peer, error)
            self.mailbox.drop_early(peer, until)

    def meet_ended(self, peer: Peer, last: Key | None, failed: bool) -> None:
        """Brings the record of a peer that had ended before this node heard of it into its first state.

        Parameters as for `depart`.
        """
        if last is not None and self.mailbox.may_be_met(last):
            peer.step(PeerEvent.LEAVE)
            peer.last_exchange, peer.failed = last, failed
        else:
            peer.step(PeerEvent.FINISH, PeerLeft(peer.rank, last[0] if last else -1, failed))

    def depart(self, peer: int, last: Key | None, failed: bool = False) -> None:
        """Records that a peer ended after exchange `last`; None: it has sent nothing; `failed`: by an error.

        What it sent until then is still awaited.
        """
        with self.lock:
            if last is not None and self.mailbox.may_be_owed(peer, last) and self[peer].error is None:
                self[peer].step(PeerEvent.LEAVE)
                self[peer].last_exchange, self[peer].failed = last, failed
                self._update_unsettled(self[peer])
                self.mailbox.remove_reader(peer)
            else:
                self._stop_exchanging(peer, PeerEvent.FINISH, PeerLeft(peer, last[0] if last else -1, failed))

    def finish_leaving(self, key: Key) -> None:
        """Ends the exchanges with all whose last one was before `key`."""
        for rank in tuple(self._unsettled):
            peer = self[rank]
            if peer.state is PeerState.LEAVING and peer.last_exchange < key:
                left = PeerLeft(rank, peer.last_exchange[0], peer.failed)
                self._stop_exchanging(rank, PeerEvent.FINISH, left)

    def lost(self) -> list[int]:
        """Lost peers that have neither left nor agreed to rejoin."""
        with self.lock:
            return sorted(peer.rank for peer in self.unsettled() if peer.state is PeerState.LOST)

    def has_dropped(self, peer: int, round: int) -> bool:
        """Whether the edge to a peer that has not left is dropped in this round."""
        with self.lock:
            entry = self[peer]
            is_later = entry.state is PeerState.REJOINING and entry.round > round
            return entry.state is PeerState.LOST or is_later

    # Rejoining: both ends agree on a round that neither has started, and exchange again from there on. A
    # round that starts (`admit`) ends the time for agreements about it, in one step with the look at them.

    def admit(self, round: int) -> list[int]:
        """Opens the exchanges of a round; returns the peers that rejoin in it with empty state."""
        with self.lock:
            # From here on no agreement for this round or an earlier one is possible (`readmit`).
            self.mailbox.enter_round(round)
            rejoined = []
            for peer in self.unsettled():
                if peer.state is PeerState.REJOINING and peer.round <= round:
                    peer.step(PeerEvent.ADMIT)
                    self._note_link(peer)
                if peer.error is None and peer.fresh_from is not None and peer.fresh_from <= round:
                    peer.fresh_from = None
                    rejoined.append(peer.rank)
                self._update_unsettled(peer)
            return sorted(rejoined)

    def readmit(self, peer: int, round: int, theirs: int = 0) -> bool:
        """Agrees that a lost peer, which starts `theirs` next, rejoins in `round`.

        False if that is too late, or if the peer has left.
        """
        with self.lock:
            entry = self[peer]
            if round < self.mailbox.next_round:
                # The peer repeats its proposal if our REJOIN_ACCEPT was lost: the agreement still holds.
                return entry.error is None and entry.round == round
            if self.has_left(peer):
                return False
            # The peer may rejoin in an earlier round than the one it was last seen in.
            entry.forget_progress()
            self.drop_edge(peer, PeerLost(peer, f"is back from round {round + 1} on"), round)
            entry.step(PeerEvent.AGREE)
            entry.round = round
            self.start_fresh(peer, max(round, theirs))
            return True

    def start_fresh(self, peer: int, round: int) -> None:
        """Records that both ends start with empty state of each other in a round."""
        with self.lock:
            self[peer].fresh_from = round
            self._update_unsettled(self[peer])

    def rejoin_round(self, peer: int) -> int | None:
        """The round in which a lost peer rejoins; None without an agreement."""
        with self.lock:
            entry = self[peer]
            return entry.round if entry.state is PeerState.REJOINING else None

    def skip_to(self, round: int, peers: Iterable[int]) -> set[int]:
        """Returns the peers that expect this node in a round before `round`; they rejoin with empty state
        there.
        """
        with self.lock:
            # From here on no agreement for a round before `round` is possible, also while the node trains.
            self.mailbox.enter_round(round - 1)
            others = [self[rank] for rank in peers if rank != self.rank]
            waiting = [p for p in others if p.error is None or self.rejoin_round(p.rank) in range(round)]
            for peer in waiting:
                # A proposal of an earlier round may still be on the way; that agreement holds no more.
                peer.round = round
                self.start_fresh(peer.rank, round)
            return {peer.rank for peer in waiting}

    # Links.

    def link(self, peer: int) -> None:
        """Records that a link to a peer was opened."""
        with self.lock:
            # One without a record is found linked when it is first heard of.
            if peer in self:
                self[peer].step(PeerEvent.LINK)

    def _note_link(self, peer: Peer) -> None:
        if not self._transport.is_linked(peer.rank):
            peer.step(PeerEvent.UNLINK)

    def may_unlink(self, peer: int) -> bool:
        """Whether the link to a peer may be closed: neither end awaits anything from the other."""
        with self.lock:
            entry = self.get(peer)
            return entry is None or not (entry.wants_model or self.mailbox.awaits(peer))

    def unlink(self, peer: int) -> None:
        """Records that the link to a peer was closed; forgets it, if nothing more is known of it."""
        with self.lock:
            if (entry := self.get(peer)) is not None:
                entry.step(PeerEvent.UNLINK)
                if entry.is_forgettable:
                    del self[peer]

    # Models for peers that rejoin.

    def want_model(self, peer: int) -> None:
        """Records a peer's request for this node's model; during an exchange the vector is not written, so
        sends it then.
        """
        with self.lock:
            self[peer].wants_model = True
            self._update_unsettled(self[peer])
            if self.mailbox.is_exchanging:
                self._transport.give_model()

    def take_wanting(self) -> list[int]:
        """Peers that have requested this node's model since the last call."""
        with self.lock:
            wanting = [peer for peer in self.unsettled() if peer.wants_model]
            for peer in wanting:
                peer.wants_model = False
                self._update_unsettled(peer)
            return sorted(peer.rank for peer in wanting)

    # Progress: who waits for this node, or is behind, and when a silent peer times out.

    def note_waiting(self, peer: int, key: Key, for_us: bool = False) -> None:
        """Records that `peer` is alive and waits in exchange `key`; `for_us`: for this node."""
        with self.lock:
            self[peer].note_waiting(key, self.clock.now())
            # Two nodes that wait for each other in the same exchange would otherwise request without a pause.
            self.mailbox.infer_loss(peer, key if for_us else (*key[:2], key[2] + 1))

    def note_progress(self, peer: int, key: Key) -> None:
        """Records that `peer` is behind, in exchange `key`, and whether it made progress."""
        with self.lock:
            self[peer].advance(key, self.clock.now())
            self.mailbox.note_needless(peer, key)

    def times_out_at(self, peer: int, handle: ExchangeHandle) -> float:
        """When a peer times out in this exchange if it stays silent."""
        with self.lock:
            return self[peer].times_out_at(handle.key, handle.opened, handle.deadline)

    def extend_deadlines(self, seconds: float) -> None:
        """Extends every deadline by the seconds for which this process was suspended."""
        with self.lock:
            # A copy, because any thread may add one.
            for peer in list(self.values()):
                peer.extend_deadlines(seconds)
            self.mailbox.extend_waits(seconds)
