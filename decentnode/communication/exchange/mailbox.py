"""One node's exchanges in flight: what has arrived for them, and what readers have not acknowledged.

A sender is at most one exchange ahead, because it may not write memory that a reader still holds. Payloads
of later exchanges wait in `EarlyMessages`. If a vector travels in parts, each part has its own memory, and
all of this holds for each part separately. Every node opens and releases exchanges in the order of their
keys.

Threads: the node's thread opens exchanges and waits for their handles. Any thread delivers and acknowledges:
that of another node in the same process, the socket thread, or the node's own, from its doorbell or from a
process group. One lock guards all of it, with the records of the peers. `peers/` decides who exchanges; a
mailbox asks.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from decentnode.communication.exchange.early_messages import NEVER, EarlyMessages
from decentnode.communication.exchange.handle import ExchangeHandle, ExchangeOwner, Key, Message, Transport
from decentnode.communication.exchange.message_queue import MessageQueue
from decentnode.communication.exchange.send_window import SendWindow
from decentnode.core.clock import Clock
from decentnode.errors import PeerError

MOST_EARLY = 4


class PeerRecord(Protocol):
    """What a mailbox reads of a peer."""

    error: PeerError | None
    """Why it exchanges nothing; None while it does."""
    requested: Key
    """The latest exchange whose payload was requested: it may arrive twice."""

    reads: bool
    """Whether it will read a payload of the next exchange, and acknowledge it."""

    def reach(self, round: int, now: float) -> bool:
        """Records that it was seen in a round."""


class PeerRecords(Protocol):
    """The peers of a node by rank, as a mailbox asks for them with its lock held."""

    def __getitem__(self, rank: int) -> PeerRecord:
        """The record of a peer, which it has from the first question on."""

    def finish_leaving(self, key: Key) -> None:
        """Ends the exchanges with all whose last one was before `key`."""


class Mailbox(ExchangeOwner):
    """The exchanges in flight of one node."""

    def __init__(
        self, rank: int, transport: Transport, peers: PeerRecords, alone: bool = False,
        numbered_from: int = 0, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """`numbered_from`: the exchanges of this node have higher numbers than this one."""
        super().__init__(transport, alone, clock or Clock())
        self.rank = rank
        self.peers = peers
        self.ended = False
        """Whether this node has done its last exchange."""
        self.failed = False
        """Whether it ended by an error."""
        self.parts = 1
        """How many exchanges of one round, each of another part, are in flight at once."""
        self.last_exchange: Key | None = None
        """The exchange that was opened last; None before the first."""
        self.messages = MessageQueue(self)
        """What arrives outside of the exchanges."""
        self._open_exchanges: dict[Key, ExchangeHandle] = {}
        self._early = EarlyMessages(transport.acknowledge)
        self._send_windows: defaultdict[int, SendWindow] = defaultdict(SendWindow)
        """By part what its readers have not acknowledged."""
        self._reached: Key = (-1, 0, 0)
        """The latest exchange, or the start of the round that was entered after it."""
        self._last_seq = numbered_from

    def __repr__(self) -> str:
        state = "failed" if self.failure or self.failed else "ended" if self.ended else "live"
        exchanges = [*self._open_exchanges.values()]
        counts = f"{len(self._early)} early, {self.refused.total()} refused"
        return f"<Mailbox of rank {self.rank}: {state}, next round {self.next_round}, {counts}; {exchanges}>"

    @property
    def position(self) -> Key:
        """What POSITION says: the last exchange, but in the round before until the node sends in a round."""
        round, phase, part = self._reached
        return (round, phase, part) if phase >= 0 <= round else (max(0, round - 1), 0, 0)

    @property
    def next_round(self) -> int:
        """The first round whose exchanges have not started."""
        return self._reached[0] + 1

    @property
    def progress(self) -> tuple[int, Key | None]:
        """Changes whenever the node makes progress: starts a round, or an exchange."""
        return self.next_round, self.last_exchange

    def enter_round(self, round: int) -> None:
        """Records that this node is in a round: it agrees on no rejoin in it, nor in an earlier one."""
        with self.lock:
            self._reached = max(self._reached, (round, -1, -1))

    @property
    def is_exchanging(self) -> bool:
        """Whether an exchange is open, during which the vector is not written."""
        return bool(self._open_exchanges)

    def is_unacknowledged(self, reader: int, seq: int, part: int) -> bool:
        """Whether a reader has not acknowledged the exchange with this number."""
        with self.lock:
            return self._send_windows[part].awaits(reader, seq)

    def open(
        self, key: Key, seq: int, targets: Iterable[int], sources: Sequence[int], deadline: float
    ) -> ExchangeHandle:
        """Starts to wait for `sources`; `seq` is the number of this node's own payload, read by `targets`."""
        handle = ExchangeHandle(self, key, seq, sources, deadline)
        with self.lock:
            self.last_exchange = key
            self._reached, self._last_seq = max(self._reached, key), max(self._last_seq, seq)
            # The opening is one step for other threads: a peer that was lost before is missed here, and a
            # later loss finds the exchange open. The order matters, too: what was sent before a loss is
            # settled first. Late messages then find their source missing, and are not mixed.
            early, skipped = self._early.take(key)
            for source, (message, is_late) in early.items():
                if not is_late:
                    self._settle(handle, source, message)
            self.peers.finish_leaving(key)
            for source in sorted(handle.awaited):
                if (error := self.peers[source].error) is not None:
                    self._miss(handle, source, error)
            for source, (message, is_late) in early.items():
                if is_late:
                    self._settle(handle, source, message)
            if skipped:
                self.refused["stale"] += skipped
            # A lost peer acknowledges nothing: as a reader it would block the next exchange.
            readers = {target for target in targets if self.peers[target].reads}
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
            message.received = self.clock.now()
            self.peers[source].reach(key[0], message.received)
            handle = self._open_exchanges.get(key)
            if handle is not None:
                self._settle(handle, source, message)
                self._finish_if_complete(handle)
            elif key <= self._reached:
                self._note_surplus(source, key, "stale")
            # A correct peer is one exchange ahead; the limit bounds what a faulty one can occupy.
            elif surplus := self._early.keep(
                source, key, message, self.peers[source].error is not None, MOST_EARLY * self.parts
            ):
                self._note_surplus(source, key, surplus)
            else:
                self.infer_loss(source, key)

    def acknowledged(self, reader: int, seq: int, part: int | None = None) -> None:
        """Records that `reader` has released everything up to `seq`, in one part or in all."""
        with self.lock:
            # A number that was never sent: the message is damaged or forged.
            if seq > self._last_seq:
                self.refuse("acknowledgement")
                return
            self.remove_reader(reader, seq, part)

    # What the peers ask when a life changes, with the lock held: the state of the peer and the exchanges with
    # it change together, so no thread sees a lost peer that is still awaited.

    def stop_exchanging(self, peer: int, error: PeerError) -> None:
        """Ends the wait for a peer in every open exchange; what it had sent still counts."""
        for handle in self._open_exchanges.values():
            if peer in handle.awaited:
                self._miss(handle, peer, error)
        self.remove_reader(peer)

    def drop_early(self, peer: int, until: int = NEVER) -> None:
        """Drops the early messages of a peer for rounds before `until`."""
        self._early.drop_from(peer, until)

    def awaits(self, peer: int) -> bool:
        """Whether anything of a peer is awaited: a payload, or an acknowledgement."""
        return any(peer in handle.awaited for handle in self._open_exchanges.values()) or any(
            peer in window.readers | window.unreleased for window in self._send_windows.values()
        )

    def may_be_owed(self, peer: int, last: Key) -> bool:
        """Whether a payload of a peer whose last exchange is this one may still be on the way.

        Payloads and LEAVE may travel by different routes, so a payload may arrive after it, even for an
        exchange that has not opened.
        """
        awaited = (handle.key for handle in self._open_exchanges.values() if peer in handle.awaited)
        return last > self._reached or any(key <= last for key in awaited)

    def may_be_met(self, last: Key) -> bool:
        """Whether a payload of a peer that was never heard of, and whose last exchange is this one, may
        still be on the way.
        """
        return last >= self._reached

    def note_needless(self, peer: int, key: Key) -> None:
        """Records that a peer is only behind, in exchange `key`: a request to it was needless."""
        self.usual.was_needless |= any(
            peer in handle.awaited and key < handle.key for handle in self._open_exchanges.values()
        )

    def extend_waits(self, seconds: float) -> None:
        """Lets every open wait begin later by so many seconds."""
        for handle in self._open_exchanges.values():
            handle.opened += seconds

    def fail(self, error: BaseException) -> None:
        """Ends every exchange, open or future, with an error of the transport itself."""
        with self.lock:
            self.failure = error
            for handle in self._open_exchanges.values():
                handle.finish()
            self._open_exchanges.clear()
        self.messages.wake()

    def awaited(self) -> list[tuple[ExchangeHandle, set[int]]]:
        """Open exchanges with the peers each waits for: sources, and readers of earlier payloads."""
        with self.lock:
            return [(handle, handle.awaited | handle.unreleased) for handle in self._open_exchanges.values()]

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
        """Counts a message without use, unless this node requested it: then the request was needless."""
        if key > self.peers[source].requested:
            self.refuse(reason)
        else:
            self.usual.note_repeated()

    def _miss(self, handle: ExchangeHandle, source: int, error: PeerError) -> None:
        handle.awaited.discard(source)
        handle.missing[source] = error

    def remove_reader(self, reader: int, seq: float = math.inf, part: int | None = None) -> None:
        """Waits no longer for a reader of payloads up to a number, in one part or in all."""
        for of, window in self._send_windows.items():
            if part is None or part == of:
                window.remove_reader(reader, seq)
        for handle in tuple(self._open_exchanges.values()):
            # One that awaits payloads is completed by the last of them.
            if not handle.awaited or handle.is_long:
                self._finish_if_complete(handle)

    def _finish_if_complete(self, handle: ExchangeHandle) -> None:
        if handle.awaited or handle.unreleased:
            if handle.is_long:
                self.show_awaited(handle)
            return
        del self._open_exchanges[handle.key]
        self.usual.learn(self.clock.now() - handle.opened)
        handle.finish()

    def infer_loss(self, peer: int, key: Key) -> None:
        """Requests what must have been lost: links keep the order, so a peer in a later exchange has sent its
        payload.
        """
        for handle in self._open_exchanges.values():
            if handle.key < key and peer in handle.awaited:
                self.transport.request_resend(peer, handle.key)
