"""Nodes in processes of their own: ZeroMQ between machines, shared memory or ZeroMQ on one."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.base import (
    BufferSpec,
    Communication,
    Endpoint,
    ProcessDirectory,
    TransportPlan,
    receivers_of,
)
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Message
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.inproc import LocalMessage
from decentnode.communication.peers.edges import farewell
from decentnode.communication.peers.peer import Peer, PeerEvent
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.payload import Layout, Payload, as_bytes
from decentnode.core.registry import COMMUNICATIONS
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerError, PeerLeft, PeerLost
from decentnode.mapping.base import tcp_endpoint
from decentnode.options import Port, Positive

T = TypeVar("T")
SLOW_LINK = 10e6
"""Bytes per second below which a payload may be resent although it is still on its way."""


@dataclass(slots=True)
class Sent:
    """A payload that was sent, kept for a resend."""

    header: wire.Header
    body: wire.Body
    due: float
    """The earliest time of the next resend."""
    pause: float = Timeouts.first_request


class ZeroMQEndpoint(Endpoint):
    """One node's end: chooses for each peer how a payload travels, and acknowledges what was read."""

    reads_doorbell: ClassVar[bool] = True
    """Whether a node that waits can read the doorbell itself."""

    def __init__(
        self, rank: int, io_thread: IoThread, slots: tuple[Tensor, Tensor], segment: Segment | None,
        endpoints: dict[int, "ZeroMQEndpoint"],
    ) -> None:  # fmt: skip
        """`segment`: the memory that peers on this machine read; None: they receive frames, too."""
        place = io_thread.directory
        self.rank = rank
        self.counters = ByteCounters()
        # Numbers of an earlier incarnation are all lower: acknowledging them frees no memory of this one.
        self._seq = place.incarnation << wire.SEQ_BITS
        self.mailbox = Mailbox(rank, self, len(place.process.ranks) == 1, self._seq)
        self.refused = self.mailbox.refused
        self.messages = self.mailbox.messages
        self.segment = segment
        self.slots = slots
        self._io_thread = io_thread
        self._endpoints = endpoints
        self._offered: tuple[Tensor, Callable[[int], bool]] | None = None
        """What `offer` got last."""
        self._invalidated_to: dict[int, int] = {}
        self._sent: dict[Key, dict[int, Sent]] = {}
        self._last_read: dict[int, int] = {}
        self._unannounced: set[int] = set()
        self._targets: frozenset[int] = frozenset()

    def introduce(self, peer: Peer) -> None:
        rank, sockets = peer.rank, self._io_thread
        if rank in self._endpoints:
            if (mailbox := self._endpoints[rank].mailbox).ended:
                peer.step(PeerEvent.FINISH, PeerLeft(rank, farewell(mailbox)[0][0], mailbox.failed))
        elif sockets.directory.incarnation:
            # A peer that was not asked for a round to rejoin in: both ends agree on one when they meet.
            peer.step(PeerEvent.LOSE, PeerLost(rank, "was not met again yet"))

    def is_linked(self, peer: int) -> bool:
        return self._io_thread.is_linked(peer)

    def foresee(self, peers: Collection[int]) -> None:
        self._io_thread.need(self.rank, peers)
        # No payload takes these along soon, and their senders must not wait for this node's local steps.
        if alone := sorted(self._unannounced.difference(peers)):
            self._io_thread.dispatch(self._acknowledgements(*alone))

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, deadline: float,
        layout: Layout,
    ) -> ExchangeHandle:  # fmt: skip
        self._seq += 1
        # Opened before anything is sent, because acknowledgements and answers may arrive at once.
        handle = self.mailbox.open(key, self._seq, outgoing, sources, deadline)
        self._targets = handle.targets
        keep_last(self._sent, key, {})
        messages: list[wire.Outgoing] = []
        for payload, targets in receivers_of(outgoing, handle.targets):
            self.counters.count_sent(payload, len(targets))
            messages += self._send(payload, targets, key)
        # Sources that are no targets of this exchange need a message of their own.
        if self._unannounced:
            messages += self._acknowledgements()
        if messages:
            self._io_thread.dispatch(messages)
        return handle

    def _send(self, payload: Payload, targets: list[int], key: Key) -> list[wire.Outgoing]:
        """Passes a payload to nodes of this process; returns the messages for all others."""
        messages: list[wire.Outgoing] = []
        co_located, remote, place = list[int](), list[int](), self._io_thread.directory
        for target in targets:
            if target in self._endpoints:
                message = LocalMessage(
                    self.rank, self._seq, payload.layout.hash, payload, target, self._invalidated_to
                )
                self._endpoints[target].mailbox.deliver(self.rank, key, message)
            elif self.segment is not None and place.home[target] in place.neighbors:
                co_located.append(target)
            else:
                remote.append(target)
        if co_located:
            assert self.segment is not None
            reference = wire.REFERENCE.pack(self.segment.offset(payload.buffer, self._seq, key[2]))
            messages += self._messages(wire.Kind.NOTICE, payload, co_located, key, reference)
        if remote:
            messages += self._frames(payload, remote, key, self._seq)
        return messages

    def _frames(self, payload: Payload, targets: list[int], key: Key, seq: int) -> list[wire.Outgoing]:
        """The messages that carry the payload itself, for readers without access to this node's memory."""
        return self._messages(wire.Kind.PAYLOAD, payload, targets, key, payload.buffer.numpy().data, seq)

    def send(self, target: int, payload: Payload, window: int, tag: int, number: int) -> None:
        if self.why_lost(target) is not None:
            return
        self.counters.count_sent(payload, 1)
        if target in self._endpoints:
            message = LocalMessage(self.rank, number, payload.layout.hash, payload, target, {})
            self._endpoints[target].mailbox.messages.put(tag, message)
            return
        # Always a frame: a slot in shared memory would have to wait until its reader has read it.
        body = payload.buffer.numpy().data if payload.nbytes else b""
        header = self._io_thread.header(
            wire.Kind.MESSAGE, self.rank, target, (window, tag, 0), number, payload.nbytes,
            payload.layout.hash, body,
        )  # fmt: skip
        self._io_thread.dispatch([(self._io_thread.directory.home[target], header.pack(), body)])

    def why_lost(self, peer: int) -> PeerError | None:
        # With a record, which a node of this process that ends is noted in.
        with self.mailbox.lock:
            return self.mailbox.peers[peer].error

    def leave(self, failed: bool = False) -> None:
        # First: from here on the socket thread answers requests to rejoin with LEAVE.
        self.mailbox.ended, self.mailbox.failed = True, failed
        last = self.mailbox.sent_last
        # This node no longer reads its doorbell, so the socket thread must.
        self._io_thread.post(self._io_thread.serve_doorbell)
        self._io_thread.dispatch(self._acknowledgements())
        for sibling in self._endpoints.values():
            # One that has not met this node finds it ended when it does.
            if self.rank in sibling.mailbox.peers:
                sibling.mailbox.depart(self.rank, last, failed)
        for rank in self._io_thread.concerned(self.rank) - self._endpoints.keys():
            # A peer without a link opens one when it needs this node, and receives LEAVE as the answer.
            self._io_thread.send_control(wire.Kind.LEAVE, self.rank, rank, *farewell(self.mailbox))

    def admit(self, round: int) -> list[int]:
        return self.mailbox.admit(round)

    @property
    def ahead(self) -> int:
        return self.mailbox.ahead

    def skip_to(self, round: int) -> None:
        for rank in sorted(self.mailbox.skip_to(round, self._io_thread.concerned(self.rank))):
            self._io_thread.send_control(wire.Kind.SKIP, self.rank, rank, (round, 0, 0))

    def offer(self, vector: Tensor, may_have: Callable[[int], bool]) -> None:
        self._offered = vector, may_have
        self.give_model()

    def give_model(self) -> None:
        if self._offered is None:
            return
        vector, may_have = self._offered
        for peer in self.mailbox.take_wanting():
            if not may_have(peer):
                # A model is sent only to neighbors, and only if no stage of the chain protects it.
                self.mailbox.refuse("fetch")
                continue
            # A copy: the node trains on while the frame is sent.
            body = as_bytes(vector.detach().to("cpu", copy=True)).numpy().data
            header = self._io_thread.header(wire.Kind.MODEL, self.rank, peer, length=len(body), body=body)
            self._io_thread.dispatch([(self._io_thread.directory.home[peer], header.pack(), body)])

    def _messages(
        self, kind: wire.Kind, payload: Payload, targets: list[int], key: Key, body: wire.Body,
        seq: int | None = None,
    ) -> list[wire.Outgoing]:  # fmt: skip
        seq = self._seq if seq is None else seq
        size, layout = payload.nbytes, payload.layout.hash
        header = self._io_thread.header(kind, self.rank, targets[0], key, seq, size, layout, body)
        self._unannounced.difference_update(targets)
        due = time.monotonic() + Timeouts.first_request + size / SLOW_LINK
        sent = self._sent.setdefault(key, {})
        for target in targets:
            sent[target] = Sent(header, body, due)
        return self._addressed(header, targets, body)

    def request_resend(self, peer: int, key: Key) -> None:
        sockets, box = self._io_thread, self.mailbox
        sockets.post(lambda: sockets.failure_detector.request_resend(box, peer, key))

    def invalidate(self, peer: int) -> None:
        # Readers compare their message's number with this one, here or in the segment, before and after a
        # mix.
        self._invalidated_to[peer] = self._seq
        if self.segment is not None:
            self.segment.invalidate(peer, self._seq)

    def _addressed(
        self, header: wire.Header, targets: Collection[int], body: wire.Body = b""
    ) -> list[wire.Outgoing]:
        """A message for each target, which also acknowledges what this node has read of it."""
        home, known, read = self._io_thread.directory.home, self._io_thread.incarnations, self._last_read
        return [(home[j], header.pack(j, read.get(j, 0), known.get(home[j], 0)), body) for j in targets]

    def resend(self, peer: int, key: Key) -> bool:
        """Resends, in the socket thread, what its reader has not received; each time after a longer pause."""
        # The peer may wait for this acknowledgement instead of a payload.
        if self._last_read.get(peer):
            self._io_thread.dispatch(self._acknowledgements(peer))
        sent = self._sent.get(key, {}).get(peer)
        if sent is None:
            return False
        now = time.monotonic()
        if self.mailbox.is_unread(peer, sent.header.seq, key[2]) and now >= sent.due:
            sent.pause *= 2
            sent.due = now + sent.pause + sent.header.length / SLOW_LINK
            # In a run no memory is written before all readers released it. A training loop of its own may
            # change a model by hand meanwhile. Then all discard this exchange, but they wait for it first, so
            # the digest must match.
            header = sent.header._replace(body_digest=wire.digest(sent.body))
            self._io_thread.dispatch(self._addressed(header, [peer], sent.body))
        return True

    def check_soon(self) -> None:
        self._io_thread.post(self._io_thread.check_soon)

    def attend(self, handle: ExchangeHandle, timeout: float) -> bool:
        doorbell = self._io_thread.node_doorbell
        return handle.sleep(timeout) if doorbell is None else doorbell.attend(handle, timeout)

    def acknowledge(self, source: int, message: Message) -> None:
        """Records that a source's memory is free; a target of the next payload learns it from that one."""
        if source in self._endpoints:
            self._endpoints[source].mailbox.acknowledged(self.rank, message.seq)
            return
        self._last_read[source] = max(message.seq, self._last_read.get(source, 0))
        self._unannounced.add(source)
        if source not in self._targets:
            self._io_thread.dispatch(self._acknowledgements(source))

    def _acknowledgements(self, *sources: int) -> list[wire.Outgoing]:
        due = sources or sorted(self._unannounced)
        if not due:
            return []
        self._unannounced.difference_update(due)
        return self._addressed(self._io_thread.header(wire.ACKNOWLEDGE, self.rank, due[0]), due)


@COMMUNICATIONS.register("zeromq")
@dataclass
class ZeroMQ(Communication):
    """One process per node: TCP between machines; shared memory, ipc or tcp on one (ZMTP 3, RFC 23)."""

    local: Literal["shared_memory", "ipc", "tcp"] = "shared_memory"
    base_port: Port = 29600
    nodes_per_process: Positive = 1

    _endpoints: dict[int, ZeroMQEndpoint] = field(default_factory=dict, init=False, repr=False)
    _io_thread: IoThread | None = field(default=None, init=False, repr=False)

    @property
    def plan(self) -> TransportPlan:
        return TransportPlan(
            nodes_per_process=self.nodes_per_process,
            has_messages=True,
            # Two pipes and a segment; or a connection each way, and three of a DEALER and its monitor.
            local_files=3 if self.local == "shared_memory" else 5,
            remote_files=5,
            first_ports={"base_port": self.base_port},
            local_ports={"base_port"} if self.local == "tcp" else (),
        )

    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        self._io_thread = IoThread(
            directory, lambda process: self._endpoint_of(directory, process), most_bytes
        )
        if self.local == "shared_memory":
            self._io_thread.open_doorbells()
        if self.local != "tcp":
            self._io_thread.bind(ipc_endpoint(directory, directory.own))
        if self.local == "tcp" or any(p.machine != directory.process.machine for p in directory.processes):
            process = directory.process
            port = self.base_port + process.index
            self._io_thread.bind(tcp_endpoint(process.bound or process.address, port))

    @property
    def io_thread(self) -> IoThread:
        """The thread that serves the sockets; `prepare` makes it."""
        assert self._io_thread is not None, "prepare comes first"
        return self._io_thread

    def endpoint(self, rank: int, buffer_spec: BufferSpec) -> Endpoint:
        sockets = self.io_thread
        segment = (
            Segment(rank, buffer_spec, len(sockets.directory.home)) if self.local == "shared_memory" else None
        )
        endpoint = self._make(rank, buffer_spec, segment.slots if segment else buffer_spec.slots(), segment)
        endpoint.mailbox.parts = buffer_spec.parts
        self._endpoints[rank] = endpoint
        public = segment.shared if segment else None
        sockets.add_node(endpoint.mailbox, public, buffer_spec.peers, endpoint.reads_doorbell)
        return endpoint

    def _make(
        self, rank: int, buffer_spec: BufferSpec, slots: tuple[Tensor, Tensor], segment: Segment | None
    ) -> ZeroMQEndpoint:
        return ZeroMQEndpoint(rank, self.io_thread, slots, segment, self._endpoints)

    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        sockets = self.io_thread
        # Before the first exchange, so no node waits for one of an absent machine.
        for mailbox in sockets.mailboxes.values():
            for rank in absent:
                mailbox.lose(rank, PeerLost(rank, "has not come yet"))
        home = sockets.directory.home
        sockets.meet({home[peer] for peer in peers} - {sockets.directory.own}, run_id, timeout)

    def locate(self, peers: Mapping[int, Iterable[int]], enough: int, timeout: float) -> int:
        return self.io_thread.rejoin(peers, timeout, enough)

    def rejoin(self, peers: Mapping[int, Iterable[int]], timeout: float) -> int:
        return self.io_thread.rejoin(peers, timeout)

    def start_at(self, round: int) -> None:
        rejoining = self.io_thread.rejoining
        assert rejoining is not None, "only a process that was restarted can rejoin"
        rejoining.settle(round)

    def fetch(self, rank: int, peer: int, timeout: float) -> Tensor | None:
        content, dtype = self.io_thread.fetch(rank, peer, timeout), self._endpoints[rank].slots[0].dtype
        return None if content is None or content.numel() % dtype.itemsize else content.view(dtype)

    def close(self, timeout: float) -> None:
        if self._io_thread is not None:
            self._io_thread.stop(timeout)
        for endpoint in self._endpoints.values():
            if endpoint.segment is not None:
                endpoint.segment.close()

    def tcp_endpoint(self, directory: ProcessDirectory, process: int) -> str:
        """Where this process reaches another: its machine's address, and base_port + its number there."""
        host = directory.processes[process]
        address = host.own if directory.co_located(process) and host.own else host.address
        return tcp_endpoint(address, self.base_port + host.index)

    def _endpoint_of(self, directory: ProcessDirectory, process: int) -> str:
        if directory.co_located(process) and self.local != "tcp":
            return ipc_endpoint(directory, process)
        return self.tcp_endpoint(directory, process)


def keep_last(kept: dict[Key, T], key: Key, content: T) -> None:
    """Adds an exchange to what is kept, and drops all before the last one of its part.

    All readers have released those.
    """
    for older in [known for known in kept if known[2] == key[2]][:-1]:
        del kept[older]
    kept[key] = content


def ipc_endpoint(directory: ProcessDirectory, process: int) -> str:
    """The ipc endpoint of a host process on this machine."""
    return f"ipc://{directory.directory}/{directory.processes[process].index}"
