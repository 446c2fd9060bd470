"""Links in virtual time: what is on the way over each of them, and what happens when one is down.

A link is down while one of its ends is offline, or a fault cuts it. What is on the way then waits for the
link, and continues when it is up, as TCP does. When a cause has lasted for `grace` seconds the link is
broken: what waited is lost, and both ends count each other as lost, an offline one as soon as it is back.
So this failure detector looks at links, never at silence: a slow transfer is no failure. From there on the
edge is that of real runs (`peers/edges.py`): when the link is up again, its ends agree on a round.

Threads: none but that of the event loop.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

from decentnode.communication.base import BufferSpec
from decentnode.communication.exchange.handle import Key, Message
from decentnode.communication.inproc import WithinProcess
from decentnode.communication.peers.edges import PROPOSAL_INTERVAL, EdgeProtocol
from decentnode.communication.peers.peer import Peer, PeerEvent
from decentnode.communication.peers.peers import Peers, PeersByRank
from decentnode.communication.peers.rejoin import first_of
from decentnode.communication.routes import Route, RoutedEndpoint
from decentnode.communication.simulated_processes import OtherProcesses, ProcessRoute
from decentnode.communication.wire import Header, Kind
from decentnode.core.byte_counters import HEADER_BYTES, ByteCounters
from decentnode.core.payload import Payload
from decentnode.errors import PeerLost
from decentnode.simulation.clock import SECOND, VirtualClock
from decentnode.simulation.delivery_log import DeliveryLog
from decentnode.simulation.fair import Flow
from decentnode.simulation.loop import VirtualLoop
from decentnode.simulation.network import Network
from decentnode.simulation.outages import NEVER, Interval, Outages, crash

Separates = Callable[[int, int], bool]
"""Whether a cut separates two ranks."""


@dataclass(slots=True, eq=False)
class PendingMessage:
    """A message on the way."""

    size: int
    """The bytes that have not arrived."""
    deliver: Callable[[], object]
    counters: ByteCounters | None
    """Those of the sender, where it counts the message."""
    flow: Flow | None = None
    """What the network made of it, since it was sent."""


class SimulatedLinks:
    """All links of a run."""

    def __init__(
        self, peers: PeersByRank, network: Network, clock: VirtualClock, outages: Outages,
        grace: float,
    ) -> None:  # fmt: skip
        """`peers`: those of each node, as they are made; `grace`: seconds until a link breaks."""
        self.edges: dict[int, EdgeProtocol] = {}
        self.counters: dict[int, ByteCounters] = {}
        """By rank those of its endpoint."""
        self.delivery_log: DeliveryLog | None = None
        """Where deliveries are written, if they are."""
        self._peers = peers
        self._network = network
        self._clock = clock
        self._outages = outages
        self._grace = round(grace * SECOND)
        self._offline_since: dict[int, int] = {}
        self._cut_since: dict[Separates, int] = {}
        """The cuts that hold, and since when."""
        self._known_peers: defaultdict[int, set[int]] = defaultdict(set)
        """By rank the peers that have heard of it, or of which it has."""
        self._messages_on_the_way: defaultdict[tuple[int, int], deque[PendingMessage]] = defaultdict(deque)
        self._waiting_messages: defaultdict[tuple[int, int], deque[PendingMessage]] = defaultdict(deque)
        """By directed link what is sent when it is up."""
        self._broken: set[tuple[int, int]] = set()
        """The pairs whose links are broken and not up again, the lower rank first."""
        self._lost_while_offline: defaultdict[int, set[int]] = defaultdict(set)
        self._restored_peers: defaultdict[int, set[int]] = defaultdict(set)
        """By rank the peers whose links are up again, on whose edges the ends may disagree."""
        self._is_checking = False

    @property
    def _loop(self) -> VirtualLoop:
        return cast(VirtualLoop, asyncio.get_running_loop())

    def begin(self) -> None:
        """Plans all outages; called in the loop."""
        for rank, schedule in self._outages.schedules.items():
            self._plan(rank, iter(schedule))
        for (begin, end), separates in self._outages.cuts:
            # A resumed run may begin after its end.
            if end > self._clock.nanoseconds:
                self._loop.call_at_nanosecond(begin, self._cut, separates, end)

    @cached_property
    def may_fail(self) -> bool:
        """Whether some link may be down at some time."""
        return bool(self._outages)

    def join(self, rank: int, peers: Peers, counters: ByteCounters) -> None:
        """Takes in a node."""
        self.counters[rank] = counters
        self.edges[rank] = EdgeProtocol({rank: peers}, self.send_control, partial(self.is_up, rank))

    def is_up(self, rank: int, peer: int) -> bool:
        """Whether a link carries messages now."""
        offline = self._offline_since
        is_cut = any(separates(rank, peer) for separates in self._cut_since)
        return rank not in offline and peer not in offline and not is_cut

    # Messages.

    def carry(
        self, source: int, target: int, size: int, deliver: Callable[[], object],
        counters: ByteCounters | None = None,
    ) -> None:  # fmt: skip
        """Brings so many bytes over a link; calls `deliver` when they are there.

        `counters`: count what is sent again after a loss, where they have counted the message.
        """
        now = self._clock.nanoseconds
        if not self._outages:
            flow = self._network.send(self._loop, now, source, target, size, deliver)
            if counters is not None:
                counters.count_repeated((flow.transmissions - 1) * size)
            return
        message, link = PendingMessage(size, deliver, counters), (source, target)
        if not self.is_up(source, target):
            if _pair(source, target) not in self._broken:
                self._waiting_messages[link].append(message)
            return
        self._messages_on_the_way[link].append(message)
        arrive = partial(self._arrive, link, message)
        message.flow = self._network.send(self._loop, now, source, target, size, arrive)
        if counters is not None:
            counters.count_repeated((message.flow.transmissions - 1) * size)

    def deliver_at_once(
        self, source: int, targets: list[int], deliver: Callable[[list[int]], object]
    ) -> bool:
        """Delivers a message to all targets with the same latency by one event.

        Returns False, having done nothing, where messages take more than the latency, or are looked at one by
        one.
        """
        network = self._network
        if self.may_fail or self.delivery_log is not None or not network.has_latency_alone:
            return False
        for due, arrived in network.arrivals(self._clock.nanoseconds, source, targets).items():
            self._loop.call_at_nanosecond(due, deliver, arrived)
        return True

    def _arrive(self, link: tuple[int, int], message: PendingMessage) -> None:
        self._messages_on_the_way[link].remove(message)
        message.deliver()

    def carry_at_once(self, source: int, target: int, deliver: Callable[[], object]) -> None:
        """Delivers what costs no time, such as an acknowledgement; waits for a link that is down."""
        if not self._outages or self.is_up(source, target):
            deliver()
        else:
            self.carry(source, target, 0, deliver)

    def send_control(self, kind: Kind, rank: int, peer: int, key: Key, seq: int) -> None:
        header = Header(kind, 0, rank, peer, *key, seq=seq)
        self.carry(rank, peer, HEADER_BYTES, partial(self._receive, header))

    def _receive(self, header: Header) -> None:
        edges, peers = self.edges[header.receiver], self._peers[header.receiver]
        if header.kind == Kind.RESEND:
            edges.answer_request(peers, header.sender, header.key)
        else:
            edges.receive(peers, header.kind, header)

    # Outages.

    def _plan(self, rank: int, coming: Iterator[Interval]) -> None:
        """Plans the next outage of a node."""
        now = self._clock.nanoseconds
        for begin, end in coming:
            if begin <= now < end:
                self._go_offline(rank, end, coming)
                return
            if begin > now:
                self._loop.call_at_nanosecond(begin, self._go_offline, rank, end, coming)
                return

    def _go_offline(self, rank: int, end: int, coming: Iterator[Interval]) -> None:
        now, mailbox = self._clock.nanoseconds, self._peers[rank].mailbox
        # A node that has ended stays, so that its last messages arrive.
        if mailbox.ended:
            return
        until = "for ever" if end == NEVER else f"until {end / SECOND:g} s"
        self._outages.report(rank, f"offline at {now / SECOND:g} simulated s, {until}")
        self._offline_since[rank] = now
        for peer in sorted(self._known_peers[rank]):
            self._stop(rank, peer)
        self._loop.call_at_nanosecond(now + self._grace, self._break_all_of, rank, now)
        if end == NEVER:
            mailbox.fail(crash(now))
        else:
            self._loop.call_at_nanosecond(end, self._go_online, rank, coming)

    def _go_online(self, rank: int, coming: Iterator[Interval]) -> None:
        del self._offline_since[rank]
        for peer in sorted(self._lost_while_offline.pop(rank, ())):
            self._lose(rank, peer)
        for peer in sorted(self._known_peers[rank]):
            self._restore(rank, peer)
        self._plan(rank, coming)

    def _break_all_of(self, rank: int, since: int) -> None:
        if self._offline_since.get(rank) == since:
            for peer in sorted(self._known_peers[rank]):
                self._break(rank, peer)

    def _cut(self, separates: Separates, end: int) -> None:
        now = self._clock.nanoseconds
        self._cut_since[separates] = now
        for rank, peer in self._separated_by(separates):
            self._outages.report(rank, f"link to rank {peer} cut at {now / SECOND:g} simulated s")
            self._stop(rank, peer)
        self._loop.call_at_nanosecond(now + self._grace, self._break_all_cut, separates)
        # A timer at NEVER would be the next event of a run that stands still, and hide that.
        if end < NEVER:
            self._loop.call_at_nanosecond(end, self._end_cut, separates)

    def _end_cut(self, separates: Separates) -> None:
        del self._cut_since[separates]
        for rank, peer in self._separated_by(separates):
            self._restore(rank, peer)

    def _break_all_cut(self, separates: Separates) -> None:
        if separates in self._cut_since:
            for rank, peer in self._separated_by(separates):
                self._break(rank, peer)

    def _separated_by(self, separates: Separates) -> list[tuple[int, int]]:
        pairs = {_pair(rank, peer) for rank, peers in self._known_peers.items() for peer in peers}
        return sorted(pair for pair in pairs if separates(*pair))

    # Edges whose links were broken.

    def _check(self) -> None:
        """Proposes again, and asks peers that a node waits for whether they use the edge, as real nodes do.

        Agreements and the ends of edges cross on the way, so one end may wait over an edge that the other one
        has dropped.
        """
        now = self._clock.now()
        running = [rank for rank in sorted(self._restored_peers) if not self._peers[rank].mailbox.ended]
        for rank in running:
            if rank in self._offline_since:
                continue
            self.edges[rank].propose()
            for handle, awaited in self._peers[rank].mailbox.awaited():
                if now - handle.opened >= PROPOSAL_INTERVAL:
                    for peer in sorted(awaited & self._restored_peers[rank]):
                        self.send_control(Kind.RESEND, rank, peer, handle.key, 0)
        self._is_checking = bool(running)
        if running:
            self._loop.call_later(PROPOSAL_INTERVAL, self._check)

    # The links of one pair.

    def introduce(self, rank: int, peer: Peer) -> None:
        """Shows a node a peer of which it has not heard before: lost where their link is broken."""
        if not self._outages:
            return
        other, now = peer.rank, self._clock.nanoseconds
        self._known_peers[rank].add(other)
        self._known_peers[other].add(rank)
        causes = [since for separates, since in self._cut_since.items() if separates(rank, other)]
        causes += [self._offline_since[end] for end in (rank, other) if end in self._offline_since]
        pair = _pair(rank, other)
        if pair not in self._broken and any(now - since >= self._grace for since in causes):
            self._broken.add(pair)
            self._lose(other, rank)
        if pair in self._broken:
            peer.step(PeerEvent.LOSE, _lost(other))

    def _stop(self, rank: int, peer: int) -> None:
        """Lets what is on the way between two nodes wait, and use no link meanwhile."""
        for link in ((rank, peer), (peer, rank)):
            for message in self._messages_on_the_way.pop(link, ()):
                if message.flow is not None:
                    now = self._clock.nanoseconds
                    message.size = self._network.withdraw(self._loop, now, message.flow)
                self._waiting_messages[link].append(message)

    def _break(self, rank: int, peer: int) -> None:
        if (pair := _pair(rank, peer)) in self._broken:
            return
        self._broken.add(pair)
        for end, other in ((rank, peer), (peer, rank)):
            self._waiting_messages.pop((end, other), None)
            self._lose(end, other)

    def _lose(self, rank: int, peer: int) -> None:
        """Has a node count a peer as lost, when it is online."""
        if rank in self._offline_since:
            self._lost_while_offline[rank].add(peer)
        else:
            self._peers[rank].lose(peer, _lost(peer))

    def _restore(self, rank: int, peer: int) -> None:
        """Sends what has waited for a link that is up, or has its ends agree on a round if it was broken."""
        if not self.is_up(rank, peer):
            return
        lower, higher = pair = _pair(rank, peer)
        if pair in self._broken:
            self._broken.discard(pair)
            self._restored_peers[lower].add(higher)
            self._restored_peers[higher].add(lower)
            self.edges[lower].propose()
            if not self._is_checking:
                self._is_checking = True
                self._loop.call_later(PROPOSAL_INTERVAL, self._check)
        for source, target in ((lower, higher), (higher, lower)):
            for message in self._waiting_messages.pop((source, target), ()):
                self.carry(source, target, message.size, message.deliver, message.counters)


class SimulatedRoute(Route):
    """Hands payloads over as `inproc` does, when the link has carried their bytes."""

    def __init__(self, rank: int, peers: PeersByRank, links: SimulatedLinks) -> None:
        self._rank = rank
        self._peers = peers
        self._within = WithinProcess(rank, peers)
        self._links = links

    def carried(self, payload: Payload, targets: list[int]) -> list[int]:
        return self._within.carried(payload, targets)

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        if self._links.may_fail:
            # As over TCP: a sender that has lost a reader does not wait for it before it writes again.
            payload = Payload(payload.layout, payload.buffer.clone(), payload.counts)
        if not self._links.deliver_at_once(
            self._rank, targets, lambda arrived: self._within.send(payload, arrived, key, seq)
        ):
            for target in targets:
                self._carry(target, payload, partial(self._within.send, payload, [target], key, seq))

    def send_single(self, target: int, payload: Payload, window: int, tag: int, number: int) -> bool:
        if not self._within.carried(payload, [target]):
            return False
        self._carry(target, payload, partial(self._within.send_single, target, payload, window, tag, number))
        return True

    def _carry(self, target: int, payload: Payload, deliver: Callable[[], object]) -> None:
        size = payload.nbytes + HEADER_BYTES
        if self._links.delivery_log is not None:
            deliver = self._links.delivery_log.logged(self._rank, target, size, deliver)
        self._links.carry(self._rank, target, size, deliver, self._links.counters[self._rank])

    def acknowledge(self, source: int, message: Message) -> bool:
        if self._links.may_fail:
            self._links.carry_at_once(self._rank, source, partial(self._within.acknowledge, source, message))
            return True
        return self._within.acknowledge(source, message)

    def introduce(self, peer: Peer) -> None:
        self._within.introduce(peer)
        self._links.introduce(self._rank, peer)

    def leave(self, failed: bool) -> None:
        last = self._peers[self._rank].mailbox.last_exchange
        # One that has not met this node finds it ended when it does.
        for rank in sorted(self._peers.known_to[self._rank]):
            self._links.carry_at_once(
                self._rank, rank, partial(self._peers[rank].depart, self._rank, last, failed)
            )


class SimulatedEndpoint(RoutedEndpoint):
    """One node's end in virtual time."""

    # A wait of virtual seconds may be a real instant, and nothing is requested again.
    times_waits = False

    def __init__(
        self,
        rank: int,
        buffer_spec: BufferSpec,
        peers: PeersByRank,
        links: SimulatedLinks,
        others: OtherProcesses | None,
        clock: VirtualClock,
    ) -> None:
        """`others`: where some nodes are in other processes."""
        routes: list[Route] = [SimulatedRoute(rank, peers, links)]
        if others is not None:
            routes.append(ProcessRoute(rank, peers, others))
            others.endpoint = self
        slots = buffer_spec.slots() if others is None else others.slots(rank, buffer_spec)
        super().__init__(rank, buffer_spec, slots, routes, clock=clock)
        peers[rank] = self.peers
        links.join(rank, self.peers, self.counters)
        self._links = links

    def skip_to(self, round: int) -> None:
        for peer in sorted(self.peers.skip_to(round, tuple(self.peers))):
            self._links.send_control(Kind.SKIP, self.rank, peer, first_of(round), 0)


def _pair(rank: int, peer: int) -> tuple[int, int]:
    return (rank, peer) if rank < peer else (peer, rank)


def _lost(peer: int) -> PeerLost:
    return PeerLost(peer, "connection lost")
