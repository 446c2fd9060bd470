"""What a host process receives: checks every message, then passes it on.

Threads: the socket thread runs this. A node's thread that waits at its doorbell may, too, for the messages of
exchanges and a usual HELLO: what they change is guarded by the lock of the mailbox.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import zmq
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.exchange.handle import Key
from decentnode.communication.exchange.mailbox import MOST_EARLY
from decentnode.communication.interceptor import Received
from decentnode.communication.peers.edges import EdgeProtocol
from decentnode.communication.peers.peers import Peers
from decentnode.communication.routes import FramedMessage
from decentnode.communication.security.curve import sender_of
from decentnode.communication.shared_memory.attached import SharedMessage
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq.sockets import Sockets
from decentnode.communication.zeromq.stripes import STRIPED_BYTES, UnfinishedBody

MOST_ROUND = 1 << 30
"""No run has that many rounds; answers about later ones might not fit into a header."""
BULK_KINDS = frozenset({Kind.PAYLOAD, Kind.MODEL, Kind.MESSAGE})
PAYLOAD_KINDS = frozenset({Kind.PAYLOAD, Kind.NOTICE, Kind.MESSAGE})
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
    """What the socket thread reports to a process group."""

    def receive(self, header: wire.Header, body: bytes) -> None:
        """Processes a peer's message about the group; raises WireError."""

    def note_lost(self, ranks: Iterable[int]) -> None:
        """Records lost ranks: their process ended, or its link broke."""


@dataclass
class Receiver:
    """Checks messages in the order of docs/message_format.md, and counts what it refuses."""

    sockets: Sockets
    edges: EdgeProtocol
    on_hello: Callable[[int], None]
    """Called with a process that sent HELLO."""
    restarted: Callable[[int], None]
    """Called with a process that was replaced by a new one."""
    most_bytes: int = wire.MOST_CONTROL_BYTES
    """The largest body that chunks may add up to."""
    models: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    """Bytes of requested models by (local rank, peer); None until they arrive."""
    listener: "GroupListener | None" = None
    """The process group of a transport that has one."""
    _requested_again: dict[tuple[int, int], Key] = field(default_factory=dict)
    _unfinished: dict[tuple[int, int], dict[wire.Header, UnfinishedBody]] = field(default_factory=dict)
    """By sender and local rank the bodies of which chunks have arrived, by their headers."""

    def take(self, messages: list[Received]) -> None:
        """Processes messages; an invalid one is counted by its reason and has no other effect."""
        for frames, guarded in messages:
            head = header_bytes(frames[0])
            if len(frames) != 2:
                self._refuse(head, "frame count")
            else:
                self.take_one(head, frames[1].buffer, frames[0] if guarded else None)

    def take_one(self, head: bytes, body: wire.Body, guard: zmq.Frame | None = None) -> None:
        """Processes one message; `guard`: its first frame, if an authenticated socket received it."""
        try:
            self._accept(head, body, guard)
        except wire.WireError as error:
            self._refuse(head, error.reason)

    def add_chunk(self, frames: list[zmq.Frame], guarded: bool) -> Received | None:
        """The message that a chunk completes; an invalid chunk is counted by its reason and dropped."""
        head = header_bytes(frames[0])
        try:
            header = wire.Header.unpack(head)
            peers, _ = self._ends_of(header, frames[0] if guarded else None)
            if header.kind not in BULK_KINDS or not STRIPED_BYTES <= header.length <= self.most_bytes:
                raise wire.WireError("chunk")
            # What differs between resends of one message, whose chunks are the same, does not count.
            same = header._replace(ack=0, knows=0)
            edge = self._unfinished.setdefault((header.sender, header.receiver), {})
            if same not in edge:
                if len(edge) >= MOST_EARLY * peers.mailbox.parts:
                    del edge[next(iter(edge))]
                edge[same] = UnfinishedBody(header.length)
            unfinished_body = edge[same]
            is_whole = unfinished_body.add(frames[1].bytes, frames[2].buffer)
        except wire.WireError as error:
            self._refuse(head, error.reason)
            return None
        if not is_whole:
            return None
        del edge[same]
        return [frames[0], zmq.Frame(unfinished_body.body)], guarded

    def refuse(self, reason: str) -> None:
        """Counts a message with an unknown receiver for the first node of this process."""
        self.sockets.peers_by_rank[self.sockets.directory.process.ranks[0]].mailbox.refuse(reason)

    def forget(self, process: int) -> None:
        """Drops the shared memory of a process that is lost."""
        ranks = self.sockets.directory.processes[process].ranks
        for rank in ranks:
            self.sockets.segments.forget(rank)
        self._unfinished = {edge: kept for edge, kept in self._unfinished.items() if edge[0] not in ranks}
        if self.listener is not None:
            self.listener.note_lost(ranks)

    def _refuse(self, head: bytes, reason: str) -> None:
        """Counts a message for its receiver, if the header is readable."""
        with contextlib.suppress(wire.WireError):
            receiver = wire.Header.unpack(head).receiver
            if receiver in self.sockets.peers_by_rank:
                self.sockets.peers_by_rank[receiver].mailbox.refuse(reason)
                return
        self.refuse(reason)

    def _accept(self, head: bytes, body: wire.Body, guard: zmq.Frame | None) -> None:
        sockets, header = self.sockets, wire.Header.unpack(head)
        peers, process = self._ends_of(header, guard)
        if len(body) != (wire.REFERENCE.size if header.kind == wire.NOTICE else header.length):
            raise wire.WireError("body length")
        if len(body) > wire.MOST_CONTROL_BYTES and header.kind not in BULK_KINDS:
            raise wire.WireError("control length")
        # Before any effect: a late message of a dead process must not count for its successor.
        known, is_hello = sockets.incarnations.get(process, 0), header.kind == wire.HELLO
        knows_us = is_hello or header.knows == sockets.directory.incarnation & wire.LOW_8_BITS
        if is_hello and known < header.incarnation <= wire.LOW_8_BITS:
            # All traces of the old process go before the first message of the new one is used.
            sockets.incarnations[process] = header.incarnation
            self.forget(process)
            self.restarted(process)
        elif header.incarnation != known or not knows_us:
            raise wire.WireError("incarnation")
        if max(header.round, header.seq if header.kind in EDGE_KINDS else 0) > MOST_ROUND:
            raise wire.WireError("round")
        # The digest of the body is checked last because it is the only check that reads the whole body.
        if len(body) and header.body_digest != wire.digest(body):
            # Requested at once; damaged again, it is requested when the node waits. Single messages are
            # repeated, or not, by the scheme.
            edge = peers.rank, header.sender
            if header.kind != Kind.MESSAGE and self._requested_again.get(edge) != header.key:
                self._requested_again[edge] = header.key
                sockets.send_control(Kind.RESEND, *edge, header.key, 0)
            raise wire.WireError("checksum")
        # An acknowledgement may travel on any message, so it is processed before the message itself.
        if header.ack:
            peers.mailbox.acknowledged(header.sender, header.ack)
        if header.kind != wire.ACKNOWLEDGE:
            self._give(peers, process, header, body)

    def _ends_of(self, header: wire.Header, guard: zmq.Frame | None) -> tuple[Peers, int]:
        """The peers of the receiving node, and the process of the sender; raises WireError."""
        directory = self.sockets.directory
        # A process of an earlier run may still be alive on the same port.
        if header.run_id != self.sockets.run_id:
            raise wire.WireError("run id")
        peers = self.sockets.peers_by_rank.get(header.receiver)
        process = directory.home.get(header.sender)
        if peers is None or process is None or process == directory.own:
            raise wire.WireError("rank")
        # The key proves the machine; all nodes of a machine trust each other.
        if guard is not None and sender_of(guard) != directory.processes[process].machine:
            raise wire.WireError("identity")
        return peers, process

    def is_usual_hello(self, head: bytes) -> bool:
        """Whether a packed header is a HELLO of a process as it is known."""
        if head[wire.KIND_AT] != wire.HELLO:
            return False
        with contextlib.suppress(wire.WireError):
            header = wire.Header.unpack(head)
            return header.incarnation == self.sockets.incarnations.get(
                self.sockets.directory.home.get(header.sender, -1), 0
            )
        return True

    def _give(self, peers: Peers, process: int, header: wire.Header, body: wire.Body) -> None:
        mailbox, sender, kind = peers.mailbox, header.sender, header.kind
        if kind in PAYLOAD_KINDS and sender not in self.sockets.senders.get(mailbox.rank, (sender,)):
            raise wire.WireError("unexpected source")
        identity = sender, header.seq, header.layout
        if kind == wire.NOTICE:
            (offset,), segment = wire.REFERENCE.unpack(body), self.sockets.segments.of(sender)
            message = SharedMessage(*identity, mailbox.rank, segment, offset, header.length)
            mailbox.deliver(sender, header.key, message)
        elif kind == Kind.PAYLOAD:
            mailbox.deliver(sender, header.key, FramedMessage(*identity, body))
        elif kind == Kind.MESSAGE:
            mailbox.messages.put(header.phase, FramedMessage(*identity, body))
        elif kind == Kind.HELLO:
            self._receive_hello(process, wire.unpack(bytes(body), wire.Hello, "hello"), header.seq)
        elif kind == Kind.MODEL:
            self._take_model((mailbox.rank, sender), body)
        elif kind == Kind.GROUP:
            if self.listener is None:
                raise wire.WireError("kind")
            self.listener.receive(header, bytes(body))
        else:
            self.receive(peers, header)

    def receive(self, peers: Peers, header: wire.Header) -> None:
        """Passes a control message of a peer to the edge protocol or the mailbox."""
        if header.kind in EDGE_KINDS:
            self.edges.receive(peers, header.kind, header)
        elif header.kind in (Kind.WAITING, Kind.RESEND):
            peers.note_waiting(header.sender, header.key, header.kind == Kind.RESEND)
            # A process that seeks a round to rejoin in has sent nothing and has no position.
            if header.kind == Kind.RESEND and not self.edges.is_seeking:
                self.edges.answer_request(peers, header.sender, header.key)

    def _receive_hello(self, process: int, hello: wire.Hello, is_doorbell: int) -> None:
        ranks = self.sockets.directory.processes[process].ranks
        if not {*hello.ranks} <= {*ranks} or (
            hello.segments and not self.sockets.directory.co_located(process)
        ):
            raise wire.WireError("hello")
        # First: a process whose memory cannot be attached does not count as met.
        self.sockets.segments.learn(hello.segments, ranks)
        if not is_doorbell:
            self.on_hello(process)

    def take_model_for(self, rank: int) -> Tensor | None:
        """The bytes of the first model that arrived for a local rank, or None; later ones are refused."""
        for pair, model in list(self.models.items()):
            if pair[0] == rank and model is not None:
                self.models = {key: other for key, other in self.models.items() if key[0] != rank}
                return model
        return None

    def _take_model(self, pair: tuple[int, int], body: wire.Body) -> None:
        if self.models.get(pair, body) is not None:
            raise wire.WireError("unexpected model")
        if not len(body):
            raise wire.WireError("body length")
        self.models[pair] = torch.frombuffer(bytearray(body), dtype=torch.uint8)


def header_bytes(frame: zmq.Frame) -> bytes:
    """The bytes of a header; of a frame of another length only its begin, which is no header either."""
    return frame.bytes if len(frame) == wire.HEADER_BYTES else bytes(frame.buffer[:1])
