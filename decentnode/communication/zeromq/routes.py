"""The routes between processes: frames of ZeroMQ messages, and payloads that are read in shared memory.

Threads: the node's thread sends and acknowledges over links that exist, without waking the socket thread.
The socket thread resends, and invalidates what a lost peer may still read.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from decentnode.communication import wire
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Message
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.peers.edges import farewell
from decentnode.communication.peers.peer import Peer, PeerEvent
from decentnode.communication.routes import Route
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.zeromq.sockets import Sockets
from decentnode.core.payload import Layout, Payload
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost

T = TypeVar("T")
SLOW_LINK = 10e6
"""Bytes per second; on a faster link a payload takes less time than its first request waits."""


@dataclass(slots=True)
class Sent:
    """A message with a payload, kept for a resend."""

    header: wire.Header
    body: wire.Body
    due: float
    """The earliest time of the next resend."""
    pause: float = Timeouts.first_request


class FrameRoute(Route):
    """Payloads as frames, to any process; also sends the messages of the other routes.

    Acknowledgements travel on the next message to the same peer, or as messages of their own.
    """

    def __init__(self, mailbox: Mailbox, sockets: Sockets) -> None:
        self._rank = mailbox.rank
        self._mailbox = mailbox
        self._sockets = sockets
        self._sent: dict[Key, dict[int, Sent]] = {}
        self._last_read: dict[int, int] = {}
        """By source the number of its last payload that was read."""
        self._unannounced: set[int] = set()
        """The sources whose last acknowledgement was not sent yet."""
        self._targets: frozenset[int] = frozenset()

    def begin(self, key: Key, seq: int) -> None:
        keep_last(self._sent, key, {})

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        self.send_message(wire.Kind.PAYLOAD, payload, targets, key, seq, payload.buffer.numpy().data)

    def send_message(
        self, kind: wire.Kind, payload: Payload, targets: list[int], key: Key, seq: int, body: wire.Body
    ) -> None:  # fmt: skip
        """Sends a message that carries or announces a payload to each target, and keeps it for a resend."""
        size, layout = payload.nbytes, payload.layout.hash
        header = self._sockets.header(kind, self._rank, targets[0], key, seq, size, layout, body)
        self._unannounced.difference_update(targets)
        due = self._mailbox.clock.now() + Timeouts.first_request + size / SLOW_LINK
        sent = self._sent.setdefault(key, {})
        for target in targets:
            sent[target] = Sent(header, body, due)
        self._dispatch(header, targets, body)

    def has_sent(self, peer: int, key: Key) -> bool:
        """Whether a message of this exchange was sent to a peer."""
        return peer in self._sent.get(key, {})

    def complete(
        self, handle: ExchangeHandle, sources: Sequence[int], deadline: float, layout: Layout
    ) -> None:
        self._targets = handle.targets
        # Sources that are no targets of this exchange need a message of their own.
        if self._unannounced:
            self.send_acknowledgements(sorted(self._unannounced))

    def send_single(self, target: int, payload: Payload, window: int, tag: int, number: int) -> bool:
        # Always a frame: a slot in shared memory would have to wait until its reader has read it.
        body = payload.buffer.numpy().data if payload.nbytes else b""
        header = self._sockets.header(
            wire.Kind.MESSAGE, self._rank, target, (window, tag, 0), number, payload.nbytes,
            payload.layout.hash, body,
        )  # fmt: skip
        self._sockets.dispatch([(self._sockets.directory.home[target], header.pack(), body)])
        return True

    def acknowledge(self, source: int, message: Message) -> bool:
        self._last_read[source] = max(message.seq, self._last_read.get(source, 0))
        self._unannounced.add(source)
        # A target of the next payload learns it from that one.
        if source not in self._targets:
            self.send_acknowledgements([source])
        return True

    def acknowledge_apart(self, peers: Collection[int]) -> None:
        """Acknowledges what no payload to one of these peers takes along soon.

        Their senders must not wait for this node's local steps.
        """
        if apart := sorted(self._unannounced.difference(peers)):
            self.send_acknowledgements(apart)

    def send_acknowledgements(self, sources: list[int]) -> None:
        """Acknowledges by messages of their own what was read of these sources."""
        self._unannounced.difference_update(sources)
        self._dispatch(self._sockets.header(wire.ACKNOWLEDGE, self._rank, sources[0]), sources, b"")

    def _dispatch(self, header: wire.Header, targets: Collection[int], body: wire.Body) -> None:
        """Sends a message to each target, which also acknowledges what this node has read of it."""
        home, known, read = self._sockets.directory.home, self._sockets.incarnations, self._last_read
        self._sockets.dispatch(
            [(home[j], header.pack(j, read.get(j, 0), known.get(home[j], 0)), body) for j in targets]
        )

    def resend(self, peer: int, key: Key) -> bool:
        """Resends, in the socket thread, what its reader has not received; each time after a longer pause."""
        # The peer may wait for this acknowledgement instead of a payload.
        if self._last_read.get(peer):
            self.send_acknowledgements([peer])
        sent = self._sent.get(key, {}).get(peer)
        if sent is None:
            return False
        now = self._mailbox.clock.now()
        # On a slow link a payload may be late because it, or what was sent before it, is still on the way.
        left = self._sockets.links.flushed_at(self._sockets.directory.home[peer])
        due = max(sent.due, left + Timeouts.first_request)
        if self._mailbox.is_unacknowledged(peer, sent.header.seq, key[2]) and now >= due:
            sent.pause *= 2
            sent.due = now + sent.pause + sent.header.length / SLOW_LINK
            # In a run no memory is written before all readers released it. A training loop of its own may
            # change a model by hand meanwhile. Then all discard this exchange, but they wait for it first, so
            # the digest must match.
            header = sent.header._replace(body_digest=wire.digest(sent.body))
            self._dispatch(header, [peer], sent.body)
        return True

    def introduce(self, peer: Peer) -> None:
        if peer.rank in self._sockets.peers_by_rank:
            return
        if self._sockets.directory.incarnation:
            # It was not asked for a round to rejoin in: both ends agree on one when they meet.
            peer.step(PeerEvent.LOSE, PeerLost(peer.rank, "was not met again yet"))
        elif not self._sockets.any_lives([peer.rank]):
            process = self._sockets.directory.home[peer.rank]
            peer.step(PeerEvent.LOSE, self._sockets.links.error(process, peer.rank))

    def leave(self, failed: bool) -> None:
        if self._unannounced:
            self.send_acknowledgements(sorted(self._unannounced))
        for rank in self._sockets.concerned(self._rank) - self._sockets.peers_by_rank.keys():
            # A peer without a link opens one when it needs this node, and receives LEAVE as the answer.
            self._sockets.send_control(wire.Kind.LEAVE, self._rank, rank, *farewell(self._mailbox))


class SharedMemoryRoute(Route):
    """Payloads in the node's own memory, which peers on this machine read in place; a message names it."""

    def __init__(self, segment: Segment, frame_route: FrameRoute, sockets: Sockets) -> None:
        self._segment = segment
        self._frame_route = frame_route
        directory = sockets.directory
        self._readers = {
            rank for process in directory.neighbors for rank in directory.processes[process].ranks
        }
        """The ranks of this machine."""

    def carried(self, payload: Payload, targets: list[int]) -> list[int]:
        return targets if self._readers.issuperset(targets) else [j for j in targets if j in self._readers]

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        reference = wire.REFERENCE.pack(self._segment.offset(payload.buffer, seq, key[2]))
        self._frame_route.send_message(wire.Kind.NOTICE, payload, targets, key, seq, reference)

    def invalidate(self, peer: int, seq: int) -> None:
        # In the segment itself, where the reader looks before and after a mix.
        self._segment.invalidate(peer, seq)


def keep_last(kept: dict[Key, T], key: Key, content: T) -> None:
    """Adds an exchange to what is kept, and drops all before the last one of its part.

    All readers have released those.
    """
    for older in [known for known in kept if known[2] == key[2]][:-1]:
        del kept[older]
    kept[key] = content
