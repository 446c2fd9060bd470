"""The route through a process group of torch.distributed, on all edges of a node or on some.

Threads: the node's thread posts transfers and waits for them; what has arrived it delivers itself. The socket
thread receives messages, resends by frames what a failed group has not delivered, and notices losses. A third
thread ends a group (`group_membership.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Message
from decentnode.communication.peers.peers import Peers
from decentnode.communication.routes import Route
from decentnode.communication.torch_distributed.group_membership import GroupMembership
from decentnode.communication.torch_distributed.messages import Closed, Done, GroupControl, Size
from decentnode.communication.torch_distributed.process_group import Group, Transfer
from decentnode.communication.torch_distributed.transfers import GroupExchange, TransferQueue
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.communication.zeromq.routes import FrameRoute, keep_last
from decentnode.core.payload import HOST, Layout, Payload
from decentnode.core.timeouts import Timeouts

THROUGH_THE_GROUP = 0
"""Stands for the number of a payload through the group, which carries none."""
MOST_LAYOUTS = 1024
"""Most layouts per source whose sizes are kept; one for each part and phase is usual."""


@dataclass(slots=True, eq=False)
class GroupMessage(Message):
    """A payload that came through the group; it lies in this node's memory until it is released."""

    buffer: Tensor

    def _parse(self, layout: Layout) -> Payload:
        return Payload.parse(layout, self.buffer)


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A payload in the group, kept for a resend by ZeroMQ if the group fails."""

    group: Group
    payload: Payload
    """The payload on the device of the group."""
    seq: int


class GroupRoute(Route):
    """Payloads through the group, where both ends are members.

    Control messages use ZeroMQ. Payloads of fixed length that go both ways need none: each one also
    acknowledges the payloads before. On other edges the reader sends an acknowledgement. Until then a payload
    is kept, so ZeroMQ can resend it if the group fails.
    """

    on_device = True

    def __init__(self, peers: Peers, io_thread: IoThread, frame_route: FrameRoute, most_bytes: int) -> None:
        """`most_bytes`: the largest payload that any peer may send."""
        self._rank = peers.rank
        self._peers = peers
        self._mailbox = peers.mailbox
        self._sockets = io_thread.sockets
        self._failure_detector = io_thread.failure_detector
        """It belongs to the socket thread: its work is posted."""
        self._frame_route = frame_route
        self._most_bytes = most_bytes
        self.group_membership = GroupMembership(self._rank, self.post, self._abandon)
        self.transfer_queue = TransferQueue(self)
        self._group: Group | None = None
        self._unconfirmed: dict[Key, dict[int, Unconfirmed]] = {}
        self._seq_of: dict[Key, int] = {}
        """The numbers of this node's last two exchanges of each part, in order."""
        self._announced: set[tuple[int, int, int]] = set()
        """The (target, layout, part) that it knows; per part, because parts do not wait for each other."""
        self._known_sizes: dict[int, dict[int, Size]] = {}
        """By source the size of its payloads, by layout."""
        self._arrived: dict[tuple[int, int], Key] = {}
        """By (source, part) the last exchange that the group brought and that is not acknowledged."""
        self._acknowledged: dict[tuple[int, int], Key] = {}
        """By (source, part) the last exchange that was acknowledged by a message."""

    def begin(self, key: Key, seq: int) -> None:
        self._group = self.group_membership.group
        keep_last(self._seq_of, key, seq)
        keep_last(self._unconfirmed, key, {})

    def carried(self, payload: Payload, targets: list[int]) -> list[int]:
        group = self._group
        if group is None or not payload.layout.max_bytes:
            return []
        return [target for target in targets if target in group.index]

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        assert self._group is not None, "it carries to no target without one"
        moved = payload.to(self._group.device)
        for target in targets:
            # Kept before it is posted: the group may fail at any time.
            self._unconfirmed[key][target] = Unconfirmed(self._group, moved, seq)
            # A target must be told the size; that of a variable layout changes with each payload.
            announcement = target, payload.layout.hash, key[2]
            if payload.layout.variable or announcement not in self._announced:
                self.post([target], Size(payload.nbytes, payload.layout.hash), key)
            self._announced.add(announcement)

    def complete(
        self, handle: ExchangeHandle, sources: Sequence[int], deadline: float, layout: Layout
    ) -> None:
        key = handle.key
        self._send_done(s for s in list(self._arrived) if self._is_due(*s, key))
        if self._group is not None:
            expected = self._expected(self._group, sources, layout)
            timeout = Timeouts.group_exchange(deadline)
            sends = {target: sent.payload.buffer for target, sent in self._unconfirmed[key].items()}
            # Last: the mailbox must be open before the group can deliver into it.
            self.transfer_queue.begin(GroupExchange(self._group, key, sends, expected, timeout))

    def _is_due(self, source: int, part: int, key: Key) -> bool:
        """Whether a source needs an acknowledgement now, because no payload through the group carries it."""
        # Peers that have left keep serving until all their payloads are read.
        return self._peers.has_left(source) or (
            part == key[2] and source not in self._unconfirmed.get(key, ())
        )

    def _expected(self, group: Group, sources: Sequence[int], layout: Layout) -> dict[int, Size | None]:
        """By source the size expected through the group; None: not known yet."""
        if not layout.max_bytes:
            return {}
        fixed = not layout.variable
        here = {rank for rank in group.members if self._peers.error(rank) is None}
        known = {s: self._known_sizes.get(s, {}).get(layout.hash) for s in sorted(here & set(sources))}
        return known if fixed else dict.fromkeys(known)

    def post(self, ranks: Iterable[int], message: GroupControl, key: Key = (0, 0, 0)) -> None:
        """Sends a message to other ranks, in any thread."""
        body = msgspec.msgpack.encode(message)
        for rank in ranks:
            header = self._sockets.header(wire.Kind.GROUP, self._rank, rank, key, length=len(body), body=body)
            self._sockets.dispatch([(self._sockets.directory.home[rank], header.pack(), body)])

    # Payloads through the group, in the thread that waits for them.

    def brought(self, group: Group, transfer: Transfer, key: Key, layout: int) -> None:
        source = transfer.peer
        if self._peers.error(source) is not None:
            return
        self._arrived[source, key[2]] = key
        self._mailbox.deliver(source, key, GroupMessage(source, THROUGH_THE_GROUP, layout, transfer.buffer))
        # A peer in this exchange has released the one before.
        before = [seq for k, seq in self._seq_of.items() if k[2] == key[2] and k < key]
        self._mailbox.acknowledged(source, max(before, default=0), key[2])
        # A target of this payload probably is one of the next, too, which then carries the acknowledgement.
        if group.is_broken or self._is_due(source, key[2], key):
            self._send_done([(source, key[2])])

    def fell_through(self, group: Group, peers: set[int], why: str) -> None:
        # A gloo connection to a peer that has left may fail while the others still work.
        harmless = bool(peers) and not group.gathers and all(map(self._peers.has_left, peers))
        if not harmless and not self._mailbox.ended:
            self.group_membership.break_up(group, why)

    def reads_nothing(self, peer: int) -> bool:
        return self._peers.error(peer) is not None or self._peers.has_left(peer)

    # Notes of peers, in the socket thread.

    def receive(self, header: wire.Header, body: bytes) -> None:
        """Processes a message; raises WireError."""
        message, sender = wire.unpack(body, GroupControl, "group note"), header.sender
        match message:
            case Size():
                if message.length > self._most_bytes:
                    raise wire.WireError("body length")
                known = self._known_sizes.setdefault(sender, {})
                if len(known) >= MOST_LAYOUTS and message.layout not in known:
                    del known[next(iter(known))]
                known[message.layout] = message
                if not self.transfer_queue.receive_size(sender, header.key, message):
                    raise wire.WireError("too many ahead")
            case Done():
                read = [s for k, s in self._seq_of.items() if k[2] == header.part and k <= header.key]
                self._mailbox.acknowledged(sender, max(read, default=0), header.part)
            case Closed():
                self.group_membership.receive(message)

    def note_lost(self, ranks: Iterable[int]) -> None:
        """Handles lost ranks; after a LEAVE of a rank the group still serves the others."""
        left = set(filter(self._peers.has_left, ranks))
        self.group_membership.note_lost(set(ranks) - left)

    # Losses.

    def invalidate(self, peer: int, seq: int) -> None:
        group = self.group_membership.group
        if group is None or peer not in group.index or self._mailbox.ended:
            return
        if not self._peers.has_left(peer) or self.transfer_queue.awaits(peer):
            self.group_membership.break_up(group, f"rank {peer} is lost")

    def resend(self, peer: int, key: Key) -> bool:
        acknowledged = self._acknowledged.get((peer, key[2]))
        if acknowledged is not None:  # it may have been lost on the way
            self.post([peer], Done(), acknowledged)
        sent = self._unconfirmed.get(key, {}).get(peer)
        if sent is None or self._frame_route.has_sent(peer, key):
            return False
        still_there = self._mailbox.is_unacknowledged(peer, sent.seq, key[2])
        # While the group works the payload is late, not lost: a resend would be a duplicate.
        if still_there and sent.group.is_broken:
            self._frame_route.send(sent.payload.to(HOST), [peer], key, sent.seq)
        return True

    def _abandon(self) -> None:
        """Requests what the ended group did not deliver."""
        self.transfer_queue.clear()
        self._send_done(list(self._arrived))
        self._sockets.post(lambda: self._failure_detector.request_missing(self._peers))

    # Releases, and the end.

    def acknowledge(self, source: int, message: Message) -> bool:
        # Without a group no buffer is needed again.
        if isinstance(message, GroupMessage) and self.group_membership.group is not None:
            self.transfer_queue.pool.return_buffer(message.buffer)
        return isinstance(message, GroupMessage)

    def _send_done(self, arrived: Iterable[tuple[int, int]]) -> None:
        """Acknowledges by message what has arrived from (source, part), where no payload does so."""
        for source, part in arrived:
            key = self._arrived.pop((source, part), None)
            if key is not None:
                self._acknowledged[source, part] = key
                self.post([source], Done(), key)

    def leave(self, failed: bool) -> None:
        self._send_done(list(self._arrived))
        self.group_membership.leave()
