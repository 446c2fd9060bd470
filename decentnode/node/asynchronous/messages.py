"""The messages of an asynchronous node: what it posts, what has arrived, and who is lost."""

from collections.abc import Iterator
from math import inf

from decentnode.communication.exchange.message_queue import Queued
from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.core.payload import HOST, Layout, Payload, PayloadError
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerError, PeerLeft, PeerTimeout
from decentnode.graph.base import View
from decentnode.node.round_exchange import RoundExchange
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage, Post, Posts
from decentnode.sharing.base import Refusal

FINISHED = (1 << 16) - 1
"""The tag of the message that a node has made its last step; no scheme has so many tags."""
WINDOW_ENDED = FINISHED - 1
"""The tag of the message that a node has ended a window of a replay, which is its number."""
NO_CONTENT = Payload.empty(Layout(()))
QUEUED_IN_REPLAY = 4096
"""Messages of one sender that may wait in a replay, where senders may be ahead of the recording."""


class MessageExchange(RoundExchange):
    """Reports and counts as in rounds; instead of exchanges it has single messages."""

    _sharing: AsyncSharing

    def open(self, round: int, view: View) -> None:
        """Begins a window: admits peers whose broken links hold again."""
        self._view = view
        self.begin(round, NO_CONTENT.buffer)

    def listen(self, replays: bool = False) -> None:
        """Prepares for messages, before the first window."""
        self.finished: set[int] = set()
        """Peers that have made their last step."""
        self._reached: dict[int, int] = {}
        """By peer the last window of a replay that it has ended."""
        self._awaited: dict[int, float] = {}
        self._overdue: dict[int, float] = {}
        messages = self.endpoint.messages
        messages.most = QUEUED_IN_REPLAY if replays else messages.most * self._sharing.burst

    def post(self, posts: Posts) -> None:
        """Sends messages; none of them is awaited."""
        for target, tag, number, payload in posts:
            self.endpoint.send(target, payload.to(HOST), self._round, tag, number)

    def send_finished(self) -> None:
        """Tells all neighbors that this node makes no further step."""
        self.post([Post(peer, FINISHED, self._round, payload=NO_CONTENT) for peer in self._neighbors])

    def send_window_ended(self, round: int) -> None:
        """Tells all neighbors that this node has ended a window of a replay."""
        self.post([Post(peer, WINDOW_ENDED, round, payload=NO_CONTENT) for peer in self._neighbors])

    def is_ahead(self, round: int) -> bool:
        """Whether a neighbor is more than a window behind this node, which has ended this one of a replay."""
        return any(self._reached.get(peer, -1) < round - 1 for peer in self.unfinished)

    @property
    def deadline(self) -> float:
        """Seconds that a silent peer is waited for."""
        return self._timeouts.exchange_deadline()

    @property
    def _neighbors(self) -> list[int]:
        return sorted({*self._view.targets, *self._view.sources})

    @property
    def unfinished(self) -> list[int]:
        """Live neighbors that have not made their last step."""
        return [j for j in self._neighbors if j not in self.finished and j not in self.missing]

    def arrivals(self) -> Iterator[PeerMessage]:
        """All messages since the last call that can be used, in the order of their arrival."""
        for queued in self.endpoint.messages.take():
            if queued.tag == FINISHED:
                self.finished.add(queued.message.source)
            elif queued.tag == WINDOW_ENDED:
                self._reached[queued.message.source] = queued.message.seq
            elif (arrival := self._read(queued)) is not None:
                yield arrival

    def _read(self, queued: Queued) -> PeerMessage | None:
        tag, message = queued
        layout = self._sharing.payload_layout(tag) if tag < self._sharing.tags else None
        if layout is None:
            self.endpoint.refused["tag"] += 1
            return None
        payload, error = message.read(layout)
        if payload is None:
            self._sharing.refusals.append(Refusal(message.source, PayloadError(str(error))))
            return None
        # Counted as in an exchange: what is refused is not received.
        self.endpoint.counters.count_received(payload)
        self._received.add(message.source)
        return PeerMessage(message.source, tag, message.seq, payload=payload.to(self.endpoint.device))

    def lost(self) -> Iterator[PeerError]:
        """Peers that are newly lost: their links are broken, or they do not answer for the deadline."""
        # An answer may be awaited from a neighbor of an earlier window: in a changing graph it is none now.
        awaited, now, deadline = set(self._sharing.awaited), self.clock.now(), self.deadline
        self._awaited = {peer: self._awaited.get(peer, now) for peer in awaited}
        for peer in sorted(awaited.union(self._neighbors)):
            error = self.endpoint.why_lost(peer)
            if error is None and self._is_overdue(peer, now):
                error = PeerTimeout(peer, f"no answer for {deadline:.0f} s", deadline)
            is_needed = peer in awaited or peer not in self.finished
            if error is not None and is_needed and peer not in self.missing:
                yield error

    def _is_overdue(self, peer: int, now: float) -> bool:
        """Whether a peer was past its deadline at two looks, a second apart.

        After a long step, or a suspension of this process, its answer may be here and not read yet. In
        virtual time links tell whether a peer is lost, and a silent one is only slow.
        """
        if self.clock.is_virtual:
            return False
        if now < self._awaited.get(peer, now) + self.deadline:
            self._overdue.pop(peer, None)
            return False
        return now >= self._overdue.setdefault(peer, now) + Timeouts.standstill

    def due(self) -> float:
        """When the deadline of a peer that is awaited ends."""
        if self.clock.is_virtual:
            return inf
        now = self.clock.now()
        waits = {j: self._awaited.setdefault(j, now) for j in self._sharing.awaited if j not in self.missing}
        overdue = self._overdue
        return min(
            (
                overdue[peer] + Timeouts.standstill if peer in overdue else since + self.deadline
                for peer, since in waits.items()
            ),
            default=inf,
        )

    def restart_deadline(self, peer: int) -> bool:
        """Starts the deadline of a peer again, which has sent something; returns whether it was over."""
        self._awaited.pop(peer, None)
        return isinstance(self.missing.get(peer), PeerTimeout)

    def continue_without(self, error: PeerError) -> None:
        # A node that leaves in order has finished, which is no loss to report.
        # Its message that says so may be unread.
        if isinstance(error, PeerLeft) and not error.failed:
            self.missing[error.peer] = error
            self._sharing.on_peer_lost(error.peer)
        else:
            super().continue_without(error)

    async def wait(self, seconds: float, is_stepping: bool = False) -> None:
        """Waits until a message arrives or a peer is lost, at most so many seconds.

        `is_stepping`: the node makes a step meanwhile, so the time is not that of an exchange.
        """
        awaited = list(self._sharing.awaited)
        began = self.clock.now()
        # Only a wait for an answer is a wait for somebody; in any other the node would still train.
        if awaited:
            self._heartbeat.mark(self._round, Activity.RECEIVE)
            self.endpoint.waits_for(awaited)
        await self.endpoint.messages.wait(self.clock, seconds)
        if awaited:
            self._heartbeat.mark(self._round, Activity.TRAIN)
        else:
            self._heartbeat.beat()
        self._seconds += 0.0 if is_stepping else self.clock.now() - began
