"""All nodes in one process: the test double that ships, and the fastest way to simulate many nodes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
from decentnode.communication.peers.peer import Peer, PeerEvent
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import COMMUNICATIONS
from decentnode.errors import PeerError, PeerLeft


@dataclass(slots=True, eq=False)
class LocalMessage(Message):
    """A payload passed within one process."""

    payload: Payload
    reader: int
    void: Mapping[int, int]
    """The sender's map: by reader the last number that is invalidated for it."""

    @property
    def is_invalidated(self) -> bool:
        return self.void.get(self.reader, -1) >= self.seq

    def _parse(self, layout: Layout) -> Payload:
        return self.payload


class LocalEndpoint(Endpoint):
    """One node's end; its peers' mailboxes are in the same process."""

    def __init__(self, rank: int, buffer_spec: BufferSpec, endpoints: dict[int, "LocalEndpoint"]) -> None:
        self.rank = rank
        self.counters = ByteCounters()
        self.mailbox = Mailbox(rank, self)
        self.mailbox.parts = buffer_spec.parts
        self.refused = self.mailbox.refused
        self.messages = self.mailbox.messages
        self._invalidated_to: dict[int, int] = {}
        self._endpoints = endpoints
        self._seq = 0
        self.slots = buffer_spec.slots()

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, deadline: float,
        layout: Layout,
    ) -> ExchangeHandle:  # fmt: skip
        self._seq += 1
        # Opened first: it applies pending losses, and lost targets receive nothing.
        handle = self.mailbox.open(key, self._seq, outgoing, sources, deadline)
        for payload, targets in receivers_of(outgoing, handle.targets):
            self.counters.count_sent(payload, len(targets))
            for target in targets:
                message = LocalMessage(
                    self.rank, self._seq, payload.layout.hash, payload, target, self._invalidated_to
                )
                self._endpoints[target].mailbox.deliver(self.rank, key, message)
        return handle

    def send(self, target: int, payload: Payload, window: int, tag: int, number: int) -> None:
        if self.why_lost(target) is None:
            self.counters.count_sent(payload, 1)
            message = LocalMessage(self.rank, number, payload.layout.hash, payload, target, {})
            self._endpoints[target].mailbox.messages.put(tag, message)

    def why_lost(self, peer: int) -> PeerError | None:
        # With a record, which a node of this process that ends is noted in.
        with self.mailbox.lock:
            return self.mailbox.peers[peer].error

    def acknowledge(self, source: int, message: Message) -> None:
        self._endpoints[source].mailbox.acknowledged(self.rank, message.seq)

    def invalidate(self, peer: int) -> None:
        self._invalidated_to[peer] = self._seq

    def introduce(self, peer: Peer) -> None:
        mailbox = self._endpoints[peer.rank].mailbox
        if mailbox.ended:
            last = mailbox.sent_last[0] if mailbox.sent_last else -1
            peer.step(PeerEvent.FINISH, PeerLeft(peer.rank, last, mailbox.failed))

    def leave(self, failed: bool = False) -> None:
        self.mailbox.ended, self.mailbox.failed = True, failed
        for peer in self._endpoints.values():
            # One that has not met this node finds it ended when it does.
            if self.rank in peer.mailbox.peers:
                peer.mailbox.depart(self.rank, self.mailbox.sent_last, failed)


@COMMUNICATIONS.register("inproc")
@dataclass
class InProcess(Communication):
    """All nodes in one process, payloads handed over by reference (after trio's memory streams, 2017)."""

    _endpoints: dict[int, LocalEndpoint] = field(default_factory=dict, init=False, repr=False)

    @property
    def plan(self) -> TransportPlan:
        return TransportPlan(one_process=True, has_messages=True)

    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        """Nothing to bind."""

    def endpoint(self, rank: int, buffer_spec: BufferSpec) -> Endpoint:
        self._endpoints[rank] = LocalEndpoint(rank, buffer_spec, self._endpoints)
        return self._endpoints[rank]

    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        """Nothing to connect."""

    def close(self, timeout: float) -> None:
        self._endpoints.clear()
