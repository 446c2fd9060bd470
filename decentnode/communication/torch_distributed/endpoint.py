"""Nodes whose payloads go through a process group of torch.distributed, on all edges or on some."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.device.copies import same_place
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Message
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.torch_distributed import messages as group_notes
from decentnode.communication.torch_distributed.group_membership import GroupMembership
from decentnode.communication.torch_distributed.messages import (
    Closed,
    Done,
    GroupPlan,
    JoinRequest,
    Note,
    Size,
)
from decentnode.communication.torch_distributed.process_group import Group, Transfer
from decentnode.communication.torch_distributed.transfers import GroupExchange, TransferQueue
from decentnode.communication.zeromq.endpoint import ZeroMQEndpoint
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.core.payload import Layout, Payload, PayloadError
from decentnode.errors import PeerError, ProtocolError

THROUGH_THE_GROUP = 0
"""In place of a sender's number, which no message through the group carries."""
MOST_LAYOUTS = 1024
"""Of one source, whose sizes are kept: one for each part and phase is usual."""
SHARE_OF_DEADLINE = 0.5
"""After this part of it a group that brings nothing is given up, so that what it holds can come by ZeroMQ."""
_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class GroupMessage:
    """A payload that came through the group; it lies in memory of this node, until it is released."""

    source: int
    buffer: Tensor
    layout: int
    seq: int = THROUGH_THE_GROUP
    is_void: ClassVar[bool] = False

    def read(self, layout: Layout) -> tuple[Payload | None, PeerError | None]:
        if self.layout != layout.hash:
            return None, ProtocolError(self.source, "sent another payload layout", "layout")
        try:
            return Payload.parse(layout, self.buffer), None
        except PayloadError as error:
            return None, ProtocolError(self.source, str(error))


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A payload that was given to the group, to be sent by ZeroMQ should the group fail."""

    group: Group
    payload: Payload
    seq: int


class GroupEndpoint(ZeroMQEndpoint):
    """Sends through the group where both ends are in it, and as the ZeroMQ endpoint does elsewhere.

    The control plane stays ZeroMQ's. An exchange of payloads of fixed length costs no message of it where
    they go both ways: one that comes also says that the sender has read the ones before. Elsewhere the reader
    says so. Until then a payload is kept, so that ZeroMQ can bring it should the group fail.
    """

    def __init__(
        self, rank: int, sockets: IoThread, slots: tuple[Tensor, Tensor], segment: Segment | None,
        formation: GroupMembership, most_bytes: int,
    ) -> None:  # fmt: skip
        """`most_bytes` is the largest payload that any peer may send."""
        super().__init__(rank, sockets, slots, segment, {})
        self._siblings[rank] = self
        self.device = slots[0].device
        self.formation = formation
        self._most_bytes = most_bytes
        self.transfer_queue = TransferQueue(self)
        self.mailbox.attend = self.transfer_queue.attend
        self._layout: Layout | None = None
        self._group: Group | None = None
        self._sends: dict[int, Tensor] = {}
        self._carried: dict[Key, dict[int, Unconfirmed]] = {}
        self._seq_of: dict[Key, int] = {}
        """The numbers of this node's last two exchanges of each part, in their order."""
        self._announced: dict[int, set[tuple[int, int]]] = {}
        """By target the layouts that it knows of, and of which part: parts do not wait for each other."""
        self._known: dict[int, dict[int, Size]] = {}
        """By source what its payloads are, by their layout."""
        self._arrived: dict[tuple[int, int], Key] = {}
        """By source and part the last exchange that the group brought, unless the source was told so."""
        self._said: dict[tuple[int, int], Key] = {}
        """The same, when the source was told."""
        formation.abandoned = self._abandon

    def expect(self, layout: Layout) -> None:
        self._layout = layout

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, timeout: float
    ) -> ExchangeHandle:
        self._group, self._sends = self.formation.group, {}
        older = [kept for kept in self._seq_of if kept[2] == key[2]][:-1]
        self._seq_of = {k: seq for k, seq in self._seq_of.items() if k not in older} | {key: self._seq + 1}
        self._carried = {k: sent for k, sent in self._carried.items() if k not in older} | {key: {}}
        handle = super().exchange(outgoing, sources, key, timeout)
        self._say_done(s for s in list(self._arrived) if self._is_due(*s, key))
        if self._group is not None:
            expected, patience = self._expected(self._group, sources), SHARE_OF_DEADLINE * timeout
            self.transfer_queue.begin(GroupExchange(self._group, key, self._sends, expected, patience))
        return handle

    def _is_due(self, source: int, part: int, key: Key) -> bool:
        """Whether a source has to be told now, as no payload through the group tells it."""
        # Those who have left stay until everything of theirs is read.
        return source in self.mailbox.left or (part == key[2] and source not in self._carried.get(key, ()))

    def _expected(self, group: Group, sources: Sequence[int]) -> dict[int, Size | None]:
        """What comes through the group, by source, as far as it is known."""
        layout = self._layout
        if layout is None or not layout.max_bytes:
            return {}
        fixed, here = not layout.variable, set(group.members) - self.mailbox.gone.keys()
        known = {s: self._known.get(s, {}).get(layout.hash) for s in sorted(here & set(sources))}
        return known if fixed else dict.fromkeys(known)

    def _send(self, payload: Payload, targets: list[int], key: Key) -> list[wire.Outgoing]:
        group = self._group
        through = [j for j in targets if group is not None and j in group.index and payload.layout.max_bytes]
        messages = []
        if group is not None and through:
            moved = payload.to(group.device)
            for target in through:
                self._sends[target] = moved.buffer
                self._carried[key][target] = Unconfirmed(group, payload, self._seq)
                if self._is_news(payload.layout, target, key[2]):
                    messages.append(self._announcement(payload, target, key))
        others = [target for target in targets if target not in through]
        return messages + (super()._send(self._on_host(payload), others, key) if others else [])

    def _on_host(self, payload: Payload) -> Payload:
        """The same in host memory. What lies in a slot on a device is copied into that of the segment.

        Else it would be staged, where there is room for no vector.
        """
        place = None
        if self.segment is not None and self.segment.slots is not self.slots:
            place = same_place(payload.buffer, self.slots, self.segment.slots)
        if place is None:
            return payload.to(_HOST)
        return Payload(payload.layout, place.copy_(payload.buffer), payload.counts)

    def _is_news(self, layout: Layout, target: int, part: int) -> bool:
        """Whether the size has to be told; notes that it is."""
        known, told = self._announced.setdefault(target, set()), (layout.hash, part)
        is_news = bool(layout.variable) or told not in known
        known.add(told)
        return is_news

    def _announcement(self, payload: Payload, target: int, key: Key) -> wire.Outgoing:
        return self._note(target, Size(payload.nbytes, payload.layout.hash), key)

    def _note(self, target: int, note: Note, key: Key) -> wire.Outgoing:
        body = group_notes.pack(note)
        header = self._sockets.header(wire.Kind.GROUP, self.rank, target, key, length=len(body))
        return self._sockets.place.home[target], header._replace(body_digest=wire.digest(body)).pack(), body

    def post(self, ranks: Iterable[int], note: Note, key: Key = (0, 0, 0)) -> None:
        """Sends a note to other ranks, in any thread."""
        self._sockets.dispatch([self._note(rank, note, key) for rank in ranks])

    # What comes through the group, in the thread that waits for it.

    def brought(self, group: Group, transfer: Transfer, key: Key, layout: int) -> None:
        source = transfer.peer
        if source in self.mailbox.gone:
            return
        self._arrived[source, key[2]] = key
        self.mailbox.deliver(source, key, GroupMessage(source, transfer.buffer, layout))
        # Who is in this exchange has done with the one before.
        before = [seq for k, seq in self._seq_of.items() if k[2] == key[2] and k < key]
        self.mailbox.acknowledged(source, max(before, default=0), key[2])
        # Who gets a payload of ours now is likely to get the next one, too.
        if group.is_broken or self._is_due(source, key[2], key):
            self._say_done([(source, key[2])])

    def fell_through(self, group: Group, peers: set[int], why: str) -> None:
        harmless = bool(peers) and not group.gathers and peers <= self.mailbox.left
        if not harmless and not self.mailbox.ended:
            self.formation.break_up(group, why)

    def is_gone(self, peer: int) -> bool:
        return peer in self.mailbox.gone or peer in self.mailbox.left

    # What peers say, in the thread of the sockets.

    def hear(self, header: wire.Header, body: bytes) -> None:
        """Takes in a note; raises WireError."""
        note, sender = group_notes.unpack(body), header.sender
        match note:
            case JoinRequest():
                self.formation.hear_joining(sender, note)
            case GroupPlan():
                self.formation.hear_plan(note)
            case Closed():
                self.formation.hear_closed(note)
            case Size():
                self._hear_size(sender, header.key, note)
            case Done():
                read = [s for k, s in self._seq_of.items() if k[2] == header.part and k <= header.key]
                self.mailbox.acknowledged(sender, max(read, default=0), header.part)

    def lose(self, ranks: Iterable[int]) -> None:
        """These are gone; who has said goodbye leaves a group behind that still carries the others."""
        left = {rank for rank in ranks if rank in self.mailbox.left}
        self.formation.lose(set(ranks) - left)

    def _hear_size(self, source: int, key: Key, size: Size) -> None:
        if size.length > self._most_bytes:
            raise wire.WireError("body length")
        known = self._known.setdefault(source, {})
        if len(known) >= MOST_LAYOUTS and size.layout not in known:
            del known[next(iter(known))]
        known[size.layout] = size
        if not self.transfer_queue.told(source, key, size):
            raise wire.WireError("too many ahead")

    # When something is lost.

    def _make_void(self, peer: int) -> None:
        super()._make_void(peer)
        group = self.formation.group
        if group is None or peer not in group.index or self.mailbox.ended:
            return
        if peer not in self.mailbox.left or self.transfer_queue.awaits(peer):
            self.formation.break_up(group, f"rank {peer} is lost")

    def _send_again(self, peer: int, key: Key) -> bool:
        said = self._said.get((peer, key[2]))
        if said is not None:  # it may have been lost on the way
            self.post([peer], Done(), said)
        carried = self._carried.get(key, {}).get(peer)
        if carried is None or peer in self._sent.get(key, {}):
            return super()._send_again(peer, key)
        still_there = self.mailbox.is_unread(peer, carried.seq)
        if still_there and carried.group.is_broken:
            payload = carried.payload.to(_HOST)
            self._sockets.dispatch(self._frames(payload, [peer], key, carried.seq))
        return True

    def _abandon(self) -> None:
        """The group has ended: what it has not brought is asked for."""
        self.transfer_queue.clear()
        self._say_done(list(self._arrived))
        sockets = self._sockets
        sockets.post(lambda: sockets.patience.ask(self.mailbox))

    # When something is read, or nobody comes any more.

    def _released(self, source: int, message: Message) -> None:
        if not isinstance(message, GroupMessage):
            super()._released(source, message)
        elif self.formation.group is not None:
            self.transfer_queue.pool.give_back(message.buffer)

    def _say_done(self, what: Iterable[tuple[int, int]]) -> None:
        """Says to sources what has come from them, by part, where no payload that goes to them does."""
        for source, part in what:
            key = self._arrived.pop((source, part), None)
            if key is not None:
                self._said[source, part] = key
                self.post([source], Done(), key)

    def leave(self) -> None:
        self._say_done(list(self._arrived))
        self.formation.leave()
        super().leave()
