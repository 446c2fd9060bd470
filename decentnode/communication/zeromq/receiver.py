"""What a host process takes in: checks every message, then gives it to whom it is for."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import zmq
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.exchange.handle import Key
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.interceptor import Received
from decentnode.communication.peers.rejoin import EdgeProtocol, Tell, farewell
from decentnode.communication.security.curve import came_from
from decentnode.communication.shared_memory.attached import AttachedSegments
from decentnode.communication.shared_memory.doorbell import DoorbellWriter
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq.received import FramedMessage, SharedMessage, header_bytes

MOST_ROUND = 1 << 30
"""No run comes that far; beyond it, what is answered might not fit into a header."""
EDGE_KINDS = frozenset(
    {
        Kind.DROP_EDGE,
        Kind.LEAVE,
        Kind.POSITION,
        Kind.POSITION_REQUEST,
        Kind.REJOIN_PROPOSE,
        Kind.REJOIN_ACCEPT,
        Kind.SKIP,
        Kind.MODEL_REQUEST,
    }
)


class GroupListener(Protocol):
    """What a process group is told by the thread that serves the sockets."""

    def hear(self, header: wire.Header, body: bytes) -> None:
        """Takes in what a peer says about the group; raises WireError."""

    def lose(self, ranks: Iterable[int]) -> None:
        """These are gone: their process ended, or its link broke."""


@dataclass
class Receiver:
    """Belongs to the thread that serves the sockets; notices and acknowledgements are for any thread."""

    place: ProcessDirectory
    mailboxes: dict[int, Mailbox]
    edges: EdgeProtocol
    tell: Tell
    greeted: Callable[[int], None]
    """Called with the process that has said hello."""
    restarted: Callable[[int], None]
    """Called with a process that another one has taken the place of."""
    run_id: int = 0
    incarnations: dict[int, int] = field(default_factory=dict)
    """By process how often it was started before, where that is not 0."""
    segments: AttachedSegments = field(default_factory=AttachedSegments)
    peers: dict[int, frozenset[int]] = field(default_factory=dict)
    """By local rank who may ever send to it, where that is known: payloads of others would wait in vain."""
    models: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    """Bytes of models that were asked for, by local rank and whom it asked; None until they have come."""
    listener: "GroupListener | None" = None
    """Who is told of a process group, in a transport that has one."""
    ringer: DoorbellWriter | None = None
    """Who is told which processes have read something of ours."""
    _asked_again: dict[tuple[int, int], Key] = field(default_factory=dict)

    def take(self, messages: list[Received]) -> None:
        """Takes in messages; what breaks the rules is counted by its reason, and nothing else happens."""
        for frames, guarded in messages:
            try:
                self._accept(frames, guarded)
            except wire.WireError as error:
                self._refuse(frames[0], error.reason)

    def refuse(self, reason: str) -> None:
        """Books something whose receiver is not known under the first node here."""
        self.mailboxes[self.place.process.ranks[0]].refuse(reason)

    def forget(self, process: int) -> None:
        """Drops the shared memory of a process that is gone, and rings it no more."""
        ranks = self.place.processes[process].ranks
        for rank in ranks:
            self.segments.forget(rank)
        if self.ringer is not None:
            self.ringer.forget(process)
        if self.listener is not None:
            self.listener.lose(ranks)

    def _refuse(self, head: zmq.Frame, reason: str) -> None:
        """Books a message under its receiver if the header tells one."""
        with contextlib.suppress(wire.WireError):
            receiver = wire.Header.unpack(header_bytes(head)).receiver
            if receiver in self.mailboxes:
                self.mailboxes[receiver].refuse(reason)
                return
        self.refuse(reason)

    def _accept(self, frames: list[zmq.Frame], guarded: bool) -> None:
        """The checks, in the order of docs/message_format.md."""
        if len(frames) != 2:
            raise wire.WireError("frame count")
        header, body = wire.Header.unpack(header_bytes(frames[0])), frames[1]
        if header.run_id != self.run_id:
            raise wire.WireError("run id")
        mailbox = self.mailboxes.get(header.receiver)
        process = self.place.home.get(header.sender)
        if mailbox is None or process is None or process == self.place.own:
            raise wire.WireError("rank")
        if guarded and not came_from(frames[0], self.place.processes[process].machine):
            raise wire.WireError("identity")
        if header.kind != Kind.NOTICE and header.length != len(body):
            raise wire.WireError("body length")
        bulk = header.kind in (Kind.PAYLOAD, Kind.MODEL)
        if not bulk and len(body) > wire.MOST_CONTROL_BYTES:
            raise wire.WireError("control length")
        self._check_incarnation(process, header)
        if max(header.round, header.seq if header.kind in EDGE_KINDS else 0) > MOST_ROUND:
            raise wire.WireError("round")
        if len(body) and header.body_digest != wire.digest(body.buffer):
            self._ask_again(mailbox, header)
            raise wire.WireError("checksum")
        if header.ack:
            mailbox.acknowledged(header.sender, header.ack)
            if self.ringer is not None and header.ack >> wire.SEQ_BITS == self.place.incarnation:
                self.ringer.answered(process)
        self._give(mailbox, process, header, body)

    def _check_incarnation(self, process: int, header: wire.Header) -> None:
        known = self.incarnations.get(process, 0)
        if header.kind == Kind.HELLO and known < header.incarnation <= wire.LOW_8_BITS:
            self.incarnations[process] = header.incarnation
            self.forget(process)
            self.edges.meet_anew(self.place.processes[process].ranks)
            self.restarted(process)
            return
        knows_us = header.kind == Kind.HELLO or header.knows == self.place.incarnation & wire.LOW_8_BITS
        if header.incarnation != known or not knows_us:
            raise wire.WireError("incarnation")

    def _ask_again(self, mailbox: Mailbox, header: wire.Header) -> None:
        """Asks at once for what was damaged; what is damaged again is asked for when the node waits."""
        edge = mailbox.rank, header.sender
        if self._asked_again.get(edge) != header.key:
            self._asked_again[edge] = header.key
            self.tell(Kind.RESEND, *edge, header.key, 0)

    def _give(self, mailbox: Mailbox, process: int, header: wire.Header, body: zmq.Frame) -> None:
        sender, kind = header.sender, header.kind
        if kind in (Kind.PAYLOAD, Kind.NOTICE) and sender not in self.peers.get(mailbox.rank, (sender,)):
            raise wire.WireError("unexpected source")
        if kind == Kind.PAYLOAD:
            mailbox.deliver(sender, header.key, FramedMessage(header, body))
        elif kind == Kind.NOTICE:
            place = wire.unpack_reference(body.bytes)
            mailbox.deliver(sender, header.key, SharedMessage(header, self.segments.of(sender), place))
        elif kind == Kind.HELLO:
            self._greet(process, wire.unpack_hello(body.bytes))
        elif kind == Kind.MODEL:
            self._take_model((mailbox.rank, sender), body)
        elif kind == Kind.GROUP:
            if self.listener is None:
                raise wire.WireError("kind")
            self.listener.hear(header, body.bytes)
        else:
            self.hear(mailbox, header)

    def hear(self, mailbox: Mailbox, header: wire.Header) -> None:
        """Tells a node what a peer says of itself."""
        if header.kind in EDGE_KINDS:
            self.edges.hear(mailbox, header.kind, header)
        elif header.kind in (Kind.WAITING, Kind.RESEND):
            mailbox.note_waiting(header.sender, header.key, header.kind == Kind.RESEND)
            if header.kind == Kind.RESEND and not self.edges.is_seeking:
                self._answer_missing(mailbox, header.sender, header.key)

    def _answer_missing(self, mailbox: Mailbox, peer: int, key: Key) -> None:
        if mailbox.has_dropped(peer, key[0]):
            self.tell(Kind.DROP_EDGE, mailbox.rank, peer, key, 0)
        elif mailbox.send_again(peer, key):
            return
        elif mailbox.ended:
            self.tell(Kind.LEAVE, mailbox.rank, peer, *farewell(mailbox))
        else:
            self.tell(Kind.POSITION, mailbox.rank, peer, mailbox.position, mailbox.upcoming)

    def _greet(self, process: int, hello: wire.Hello) -> None:
        ranks = self.place.processes[process].ranks
        if tuple(hello.ranks) != ranks or (hello.segments and not self.place.co_located(process)):
            raise wire.WireError("hello")
        self.segments.learn(hello.segments, ranks)
        self.greeted(process)

    def take_model_for(self, rank: int) -> Tensor | None:
        """The bytes of the first model that has come for a local rank, or None; no other is taken then."""
        for pair, model in list(self.models.items()):
            if pair[0] == rank and model is not None:
                self.models = {asked: other for asked, other in self.models.items() if asked[0] != rank}
                return model
        return None

    def _take_model(self, pair: tuple[int, int], body: zmq.Frame) -> None:
        if self.models.get(pair, body) is not None:
            raise wire.WireError("unexpected model")
        if not len(body):
            raise wire.WireError("body length")
        self.models[pair] = torch.frombuffer(bytearray(body.buffer), dtype=torch.uint8)
