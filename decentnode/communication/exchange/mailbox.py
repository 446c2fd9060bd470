"""What has arrived for one node, and what its peers have not acknowledged.

Any thread may deliver; the node waits on handles. A sender is at most one exchange ahead, because it may not
write memory that a reader still holds. Payloads of later exchanges wait in `EarlyMessages`. If a vector
travels in parts, each part has its own memory, and all of this holds for each part separately. Every node
opens and releases exchanges in the order of their keys.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from decentnode.communication.exchange.early_messages import NEVER, EarlyMessages
from decentnode.communication.exchange.handle import ExchangeHandle, ExchangeOwner, Key, Message, Transport
from decentnode.communication.exchange.message_queue import MessageQueue
from decentnode.communication.exchange.send_window import SendWindow
from decentnode.communication.peers.peer import Peer, PeerEvent, Peers, PeerState, Spot
from decentnode.errors import PeerError, PeerLeft, PeerLost

MOST_EARLY = 4


class Mailbox(ExchangeOwner):
    """The arrivals of one node."""

    def __init__(self, rank: int, transport: Transport, alone: bool = False, numbered_from: int = 0) -> None:
        """`numbered_from`: the exchanges of this node have higher numbers than this one."""
        super().__init__(transport, alone)
        self.rank = rank
        self.peers = Peers(self._introduce)
        self.ended = False
        """Whether this node has done its last exchange."""
        self.failed = False
        """Whether it ended by an error."""
        self.parts = 1
        """How many exchanges of one round, each of another part, are in flight at once."""
        self.ahead = 0
        """The round to continue in because the peers are there already; 0: the next one."""
        self.sent_last: Key | None = None
        """The exchange that was opened last; None before the first."""
        self.messages = MessageQueue(self)
        """What arrives outside of the exchanges."""
        self._open_exchanges: dict[Key, ExchangeHandle] = {}
        self._early = EarlyMessages(transport.acknowledge)
        self._send_windows: defaultdict[int, SendWindow] = defaultdict(SendWindow)
        """By part what its readers have not acknowledged."""
        self._last: Key = (-1, 0, 0)
        self._sent = numbered_from

    @property
    def position(self) -> Key:
        """The last exchange sent. Until a node sends in a round, its position is in the round before."""
        round, phase, part = self._last
        return (round, phase, part) if phase >= 0 <= round else (max(0, round - 1), 0, 0)

    @property
    def upcoming(self) -> int:
        """The first round whose exchanges have not started."""
        return self._last[0] + 1

    @property
    def spot(self) -> Spot:
        """Changes whenever the node makes progress: starts a round, or an exchange."""
        return self.upcoming, self.sent_last

    def admit(self, round: int) -> list[int]:
        """Opens the exchanges of a round; returns the peers that rejoin in it with empty state."""
        with self.lock:
            # From here on no agreement for this round or an earlier one is possible (`readmit`).
            self._last = max(self._last, (round, -1, -1))
            rejoined = []
            for peer in self.peers.unsettled():
                if peer.state is PeerState.REJOINING and peer.round <= round:
                    peer.step(PeerEvent.ADMIT)
                    self._note_link(peer)
                if peer.error is None and peer.fresh_from is not None and peer.fresh_from <= round:
                    peer.fresh_from = None
                    rejoined.append(peer.rank)
                self.peers.note(peer)
            return sorted(rejoined)

    def start_at(self, round: int) -> None:
        """Lets this restarted node take part from `round` on; earlier rounds are closed for it."""
        with self.lock:
            self._last = max(self._last, (round - 1, -1, -1))

    def readmit(self, peer: int, round: int, theirs: int = 0) -> bool:
        """Agrees that a lost peer, which starts `theirs` next, rejoins in `round`.

        False if that is too late, or if the peer has left.
        """
        with self.lock:
            entry = self.peers[peer]
            if round < self.upcoming:
                # The peer repeats its proposal if our REJOIN_ACCEPT was lost: the agreement still holds.
                return entry.error is None and entry.round == round
            if self.peers.has_left(peer):
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
            self.peers[peer].fresh_from = round
            self.peers.note(self.peers[peer])

    def returns_in(self, peer: int) -> int | None:
        """The round in which a lost peer rejoins; None without an agreement."""
        with self.lock:
            entry = self.peers[peer]
            return entry.round if entry.state is PeerState.REJOINING else None

    def skip_to(self, round: int, peers: Iterable[int]) -> set[int]:
        """Returns the peers that expect this node in a round before `round`; they rejoin with empty state
        there.
        """
        with self.lock:
            others = [self.peers[rank] for rank in peers if rank != self.rank]
            waiting = [p for p in others if p.error is None or self.returns_in(p.rank) in range(round)]
            for peer in waiting:
                self.start_fresh(peer.rank, round)
            return {peer.rank for peer in waiting}

    def has_dropped(self, peer: int, round: int) -> bool:
        """Whether the edge to a peer that has not left is dropped in this round."""
        with self.lock:
            entry = self.peers[peer]
            is_later = entry.state is PeerState.REJOINING and entry.round > round
            return entry.state is PeerState.LOST or is_later

    def lost(self) -> list[int]:
        """Lost peers that have neither left nor agreed to rejoin."""
        with self.lock:
            return sorted(peer.rank for peer in self.peers.unsettled() if peer.state is PeerState.LOST)

    def link(self, peer: int) -> None:
        """Records that a link to a peer was opened."""
        with self.lock:
            # One without a record is found linked when it is first heard of.
            if peer in self.peers:
                self.peers[peer].step(PeerEvent.LINK)

    def _introduce(self, peer: Peer) -> None:
        self.transport.introduce(peer)
        self._note_link(peer)

    def _note_link(self, peer: Peer) -> None:
        if not self.transport.is_linked(peer.rank):
            peer.step(PeerEvent.UNLINK)

    def may_unlink(self, peer: int) -> bool:
        """Whether the link to a peer may be closed: neither end awaits anything from the other."""
        with self.lock:
            entry = self.peers.get(peer)
            return entry is None or (
                not entry.wants_model
                and not any(peer in handle.awaited for handle in self._open_exchanges.values())
                and not any(
                    peer in window.readers | window.unreleased for window in self._send_windows.values()
                )
            )

    def unlink(self, peer: int) -> None:
        """Records that the link to a peer was closed."""
        with self.lock:
            if (entry := self.peers.get(peer)) is not None:
                entry.step(PeerEvent.UNLINK)
                self.peers.forget(peer)

    def is_unread(self, reader: int, seq: int, part: int) -> bool:
        """Whether a reader has not acknowledged the exchange with this number."""
        with self.lock:
            return self._send_windows[part].awaits(reader, seq)

    def open(
        self, key: Key, seq: int, targets: Iterable[int], sources: Sequence[int], deadline: float
    ) -> ExchangeHandle:
        """Starts to wait for `sources`; `seq` is the number of this node's own payload, read by `targets`."""
        handle = ExchangeHandle(self, key, seq, sources, deadline)
        with self.lock:
            self.sent_last = key
            self._last, self._sent = max(self._last, key), max(self._sent, seq)
            # The order matters: what was sent before a loss is settled first. Late messages then find their
            # source missing, and are not mixed.
            early, skipped = self._early.take(key)
            for source, (message, is_late) in early.items():
                if not is_late:
                    self._settle(handle, source, message)
            for peer in self.peers.unsettled():
                if peer.state is PeerState.LEAVING and peer.last < key:
                    left = PeerLeft(peer.rank, peer.last[0], peer.failed)
                    self._stop_exchanging(peer.rank, PeerEvent.FINISH, left)
            for source in sorted(handle.awaited):
                if (error := self.peers[source].error) is not None:
                    self._miss(handle, source, error)
            for source, (message, is_late) in early.items():
                if is_late:
                    self._settle(handle, source, message)
            if skipped:
                self.refused["stale"] += skipped
            # A lost peer acknowledges nothing: as a reader it would block the next exchange.
            peers = [self.peers[target] for target in targets]
            readers = {p.rank for p in peers if p.error is None and p.state is not PeerState.LEAVING}
            handle.targets = frozenset(readers)
            # Done means that all earlier memory of this part is free.
            handle.unreleased = self._send_windows[key[2]].send(seq, readers)
            self._open_exchanges[key] = handle
            if self.failure is not None:
                handle.finish()
            self._finish_if_complete(handle)
        return handle

    def deliver(self, source: int, key: Key, message: Message) -> None:
        """Accepts a message for an open exchange, or keeps it for a later one; drops any other."""
        with self.lock:
            self.peers[source].reach(key[0], time.monotonic())
            handle = self._open_exchanges.get(key)
            if handle is not None:
                self._settle(handle, source, message)
                self._finish_if_complete(handle)
            elif key <= self._last:
                self._note_surplus(source, key, "stale")
            # A correct peer is one exchange ahead; the limit bounds what a faulty one can occupy.
            elif surplus := self._early.keep(
                source, key, message, self.peers[source].error is not None, MOST_EARLY * self.parts
            ):
                self._note_surplus(source, key, surplus)
            else:
                self._infer_loss(source, key)

    def acknowledged(self, reader: int, seq: int, part: int | None = None) -> None:
        """Records that `reader` has released everything up to `seq`, in one part or in all."""
        with self.lock:
            # A number that was never sent: the message is damaged or forged.
            if seq > self._sent:
                self.refuse("acknowledgement")
                return
            self._remove_reader(reader, seq, part)

    def lose(self, peer: int, error: PeerError) -> None:
        """Stops waiting for a peer until it rejoins; what it had sent still counts."""
        self._stop_exchanging(peer, PeerEvent.LOSE, error)

    def replace(self, peer: int, error: PeerError) -> None:
        """Records that a new process has taken a peer's place: old payloads must not count for it."""
        with self.lock:
            self._stop_exchanging(peer, PeerEvent.RESTART, error)
            self.peers[peer].forget_timeouts()
            self._early.drop_from(peer, NEVER)

    def _stop_exchanging(self, peer: int, event: PeerEvent, error: PeerError) -> None:
        """Moves a peer to a state in which it exchanges nothing."""
        with self.lock:
            was_exchanging = self.peers[peer].error is None
            self.peers[peer].step(event, error)
            self.peers.note(self.peers[peer])
            if not was_exchanging:
                return
            # First, because `_remove_reader` may finish an exchange whose memory the peer is still reading.
            self.transport.invalidate(peer)
            for handle in self._open_exchanges.values():
                if peer in handle.awaited:
                    self._miss(handle, peer, error)
            self._remove_reader(peer)

    def drop_edge(self, peer: int, error: PeerError, until: int = NEVER) -> None:
        """Drops the edge to a peer that may be alive; nothing of it is mixed any more.

        Otherwise W would not be symmetric in rounds whose payloads had arrived before. Payloads of round
        `until` and later ones count again.
        """
        with self.lock:
            self.lose(peer, error)
            self._early.drop_from(peer, until)

    def want_model(self, peer: int) -> None:
        """Records a peer's request for this node's model; during an exchange the vector is not written, so
        sends it then.
        """
        with self.lock:
            self.peers[peer].wants_model = True
            self.peers.note(self.peers[peer])
            if self._open_exchanges:
                self.transport.give_model()

    def take_wanting(self) -> list[int]:
        """Peers that have requested this node's model since the last call."""
        with self.lock:
            wanting = [peer for peer in self.peers.unsettled() if peer.wants_model]
            for peer in wanting:
                peer.wants_model = False
                self.peers.note(peer)
            return sorted(peer.rank for peer in wanting)

    def depart(self, peer: int, last: Key | None, failed: bool = False) -> None:
        """Records that a peer ended after exchange `last`; None: it has sent nothing; `failed`: by an error.

        What it sent until then is still awaited.
        """
        with self.lock:
            awaited = [handle.key for handle in self._open_exchanges.values() if peer in handle.awaited]
            # Payloads and LEAVE may travel by different routes, so a payload may arrive after it, even for an
            # exchange that has not opened.
            owes = last is not None and (last > self._last or any(key <= last for key in awaited))
            if owes and last is not None and self.peers[peer].error is None:
                self.peers[peer].step(PeerEvent.LEAVE)
                self.peers[peer].last, self.peers[peer].failed = last, failed
                self.peers.note(self.peers[peer])
                self._remove_reader(peer)
            else:
                self._stop_exchanging(peer, PeerEvent.FINISH, PeerLeft(peer, last[0] if last else -1, failed))

    def fail(self, error: BaseException) -> None:
        """Ends every exchange, open or future, with an error of the transport itself."""
        with self.lock:
            self.failure = error
            for handle in self._open_exchanges.values():
                handle.finish()
            self._open_exchanges.clear()

    def note_waiting(self, peer: int, key: Key, for_us: bool = False) -> None:
        """Records that `peer` is alive and waits in exchange `key`; `for_us`: for this node."""
        with self.lock:
            self.peers[peer].note_waiting(key, time.monotonic())
            # Two nodes that wait for each other in the same exchange would otherwise request without a pause.
            self._infer_loss(peer, key if for_us else (*key[:2], key[2] + 1))

    def note_progress(self, peer: int, key: Key) -> None:
        """Records that `peer` is behind, in exchange `key`, and whether it made progress."""
        with self.lock:
            self.peers[peer].advance(key, time.monotonic())
            behind = [
                handle
                for handle in self._open_exchanges.values()
                if peer in handle.awaited and key < handle.key
            ]
            self.usual.was_needless = self.usual.was_needless or bool(behind)

    def awaited(self) -> list[tuple[ExchangeHandle, set[int]]]:
        """Open exchanges with the peers each waits for: sources, and readers of earlier payloads."""
        with self.lock:
            return [(handle, handle.awaited | handle.unreleased) for handle in self._open_exchanges.values()]

    def times_out_at(self, peer: int, handle: ExchangeHandle) -> float:
        """When a peer times out in this exchange if it stays silent."""
        with self.lock:
            return self.peers[peer].times_out_at(handle.key, handle.opened, handle.deadline)

    def extend_deadlines(self, seconds: float) -> None:
        """Extends every deadline by the seconds for which this process was suspended."""
        with self.lock:
            for peer in self.peers.known():
                peer.extend_deadlines(seconds)
            for handle in self._open_exchanges.values():
                handle.opened += seconds

    def is_read(self) -> bool:
        """True when no live peer has unread payloads of this node."""
        with self.lock:
            return not any(window.readers or window.unreleased for window in self._send_windows.values())

    def _settle(self, handle: ExchangeHandle, source: int, message: Message) -> None:
        if source in handle.awaited:
            handle.awaited.discard(source)
            handle.messages[source] = message
        else:
            reason = "repeated" if source in handle.messages else "unexpected source"
            self._note_surplus(source, handle.key, reason)

    def _note_surplus(self, source: int, key: Key, reason: str) -> None:
        """Counts a message without use, unless this node requested it."""
        if key > self.peers[source].requested:
            self.refuse(reason)

    def _miss(self, handle: ExchangeHandle, source: int, error: PeerError) -> None:
        handle.awaited.discard(source)
        handle.missing[source] = error

    def _remove_reader(self, reader: int, seq: float = math.inf, part: int | None = None) -> None:
        """Waits no longer for a reader of payloads up to a number, in one part or in all."""
        for of, window in self._send_windows.items():
            if part is None or part == of:
                window.remove_reader(reader, seq)
        for handle in tuple(self._open_exchanges.values()):
            self._finish_if_complete(handle)

    def _finish_if_complete(self, handle: ExchangeHandle) -> None:
        if handle.awaited or handle.unreleased:
            if handle.is_long:
                self.show_awaited(handle)
            return
        del self._open_exchanges[handle.key]
        self.usual.learn(time.monotonic() - handle.opened)
        handle.finish()

    def _infer_loss(self, peer: int, key: Key) -> None:
        """Requests what must have been lost: links keep the order, so a peer in a later exchange has sent its
        payload.
        """
        for handle in self._open_exchanges.values():
            if handle.key < key and peer in handle.awaited:
                self.transport.request_resend(peer, handle.key)
