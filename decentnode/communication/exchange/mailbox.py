"""What has arrived for one node, and what its peers have not yet read.

Any thread may deliver; the node waits on handles. Payloads of later rounds are parked: a sender runs
ahead by one exchange at most, because it may not write memory again that a reader still holds. Where a
vector travels in parts, each part has memory of its own, and so all of this holds for each part alone.
Exchanges begin, and are released, in the order of their keys at every node.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from decentnode.communication.exchange.early_messages import NEVER, EarlyMessages
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Message
from decentnode.communication.exchange.peer_progress import PeerProgress
from decentnode.communication.exchange.retransmission import RetransmissionTimer
from decentnode.communication.exchange.send_window import SendWindow
from decentnode.communication.exchange.transport_hooks import MailboxTransport
from decentnode.errors import PeerError, PeerLost, left

MOST_PARKED = 4


class Mailbox(MailboxTransport):
    """The arrivals of one node. `acknowledge(source, seq)` is called when a source's memory is free again.

    `alone` says that no other node shares the event loop: awaiting then blocks the thread, which is quicker.
    """

    def __init__(
        self, rank: int, acknowledge: Callable[[int, Message], None], alone: bool = False,
        numbered_from: int = 0,
    ) -> None:  # fmt: skip
        """`numbered_from`: the exchanges of this node are numbered with higher numbers."""
        super().__init__()
        self.rank = rank
        self.alone = alone
        self.failure: BaseException | None = None
        self.lock = threading.RLock()
        self.gone: dict[int, PeerError] = {}
        self.refused: Counter[str] = Counter()
        self.left: set[int] = set()
        """Peers that have ended, and do not come back by themselves."""
        self.ended = False
        """Whether this node itself has done its last exchange."""
        self.parts = 1
        """How many exchanges, each of another part, are in flight at once."""
        self.ahead = 0
        """The round in which this node should go on because its peers are there already."""
        self.sent_last: Key | None = None
        """The exchange that was begun last; None before any was."""
        self.asked: dict[int, Key] = {}
        """The latest exchange whose payload a peer was asked for: it may come twice."""
        self.anew: dict[int, int] = {}
        """From which round on both ends of an edge that came back know nothing of each other."""
        self._acknowledge = acknowledge
        self._returning: dict[int, int] = {}
        self._agreed: dict[int, int] = {}
        """The round from which on it was agreed with a peer, the last time, to exchange again."""
        self._leaving: dict[int, Key] = {}
        """The last exchange of peers that have ended, while something of it is on its way."""
        self._open: dict[Key, ExchangeHandle] = {}
        self._parked = EarlyMessages(acknowledge)
        self._unread = SendWindow()
        self._last: Key = (-1, 0, 0)
        self._sent = numbered_from
        self._signs = PeerProgress()
        self.timer = RetransmissionTimer()
        """Runs while the node waits."""

    @property
    def position(self) -> Key:
        """The exchange that was sent last; who has sent nothing in a round yet is still in that before it."""
        round, phase, part = self._last
        return (round, phase, part) if phase >= 0 <= round else (max(0, round - 1), 0, 0)

    @property
    def upcoming(self) -> int:
        """The first round whose exchanges have not begun."""
        return self._last[0] + 1

    @property
    def spot(self) -> tuple[int, Key | None]:
        """Changes whenever the node gets on: begins a round, or an exchange."""
        return self.upcoming, self.sent_last

    def admit(self, round: int) -> list[int]:
        """Begins the exchanges of a round; returns the peers that are met anew from there on."""
        with self.lock:
            self._last = max(self._last, (round, -1, -1))
            for peer in [peer for peer, first in self._returning.items() if first <= round]:
                del self._returning[peer], self.gone[peer]
            met = [peer for peer, first in self.anew.items() if first <= round and peer not in self.gone]
            for peer in met:
                del self.anew[peer]
            return met

    def start_at(self, round: int) -> None:
        """Nobody is told of an earlier round to take part in: this node comes back in this one."""
        with self.lock:
            self._last = max(self._last, (round - 1, -1, -1))

    def readmit(self, peer: int, round: int, theirs: int = 0) -> bool:
        """Exchanges with a lost peer, which begins `theirs` next, from `round` on; false if too late."""
        with self.lock:
            if round < self.upcoming:
                # What is proposed once more was agreed to, but the answer did not come.
                return peer not in self.gone and self._agreed.get(peer) == round
            self._signs.forget(peer)
            self.give_up(peer, PeerLost(peer, f"is back from round {round + 1} on"), round)
            self._returning[peer] = self._agreed[peer] = round
            self.anew[peer] = max(round, theirs)
            self.left.discard(peer)
            return True

    def returns_in(self, peer: int) -> int | None:
        """The round from which on a lost peer takes part again; None where none was agreed on."""
        with self.lock:
            return self._returning.get(peer)

    def skip_to(self, round: int, peers: Iterable[int]) -> set[int]:
        """Which of these peers wait for this node in some round before that one, and meet it anew then."""
        with self.lock:
            waiting = set(peers) - self.gone.keys() - {self.rank}
            waiting |= {peer for peer, first in self._returning.items() if first < round}
            self.anew |= dict.fromkeys(waiting, round)
            return waiting

    def has_dropped(self, peer: int, round: int) -> bool:
        """Whether the edge to a peer that is still there does not count in this round."""
        with self.lock:
            back = self._returning.get(peer, round + 1)
            return peer in self.gone and peer not in self.left and back > round

    def lost(self) -> list[int]:
        """Peers that were given up, and neither ended nor have agreed to come back."""
        with self.lock:
            return [peer for peer in self.gone if peer not in self.left and peer not in self._returning]

    def is_unread(self, reader: int, seq: int) -> bool:
        """Whether a reader still has to read what was sent under this number."""
        with self.lock:
            return self._unread.awaits(reader, seq)

    def open(
        self, key: Key, seq: int, targets: Iterable[int], sources: Sequence[int], timeout: float
    ) -> ExchangeHandle:
        """Starts waiting for `sources`; `seq` numbers this node's own sending, read by `targets`."""
        handle = ExchangeHandle(self, key, seq, sources, timeout)
        with self.lock:
            self.sent_last = key
            self._last, self._sent = max(self._last, key), max(self._sent, seq)
            for source, message in self._parked.take(key, late=False):
                self._settle(handle, source, message)
            for source, last in list(self._leaving.items()):
                if last < key:
                    self.lose(source, left(source, last[0]))
            for source in handle.awaited & self.gone.keys():
                self._miss(handle, source, self.gone[source])
            for source, message in self._parked.take(key, late=True):
                self._settle(handle, source, message)
            for _ in range(self._parked.drop_before(key)):
                self.refuse("stale")
            self._unread.add(key[2], seq, set(targets) - self.gone.keys() - self.left)
            self._open[key] = handle
            if self.failure is not None:
                handle.finish()
            self._finish_if_complete(handle)
        return handle

    def deliver(self, source: int, key: Key, message: Message) -> None:
        """Takes a message in: for an open exchange, or parked for a later one; anything else is dropped."""
        with self.lock:
            self._signs.reach(source, key[0], time.monotonic())
            handle = self._open.get(key)
            if handle is not None:
                self._settle(handle, source, message)
                self._finish_if_complete(handle)
            elif key <= self._last:
                self._note_surplus(source, key, "stale")
            elif self._parked.has(source, key):
                self._note_surplus(source, key, "repeated")
            elif self._parked.count(source) < MOST_PARKED * self.parts:
                self._parked.add(source, key, message, source in self.gone)
                self._infer_loss(source, key)
            else:
                self.refuse("too many ahead")

    def refuse(self, reason: str) -> None:
        """Counts a message that cannot be used."""
        with self.lock:
            self.refused[reason] += 1

    def acknowledged(self, reader: int, seq: int, part: int | None = None) -> None:
        """Notes that `reader` no longer reads what was sent up to number `seq`, in that part or in any."""
        with self.lock:
            if seq > self._sent:
                self.refuse("acknowledgement")
                return
            self._unread.strike(reader, seq, part)
            self._finish_complete()

    def lose(self, peer: int, error: PeerError) -> None:
        """Stops waiting for a peer, now and in every later exchange; what it had sent still counts."""
        with self.lock:
            self._returning.pop(peer, None)
            self._leaving.pop(peer, None)
            if peer in self.gone:
                return
            self.make_void(peer)
            self.gone[peer] = error
            self._unread.strike(peer)
            for handle in self._open.values():
                if peer in handle.awaited:
                    self._miss(handle, peer, error)
            self._finish_complete()

    def give_up(self, peer: int, error: PeerError, until: int = NEVER) -> None:
        """Loses a peer that may be alive: of an edge that one end has dropped the other mixes nothing more.

        Else W would not be symmetric in rounds whose payloads were there before. Those of round `until` and
        later ones count again.
        """
        with self.lock:
            self.lose(peer, error)
            self.forget(peer, until)

    def forget(self, peer: int, until: int = NEVER) -> None:
        """Drops what a peer sent ahead for rounds before that one."""
        with self.lock:
            self._parked.drop_from(peer, until)

    def want_model(self, peer: int) -> None:
        """Notes that a peer wants this node's model: at once in an exchange, where nobody writes to it."""
        with self.lock:
            self.wanted.add(peer)
            if self._open:
                self.give_model()

    def depart(self, peer: int, last: Key | None) -> None:
        """Notes that a peer has ended after exchange `last`, and is not asked to come back; None: before any.

        What it sent until then is still waited for.
        """
        with self.lock:
            self.left.add(peer)
            awaited = [handle.key for handle in self._open.values() if peer in handle.awaited]
            # What goes another way than the goodbye may come later, also to an exchange still to begin.
            owes = last is not None and (last > self._last or any(key <= last for key in awaited))
            if owes and last is not None and peer not in self.gone:
                self._leaving[peer] = last
                self._unread.strike(peer)
                self._finish_complete()
            else:
                self.lose(peer, left(peer, last[0] if last else -1))

    def fail(self, error: BaseException) -> None:
        """Ends every exchange, now and later, with an error of the transport itself."""
        with self.lock:
            self.failure = error
            for handle in self._open.values():
                handle.finish()
            self._open.clear()

    def note_waiting(self, peer: int, key: Key, for_us: bool = False) -> None:
        """Notes that `peer` is alive and itself waits in exchange `key`; for this node, or for others."""
        with self.lock:
            self._signs.wait(peer, key, time.monotonic())
            # Two that wait for each other in the same exchange would ask each other without a pause.
            self._infer_loss(peer, key if for_us else (*key[:2], key[2] + 1))

    def note_progress(self, peer: int, key: Key) -> None:
        """Notes that `peer` is behind, in exchange `key`, and whether it got on since the last time."""
        with self.lock:
            self._signs.get_on(peer, key, time.monotonic())
            behind = [handle for handle in self._open.values() if peer in handle.awaited and key < handle.key]
            self.timer.was_needless = self.timer.was_needless or bool(behind)

    def awaited(self) -> list[tuple[ExchangeHandle, set[int]]]:
        """Open exchanges, and whom each waits for: sources, and readers of what was sent before."""
        with self.lock:
            return [(handle, handle.awaited | self._readers_before(handle)) for handle in self._open.values()]

    def silent_since(self, peer: int, handle: ExchangeHandle) -> float:
        """From when on the deadline of a peer counts that this exchange waits for."""
        with self.lock:
            return self._signs.silent_since(peer, handle)

    def forgive(self, seconds: float) -> None:
        """Extends every deadline by a time in which this process itself stood still."""
        with self.lock:
            self._signs.forgive(seconds)
            for handle in self._open.values():
                handle.opened += seconds

    def release(self, handle: ExchangeHandle) -> None:
        """Acknowledges every message of a finished exchange; a second call does nothing."""
        arrived, handle.arrived = handle.arrived, {}
        for source, message in arrived.items():
            self._acknowledge(source, message)

    def is_read(self) -> bool:
        """True when no living peer still has to read anything of ours."""
        with self.lock:
            return self._unread.is_empty()

    def _settle(self, handle: ExchangeHandle, source: int, message: Message) -> None:
        if source in handle.awaited:
            handle.awaited.discard(source)
            handle.arrived[source] = message
        else:
            reason = "repeated" if source in handle.arrived else "unexpected source"
            self._note_surplus(source, handle.key, reason)

    def _note_surplus(self, source: int, key: Key, reason: str) -> None:
        """Counts a message that came for nothing, unless it was asked for."""
        if key > self.asked.get(source, (-1, 0, 0)):
            self.refuse(reason)

    def _miss(self, handle: ExchangeHandle, source: int, error: PeerError) -> None:
        handle.awaited.discard(source)
        handle.missing[source] = error

    def _finish_complete(self) -> None:
        for handle in list(self._open.values()):
            self._finish_if_complete(handle)

    def _finish_if_complete(self, handle: ExchangeHandle) -> None:
        if handle.awaited or self._readers_before(handle):
            return
        self._unread.drop_before(handle.key[2], handle.seq)
        del self._open[handle.key]
        self.timer.learn(time.monotonic() - handle.opened)
        handle.finish()

    def _readers_before(self, handle: ExchangeHandle) -> set[int]:
        """Who still has to read what was sent in earlier exchanges of the same part."""
        return self._unread.before(handle.key[2], handle.seq)

    def _infer_loss(self, peer: int, key: Key) -> None:
        """Links keep the order: who is in a later exchange than one it is awaited in has sent its payload."""
        for handle in self._open.values():
            if handle.key < key and peer in handle.awaited:
                self.ask_for(peer, handle.key)
