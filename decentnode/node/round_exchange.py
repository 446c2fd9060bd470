"""The exchanges of a node's rounds: keys, deadlines, and missing peers."""

import statistics
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from torch import Tensor

from decentnode.communication.base import Endpoint, Inbox
from decentnode.communication.exchange.handle import Message
from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatSlot, NodeProgress
from decentnode.communication.launcher_link.reports import (
    PeerBack,
    PeerMissing,
    Rejected,
    Reporter,
)
from decentnode.core.clock import Clock
from decentnode.core.payload import Payload, dense_layout
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerError, PeerLeft, PeerTimeout, PeerUnmet, ProtocolError, RunFailed
from decentnode.formats.records import RoundRecord
from decentnode.sharing.base import SharingBase
from decentnode.training.local_steps import RoundAbandoned

Tap = Callable[[int, int, Mapping[int, Payload], Mapping[int, Message]], None]
"""Gets the round, the exchange within it, what arrived by source, and when."""
ROUNDS_REMEMBERED = 20


class RoundExchange:
    """The exchanges of a node's rounds: keys, deadlines, and missing peers."""

    def __init__(
        self, endpoint: Endpoint, sharing: SharingBase, clock: Clock, reporter: Reporter,
        heartbeat: HeartbeatSlot, timeouts: Timeouts, stop_because: str = "",
        may_fetch: Callable[[int], bool] | None = None,
    ) -> None:  # fmt: skip
        """`stop_because`: the reason why the loss of a peer ends this node, if it does.

        `may_fetch`: whether a peer that requests this node's model may have it; None: nobody may.
        """
        self.endpoint = endpoint
        self.clock = clock
        self.missing: dict[int, PeerError] = {}
        self.may_fetch = may_fetch or (lambda peer: False)
        self.tap: Tap | None = None
        """The tap that gets the payloads that passive adversaries see."""
        self.refused: Counter[str] = Counter()
        """Messages and payloads refused up to the end of the last round, by reason."""
        self._taken: Counter[str] = Counter()
        """The refusals of the endpoint that are counted already."""
        self._invalid_peers: set[int] = set()
        self._sharing = sharing
        self._reporter = reporter
        self._heartbeat = heartbeat
        self._timeouts = timeouts
        self._stop_because = stop_because
        self._recent: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)
        self._starts = True
        """Whether the first exchange of this process is still to come."""
        self._attacker_weights: list[float] = []
        self.ends_with_peers = False
        """Whether a peer may leave at any time, as a loop does: then a scheme that needs it ends, too."""

    def begin(
        self, round: int, model: Tensor, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Starts the exchanges of a round: admits rejoining peers, and sends `model` to peers that requested
        it.

        `meanwhile` runs during the first exchange; its time does not count as exchange time.
        """
        self._round, self._phase, self._seconds = round, 0, 0.0
        self._meanwhile = meanwhile
        self._received: set[int] = set()
        self._peer_errors: dict[int, PeerError] = {}
        self._inbox: Inbox | None = None
        self._is_valid = True
        for peer in self.endpoint.admit(round):
            self.note_rejoined(peer)
        # Before the first exchange: from here on the vector is not written until the mix.
        self.endpoint.offer(model, self.may_fetch)

    def is_valid(self) -> bool:
        """Whether no payload was invalidated before it was mixed; acknowledges all payloads.

        Peers may time out on a node that was suspended, and write the memory that it reads. Such a mix is
        discarded. Raises RunFailed if the scheme tolerates no loss.
        """
        self._release()
        if not self._is_valid:
            where, why = f"round {self._round + 1}", "neighbors timed out on this node while it was suspended"
            if not self._sharing.promises.tolerates_loss:
                raise RunFailed(f"rank {self.endpoint.rank}, {where}: {why}")
            print(f"{where}: discarding this mix: {why}", flush=True)
        return self._is_valid

    async def __call__(self, outgoing: Mapping[int, Payload], sources: Sequence[int]) -> Inbox:
        """One neighborhood collective; the payloads of this round's previous exchange become invalid."""
        began = self.clock.now()
        # Before the send: acknowledgements travel on the next payloads.
        self._release()
        layout = self._sharing.payload_layout(self._phase)
        if layout is None:
            raise RunFailed(f"{type(self._sharing).__name__} exchanges without a payload layout")
        key = (self._round, self._phase, 0)
        self._heartbeat.mark(self._round, Activity.SEND)
        # The median ignores single slow rounds, such as those with an evaluation. In virtual time links tell
        # who is lost, not deadlines.
        is_timed = self._recent and not self.clock.is_virtual
        usual = statistics.median(self._recent) if is_timed else 0.0
        deadline = self._timeouts.exchange_deadline(usual, starts=self._starts)
        handle = self.endpoint.exchange(outgoing, sources, key, deadline=deadline, layout=layout)
        if self._phase == 0 and self._meanwhile is not None:
            # The payloads are on their way while the node trains.
            trains = self.clock.now()
            await self._meanwhile()
            began += self.clock.now() - trains
        self._heartbeat.mark(self._round, Activity.RECEIVE)
        await handle
        self._starts = False
        self._heartbeat.mark(self._round, Activity.MIX)
        self._inbox = inbox = Inbox(handle, layout, self.endpoint)
        if self.tap is not None:
            self.tap(self._round, self._phase, inbox, handle.messages)
        self._phase += 1
        self._received.update(inbox)
        for error in inbox.missing.values():
            self.continue_without(error)
        self._seconds += self.clock.now() - began
        return inbox

    @property
    def attacker_weight(self) -> float | None:
        """The mean weight of adversaries in the mixes of this process; None without adversaries."""
        return statistics.fmean(self._attacker_weights) if self._attacker_weights else None

    async def with_all(self, vector: Tensor, others: Sequence[int], number: int) -> Inbox:
        """Exchanges a vector of shape (d,) with all `others`, who do the same after the same round.

        `number`: counts these exchanges of a round, from 0. The caller releases the inbox.
        """
        layout = dense_layout(len(vector), vector.dtype)
        self._release()
        self.endpoint.foresee(others)
        handle = self.endpoint.exchange(
            dict.fromkeys(others, Payload.dense(vector)), others, (self._round, self._phase + number, 0),
            deadline=self._timeouts.exchange_deadline(), layout=layout,
        )  # fmt: skip
        await handle
        return Inbox(handle, layout, self.endpoint)

    def end(self, record: RoundRecord, seconds: float) -> None:
        """Ends the round's exchanges: acknowledges the payloads, and fills in the record."""
        self._release()
        record.exchange_seconds = self._seconds
        record.mix_seconds = max(0.0, seconds - self._seconds)
        record.heard = len(self._received)
        record.late = [peer for peer, error in self._peer_errors.items() if isinstance(error, PeerTimeout)]
        record.lost = [peer for peer in self._peer_errors if peer not in record.late]
        record.refused = self._take_refusals()
        record.attacker_weight = weight = self._sharing.watched_weight
        if weight is not None:
            self._attacker_weights.append(weight)
        for peer in self._received - self._peer_errors.keys():
            # A refused payload does not drop the edge, so no agreement announces that the peer rejoins.
            if isinstance(self.missing.get(peer), ProtocolError):
                self.note_rejoined(peer)

    def remember(self, seconds: float, record: RoundRecord) -> None:
        """Updates the usual duration of a round, and shows the launcher what the node has done."""
        if not record.late:  # a hung peer would extend its own deadline
            self._recent.append(seconds)
        sent = self.endpoint.counters.sent
        virtual = None if record.wall_seconds is None else record.seconds
        self._heartbeat.record_progress(
            NodeProgress(record.round, record.loss, sent, record.epsilon, virtual_seconds=virtual)
        )

    def _take_refusals(self) -> dict[str, int]:
        """Refusals since the last round, by reason; reports each peer with refused payloads once."""
        # Counters take longer than all else that a usual round records.
        if not (self.endpoint.refused or self._sharing.refusals):
            return {}
        # One atomic copy, because the receiving thread adds to it.
        total = Counter(dict(self.endpoint.refused))
        new, self._taken = total - self._taken, total
        for peer, error in self._sharing.refusals:
            new[error.counted_as] += 1
            if peer not in self._invalid_peers:
                self._invalid_peers.add(peer)
                rank, round = self.endpoint.rank, self._round
                self._reporter.send(Rejected(rank, round, peer, str(error)[:500]))
        self._sharing.refusals.clear()
        self.refused += new
        return dict(new)

    def _release(self) -> None:
        if self._inbox is not None:
            self._is_valid = self._inbox.release() and self._is_valid
            self._inbox = None

    def note_rejoined(self, peer: int) -> None:
        """Continues with a peer that was lost."""
        if self.missing.pop(peer, None) is not None:
            print(f"round {self._round + 1}: rank {peer} is back", flush=True)
            self._reporter.send(PeerBack(self.endpoint.rank, self._round, peer))
        else:
            # The peer's process, or this one's, was replaced before a payload was missing.
            self._sharing.on_peer_lost(peer)
        self._sharing.on_peer_back(peer)

    def continue_without(self, error: PeerError) -> None:
        """Continues without a peer; raises RunFailed where the settings do not."""
        peer, rank = error.peer, self.endpoint.rank
        self._peer_errors[peer] = error
        # Reported once per loss, not in every round.
        if peer in self.missing:
            return
        self.missing[peer] = error
        has_left = self.ends_with_peers and isinstance(error, PeerLeft) and not error.failed
        if has_left and not self._sharing.promises.tolerates_loss:
            print(f"round {self._round + 1}: ending with rank {peer}, which has left", flush=True)
            raise RoundAbandoned
        if self._stop_because and not has_left:
            raise RunFailed(f"rank {rank}, round {self._round + 1}: lost {error} ({self._stop_because})")
        print(f"round {self._round + 1}: continuing without rank {peer}: {error.reason}", flush=True)
        if not has_left:
            is_unmet = isinstance(error, PeerUnmet)
            self._reporter.send(PeerMissing(rank, self._round, peer, error.reason[:500], is_unmet))
        self._sharing.on_peer_lost(peer)
