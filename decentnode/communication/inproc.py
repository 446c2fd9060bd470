"""All nodes in one process: the test double that ships, and the fastest way to simulate many nodes.

Threads: a node's own thread delivers into the mailbox of the other one, behind that mailbox's lock. Nothing
runs beside the nodes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from decentnode.communication.base import BufferSpec, Communication, ProcessDirectory, TransportPlan
from decentnode.communication.exchange.handle import Key, Message
from decentnode.communication.peers.peer import Peer
from decentnode.communication.peers.peers import PeersByRank
from decentnode.communication.routes import Route, RoutedEndpoint
from decentnode.core.clock import Clock
from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import COMMUNICATIONS


@dataclass(slots=True, eq=False)
class LocalMessage(Message):
    """A payload passed within one process."""

    payload: Payload
    reader: int
    invalidated: Mapping[int, int]
    """The sender's map: by reader the last number that is invalidated for it."""

    @property
    def is_invalidated(self) -> bool:
        return self.invalidated.get(self.reader, -1) >= self.seq

    def _parse(self, layout: Layout) -> Payload:
        return self.payload


class WithinProcess(Route):
    """Payloads by reference, to the other nodes of a process."""

    def __init__(self, rank: int, peers: PeersByRank) -> None:
        """`peers`: those of each node of the process, as they are made."""
        self._rank = rank
        self._peers = peers
        self._invalidated_to: dict[int, int] = {}

    def carried(self, payload: Payload, targets: list[int]) -> list[int]:
        return [target for target in targets if target in self._peers]

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        for target in targets:
            message = LocalMessage(
                self._rank, seq, payload.layout.hash, payload, target, self._invalidated_to
            )
            self._peers[target].mailbox.deliver(self._rank, key, message)

    def send_single(self, target: int, payload: Payload, window: int, tag: int, number: int) -> bool:
        if target not in self._peers:
            return False
        message = LocalMessage(self._rank, number, payload.layout.hash, payload, target, {})
        self._peers[target].mailbox.messages.put(tag, message)
        return True

    def acknowledge(self, source: int, message: Message) -> bool:
        if source not in self._peers:
            return False
        self._peers[source].mailbox.acknowledged(self._rank, message.seq)
        return True

    def invalidate(self, peer: int, seq: int) -> None:
        # Readers compare their message's number with this one, before and after a mix.
        self._invalidated_to[peer] = seq

    def introduce(self, peer: Peer) -> None:
        self._peers.known_to[peer.rank].add(self._rank)
        if peer.rank in self._peers and (mailbox := self._peers[peer.rank].mailbox).ended:
            self._peers[self._rank].meet_ended(peer, mailbox.last_exchange, mailbox.failed)

    def leave(self, failed: bool) -> None:
        last = self._peers[self._rank].mailbox.last_exchange
        # One that has not met this node finds it ended when it does.
        for rank in sorted(self._peers.known_to[self._rank]):
            self._peers[rank].depart(self._rank, last, failed)


@COMMUNICATIONS.register("inproc", "in_process", "in_memory")
@dataclass
class InProcess(Communication):
    """All nodes in one process, payloads handed over by reference (after trio's memory streams, 2017)."""

    _peers: PeersByRank = field(default_factory=PeersByRank, init=False, repr=False)
    _clock: Clock = field(default_factory=Clock, init=False, repr=False)

    @property
    def plan(self) -> TransportPlan:
        return TransportPlan(one_machine=True, has_messages=True)

    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        self._clock = directory.clock

    def endpoint(self, rank: int, buffer_spec: BufferSpec) -> RoutedEndpoint:
        route = WithinProcess(rank, self._peers)
        endpoint = RoutedEndpoint(rank, buffer_spec, buffer_spec.slots(), [route], clock=self._clock)
        self._peers[rank] = endpoint.peers
        return endpoint

    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        """Nothing to connect."""

    def close(self, timeout: float) -> None:
        self._peers.clear()
