"""An endpoint made of routes: each carries payloads to some of the peers.

Threads: the node's thread opens exchanges, sends and releases. Any thread may deliver into the mailbox, whose
lock orders what it and the others do. `invalidate`, `introduce` and `resend` run in the thread that noticed
the cause, mostly the socket thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from decentnode.communication.base import BufferSpec, Endpoint, Slots, receivers_of
from decentnode.communication.device.copies import same_place
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Message
from decentnode.communication.peers.peer import Peer
from decentnode.communication.peers.peers import Peers, PeerTransport
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.clock import Clock
from decentnode.core.payload import HOST, Layout, Payload
from decentnode.errors import PeerError


@dataclass(slots=True, eq=False)
class FramedMessage(Message):
    """A payload in bytes that belong to this process: no sender can write them again."""

    body: bytes | memoryview

    def _parse(self, layout: Layout) -> Payload:
        body = self.body
        buffer = torch.frombuffer(body, dtype=torch.uint8) if len(body) else torch.empty(0).byte()
        return Payload.parse(layout, buffer)


class Route:
    """A way that payloads travel. Only `send` must be there; the defaults fit a way that keeps nothing."""

    on_device = False
    """Whether it takes payloads where the node's vector lies, also on a GPU; otherwise in host memory."""

    def carried(self, payload: Payload, targets: list[int]) -> list[int]:
        """Which of the targets it carries this payload to."""
        return targets

    def begin(self, key: Key, seq: int) -> None:
        """Prepares the exchange with this number of the node, before it opens."""

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        """Sends a payload of an open exchange."""
        raise NotImplementedError

    def complete(
        self, handle: ExchangeHandle, sources: Sequence[int], deadline: float, layout: Layout
    ) -> None:
        """Does what follows the payloads of an exchange, once all of them are sent."""

    def send_single(self, target: int, payload: Payload, window: int, tag: int, number: int) -> bool:
        """Sends a message outside of any exchange; False: not to this target."""
        return False

    def acknowledge(self, source: int, message: Message) -> bool:
        """Tells the source that the memory of its message is free; False: another route brought it."""
        return False

    def resend(self, peer: int, key: Key) -> bool:
        """Resends a payload, if it may be lost; False: it has carried none to this peer."""
        return False

    def invalidate(self, peer: int, seq: int) -> None:
        """Invalidates the memory that a lost peer may still read, up to this number."""

    def introduce(self, peer: Peer) -> None:
        """Brings a peer that was never heard of into its first state, if that is not LIVE."""

    def leave(self, failed: bool) -> None:
        """Announces that the node has ended."""


class RoutedEndpoint(Endpoint, PeerTransport):
    """One node's end: a mailbox, and routes in the order in which they are asked for their targets."""

    def __init__(
        self, rank: int, buffer_spec: BufferSpec, slots: Slots, routes: Sequence[Route] = (),
        alone: bool = False, numbered_from: int = 0, clock: Clock | None = None,
        host_slots: Slots | None = None,
    ) -> None:  # fmt: skip
        """`alone`, `numbered_from` and `clock` are those of the mailbox.

        `host_slots`: where peers read vectors in host memory, if `slots` are elsewhere.
        """
        self.rank = rank
        self.counters = ByteCounters()
        self.peers = Peers(rank, self, alone=alone, numbered_from=numbered_from, clock=clock)
        self.mailbox = self.peers.mailbox
        self.mailbox.parts = buffer_spec.parts
        self.refused = self.mailbox.refused
        self.messages = self.mailbox.messages
        self.slots = slots
        self.device = slots[0].device
        self.routes = [*routes]
        """In the order in which they are asked; complete before the first exchange."""
        self._host_slots = host_slots
        self._is_apart = self.device != HOST or host_slots is not None
        """Whether payloads must be brought to memory that peers can read."""
        self._seq = numbered_from

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Sequence[int], key: Key, deadline: float,
        layout: Layout,
    ) -> ExchangeHandle:  # fmt: skip
        self._seq += 1
        for route in self._routes_with["begin"]:
            route.begin(key, self._seq)
        # Opened before anything is sent: acknowledgements and answers may arrive at once. It also applies
        # pending losses, and lost targets receive nothing.
        handle = self.mailbox.open(key, self._seq, outgoing, sources, deadline)
        for payload, targets in receivers_of(outgoing, handle.targets):
            self.counters.count_sent(payload, len(targets))
            for route in self.routes:
                if carried := route.carried(payload, targets):
                    if self._is_apart and not route.on_device:
                        payload = self._in_host_memory(payload)
                    route.send(payload, carried, key, self._seq)
                    if len(carried) == len(targets):
                        break
                    targets = [target for target in targets if target not in carried]
        for route in self._routes_with["complete"]:
            route.complete(handle, sources, deadline, layout)
        return handle

    @cached_property
    def _routes_with(self) -> dict[str, list[Route]]:
        """By hook the routes that define it.

        A small model's round takes 60 microseconds, too short to call hooks that do nothing.
        """
        return {
            hook: [route for route in self.routes if getattr(type(route), hook) is not getattr(Route, hook)]
            for hook in ("begin", "complete", "acknowledge")
        }

    def _in_host_memory(self, payload: Payload) -> Payload:
        """The payload where routes can send it; one that lies in a slot is copied into the host's slot.

        Otherwise it would be staged, and staging has no room for a vector.
        """
        place = None
        if self._host_slots is not None:
            place = same_place(payload.buffer, self.slots, self._host_slots)
        if place is None:
            return payload.to(HOST)
        return Payload(payload.layout, place.copy_(payload.buffer), payload.counts)

    def send(self, target: int, payload: Payload, window: int, tag: int, number: int) -> None:
        if self.why_lost(target) is None:
            self.counters.count_sent(payload, 1)
            any(route.send_single(target, payload, window, tag, number) for route in self.routes)

    def why_lost(self, peer: int) -> PeerError | None:
        # With a record, which a node of this process that ends is noted in.
        with self.mailbox.lock:
            return self.peers[peer].error

    def admit(self, round: int) -> list[int]:
        return self.peers.admit(round)

    @property
    def ahead(self) -> int:
        return self.peers.ahead

    def acknowledge(self, source: int, message: Message) -> None:
        for route in self._routes_with["acknowledge"]:
            if route.acknowledge(source, message):
                return

    def resend(self, peer: int, key: Key) -> bool:
        return any(route.resend(peer, key) for route in self.routes)

    def invalidate(self, peer: int) -> None:
        for route in self.routes:
            route.invalidate(peer, self._seq)

    def introduce(self, peer: Peer) -> None:
        for route in self.routes:
            route.introduce(peer)

    def leave(self, failed: bool = False) -> None:
        # First: from here on peers that ask are told that this node has ended.
        self.mailbox.ended, self.mailbox.failed = True, failed
        for route in self.routes:
            route.leave(failed)
