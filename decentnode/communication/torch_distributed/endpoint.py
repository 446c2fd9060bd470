"""Nodes whose payloads go through a process group of torch.distributed, on all edges or on some."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.device.copies import same_place
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Message
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.torch_distributed.group_membership import GroupMembership
from decentnode.communication.torch_distributed.messages import Closed, Done, Note, Size
from decentnode.communication.torch_distributed.process_group import Group, Transfer
from decentnode.communication.torch_distributed.transfers import GroupExchange, TransferQueue
from decentnode.communication.zeromq.endpoint import ZeroMQEndpoint, keep_last
from decentnode.communication.zeromq.io_thread import IoThread
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


class GroupEndpoint(ZeroMQEndpoint):
    """Sends through the group where both ends are members, and like the ZeroMQ endpoint elsewhere.

    Control messages use ZeroMQ. Payloads of fixed length that go both ways need none: each one also
    acknowledges the payloads before. On other edges the reader sends an acknowledgement. Until then a payload
    is kept, so ZeroMQ can resend it if the group fails.
    """

    reads_doorbell: ClassVar[bool] = False

    def __init__(
        self, rank: int, io_thread: IoThread, slots: tuple[Tensor, Tensor], segment: Segment | None,
        most_bytes: int,
    ) -> None:  # fmt: skip
        """`most_bytes`: the largest payload that any peer may send."""
        super().__init__(rank, io_thread, slots, segment, {})
        self._endpoints[rank] = self
        self.device = slots[0].device
        self.group_membership = GroupMembership(rank, self.post, self._abandon)
        self._most_bytes = most_bytes
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

    def foresee(self, peers: Collection[int]) -> None:
        """Closes no link: the group ends at the loss of any member, which a link shows."""

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, deadline: float,
        layout: Layout,
    ) -> ExchangeHandle:  # fmt: skip
        self._group = self.group_membership.group
        keep_last(self._seq_of, key, self._seq + 1)
        keep_last(self._unconfirmed, key, {})
        handle = super().exchange(outgoing, sources, key, deadline, layout)
        self._send_done(s for s in list(self._arrived) if self._is_due(*s, key))
        if self._group is not None:
            expected = self._expected(self._group, sources, layout)
            timeout = Timeouts.group_exchange(deadline)
            sends = {target: carried.payload.buffer for target, carried in self._unconfirmed[key].items()}
            # Last: the mailbox must be open before the group can deliver into it.
            self.transfer_queue.begin(GroupExchange(self._group, key, sends, expected, timeout))
        return handle

    def _is_due(self, source: int, part: int, key: Key) -> bool:
        """Whether a source needs an acknowledgement now, because no payload through the group carries it."""
        # Peers that have left keep serving until all their payloads are read.
        return self.mailbox.peers.has_left(source) or (
            part == key[2] and source not in self._unconfirmed.get(key, ())
        )

    def _expected(self, group: Group, sources: Sequence[int], layout: Layout) -> dict[int, Size | None]:
        """By source the size expected through the group; None: not known yet."""
        if not layout.max_bytes:
            return {}
        fixed = not layout.variable
        here = {rank for rank in group.members if self.mailbox.peers.error(rank) is None}
        known = {s: self._known_sizes.get(s, {}).get(layout.hash) for s in sorted(here & set(sources))}
        return known if fixed else dict.fromkeys(known)

    def _send(self, payload: Payload, targets: list[int], key: Key) -> list[wire.Outgoing]:
        group = self._group
        through = [j for j in targets if group is not None and j in group.index and payload.layout.max_bytes]
        messages = []
        if group is not None and through:
            moved = payload.to(group.device)
            for target in through:
                # Kept before it is posted: the group may fail at any time.
                self._unconfirmed[key][target] = Unconfirmed(group, moved, self._seq)
                if self._is_news(payload.layout, target, key[2]):
                    messages.append(self._note(target, Size(payload.nbytes, payload.layout.hash), key))
        others = [target for target in targets if target not in through]
        return messages + (super()._send(self._on_host(payload), others, key) if others else [])

    def _on_host(self, payload: Payload) -> Payload:
        """The payload in host memory; one that lies in a device slot is copied into the segment's slot.

        Otherwise it would be staged, and staging has no room for a vector.
        """
        place = None
        if self.segment is not None and self.segment.slots is not self.slots:
            place = same_place(payload.buffer, self.slots, self.segment.slots)
        if place is None:
            return payload.to(HOST)
        return Payload(payload.layout, place.copy_(payload.buffer), payload.counts)

    def _is_news(self, layout: Layout, target: int, part: int) -> bool:
        """Whether the target must be told the size; records that it is."""
        announcement = target, layout.hash, part
        # The size of a variable layout changes with each payload.
        is_news = bool(layout.variable) or announcement not in self._announced
        self._announced.add(announcement)
        return is_news

    def _note(self, target: int, note: Note, key: Key) -> wire.Outgoing:
        body = msgspec.msgpack.encode(note)
        header = self._io_thread.header(wire.Kind.GROUP, self.rank, target, key, length=len(body))
        return (
            self._io_thread.directory.home[target],
            header._replace(body_digest=wire.digest(body)).pack(),
            body,
        )

    def post(self, ranks: Iterable[int], note: Note, key: Key = (0, 0, 0)) -> None:
        """Sends a note to other ranks, in any thread."""
        self._io_thread.dispatch([self._note(rank, note, key) for rank in ranks])

    # Payloads through the group, in the thread that waits for them.

    def brought(self, group: Group, transfer: Transfer, key: Key, layout: int) -> None:
        source = transfer.peer
        if self.mailbox.peers.error(source) is not None:
            return
        self._arrived[source, key[2]] = key
        self.mailbox.deliver(source, key, GroupMessage(source, THROUGH_THE_GROUP, layout, transfer.buffer))
        # A peer in this exchange has released the one before.
        before = [seq for k, seq in self._seq_of.items() if k[2] == key[2] and k < key]
        self.mailbox.acknowledged(source, max(before, default=0), key[2])
        # A target of this payload probably is one of the next, too, which then carries the acknowledgement.
        if group.is_broken or self._is_due(source, key[2], key):
            self._send_done([(source, key[2])])

    def fell_through(self, group: Group, peers: set[int], why: str) -> None:
        # A gloo connection to a peer that has left may fail while the others still work.
        harmless = bool(peers) and not group.gathers and all(map(self.mailbox.peers.has_left, peers))
        if not harmless and not self.mailbox.ended:
            self.group_membership.break_up(group, why)

    def is_gone(self, peer: int) -> bool:
        return self.mailbox.peers.error(peer) is not None or self.mailbox.peers.has_left(peer)

    # Notes of peers, in the socket thread.

    def receive(self, header: wire.Header, body: bytes) -> None:
        """Processes a note; raises WireError."""
        note, sender = wire.unpack(body, Note, "group note"), header.sender
        match note:
            case Size():
                if note.length > self._most_bytes:
                    raise wire.WireError("body length")
                known = self._known_sizes.setdefault(sender, {})
                if len(known) >= MOST_LAYOUTS and note.layout not in known:
                    del known[next(iter(known))]
                known[note.layout] = note
                if not self.transfer_queue.receive_size(sender, header.key, note):
                    raise wire.WireError("too many ahead")
            case Done():
                read = [s for k, s in self._seq_of.items() if k[2] == header.part and k <= header.key]
                self.mailbox.acknowledged(sender, max(read, default=0), header.part)
            case Closed():
                self.group_membership.receive(note)

    def note_lost(self, ranks: Iterable[int]) -> None:
        """Handles lost ranks; after a LEAVE of a rank the group still serves the others."""
        left = set(filter(self.mailbox.peers.has_left, ranks))
        self.group_membership.note_lost(set(ranks) - left)

    # Losses.

    def invalidate(self, peer: int) -> None:
        super().invalidate(peer)
        group = self.group_membership.group
        if group is None or peer not in group.index or self.mailbox.ended:
            return
        if not self.mailbox.peers.has_left(peer) or self.transfer_queue.awaits(peer):
            self.group_membership.break_up(group, f"rank {peer} is lost")

    def resend(self, peer: int, key: Key) -> bool:
        acknowledged = self._acknowledged.get((peer, key[2]))
        if acknowledged is not None:  # it may have been lost on the way
            self.post([peer], Done(), acknowledged)
        carried = self._unconfirmed.get(key, {}).get(peer)
        if carried is None or peer in self._sent.get(key, {}):
            return super().resend(peer, key)
        still_there = self.mailbox.is_unread(peer, carried.seq, key[2])
        # While the group works the payload is late, not lost: a resend would be a duplicate.
        if still_there and carried.group.is_broken:
            payload = carried.payload.to(HOST)
            self._io_thread.dispatch(self._frames(payload, [peer], key, carried.seq))
        return True

    def _abandon(self) -> None:
        """Requests what the ended group did not deliver."""
        self.transfer_queue.clear()
        self._send_done(list(self._arrived))
        sockets = self._io_thread
        sockets.post(lambda: sockets.failure_detector.request_missing(self.mailbox))

    # Releases, and the end.

    def attend(self, handle: ExchangeHandle, timeout: float) -> bool:
        return self.transfer_queue.attend(handle, timeout)

    def acknowledge(self, source: int, message: Message) -> None:
        if not isinstance(message, GroupMessage):
            super().acknowledge(source, message)
        # Without a group no buffer is needed again.
        elif self.group_membership.group is not None:
            self.transfer_queue.pool.return_buffer(message.buffer)

    def _send_done(self, arrived: Iterable[tuple[int, int]]) -> None:
        """Acknowledges by message what has arrived from (source, part), where no payload does so."""
        for source, part in arrived:
            key = self._arrived.pop((source, part), None)
            if key is not None:
                self._acknowledged[source, part] = key
                self.post([source], Done(), key)

    def leave(self, failed: bool = False) -> None:
        self._send_done(list(self._arrived))
        self.group_membership.leave()
        super().leave(failed)
