"""When a message arrives: propagation, and links that are shared or not.

A node has one uplink and one downlink to everybody, as a home or a virtual machine has. A message of s bytes
is sent at rate u, travels for the latency l, and is received at rate v:

    delay    t = l + 8 s / min(u, v), whatever else is on the way
    queue    first in, first out at the sender's uplink, for 8 s / u; then, in the order in which first bits
             arrive, at the receiver's downlink, for 8 s / v, however slowly they arrive (fifo.py). Bits are
             received while others are still sent: alone, t is that of `delay`
    fair     when l has passed, all that is on the way shares uplinks and downlinks max-min fairly (fair.py)

A directed link may have a rate b of its own, which is a third limit, with u and v. TCP (tcp.py) changes all
four, and its acknowledgments use the way back.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, inf
from typing import Literal

import numpy as np
from numpy.random import Generator

from decentnode.simulation.clock import SECOND, EventLoop
from decentnode.simulation.fair import FairLinks, Flow
from decentnode.simulation.fifo import FifoServer, Job
from decentnode.simulation.quantities import Numbers
from decentnode.simulation.tcp import BITS, Tcp

Model = Literal["delay", "queue", "fair"]


@dataclass(frozen=True, slots=True)
class Way:
    """What a message meets: the rates of its links in bits per second, and its latency in seconds."""

    uplink: float
    downlink: float
    link: float
    latency: float

    def lost_seconds(self, flow: Flow) -> float:
        """The time of lost transmissions, which use the uplink and are missed after a round trip."""
        return (flow.transmissions - 1) * (flow.bits / min(self.uplink, self.link) + 2 * self.latency)


@dataclass
class Network:
    """The links of all nodes, and what is on the way."""

    model: Model
    latency: Numbers
    """Seconds from rank i to rank j, shape (n, n)."""
    uplink: Numbers
    """Bits per second, shape (n,); infinite where nothing is said."""
    downlink: Numbers
    jitter: float = 0.0
    """Seconds of the mean of an exponential delay that is added to the latency of each message."""
    loss: float = 0.0
    """The probability that a transmission is lost; it is repeated after a round trip."""
    random: Generator = field(default_factory=np.random.default_rng)
    bandwidth: Numbers | None = None
    """Bits per second from rank i to rank j, shape (n, n); None: uplinks and downlinks alone limit."""
    tcp: Tcp | None = None
    _uplink_servers: defaultdict[int, FifoServer] = field(default_factory=lambda: defaultdict(FifoServer))
    _downlink_servers: defaultdict[int, FifoServer] = field(default_factory=lambda: defaultdict(FifoServer))
    _last_arrival: dict[tuple[int, int], int] = field(default_factory=dict)
    """By directed link the latest arrival so far: with `fair` of a first bit, with `queue` of a last one."""
    _link_free: dict[tuple[int, int], int] = field(default_factory=dict)
    """By directed link with a rate of its own when it has sent all that was asked of it."""

    @cached_property
    def _fair(self) -> FairLinks:
        tcp = self.tcp or Tcp()
        factor = tcp.bandwidth_factor
        bandwidth = None if self.bandwidth is None else self.bandwidth * factor
        return FairLinks(self.uplink * factor, self.downlink * factor, bandwidth, tcp.cross_traffic)

    def arrivals(self, now: int, source: int, targets: Iterable[int]) -> dict[int, list[int]]:
        """By time of arrival, in nanoseconds, the targets of a message that takes the latency alone."""
        arriving: dict[int, list[int]] = {}
        for target in targets:
            due = now + _nanoseconds(float(self.latency[source, target]))
            arriving.setdefault(due, []).append(target)
        return arriving

    @cached_property
    def has_latency_alone(self) -> bool:
        """Whether each message takes the latency of its link and nothing else."""
        rates = np.isinf(self.uplink).all() and np.isinf(self.downlink).all() and self.bandwidth is None
        return bool(rates) and not (self.jitter or self.loss or self.tcp is not None)

    def send(
        self, loop: EventLoop, now: int, source: int, target: int, size: int, deliver: Callable[[], object]
    ) -> Flow:
        """Has a message of so many bytes, sent at `now`, delivered when it arrives."""
        up, down, link = self._rates(source, target)
        latency = float(self.latency[source, target])
        limit, weight = inf, 1.0
        if self.tcp is not None:
            weight = self.tcp.weight(latency, up, down, link)
            limit = self.tcp.window_rate(latency)
            up, down, link = (rate * self.tcp.bandwidth_factor for rate in (up, down, link))
            latency *= self.tcp.latency_factor
        if self.jitter:
            latency += self.random.exponential(self.jitter)
        transmissions = 1 if not self.loss else int(self.random.geometric(1.0 - self.loss))
        flow = Flow(
            source, target, bits=BITS * size, limit=limit, weight=weight, deliver=deliver,
            transmissions=transmissions,
        )  # fmt: skip
        if self.model == "fair":
            self._share(loop, now, flow, latency)
            return flow
        way = Way(up, down, min(link, self._limit(flow)), latency)
        if self.model == "delay":
            self._delay(loop, now, flow, way)
        else:
            self._queue(loop, now, flow, way)
        return flow

    def _share(self, loop: EventLoop, now: int, flow: Flow, latency: float) -> None:
        """Model `fair`: has a flow share its links when its latency has passed."""
        # What is lost has used its links, and is missed after a round trip.
        flow.bits *= flow.transmissions
        due = self._in_order(flow, now + _nanoseconds((2 * flow.transmissions - 1) * latency))
        self._fair.send(loop, due, flow)

    def _delay(self, loop: EventLoop, now: int, flow: Flow, way: Way) -> None:
        """Model `delay`: has a flow arrive after its latency and its bits, whatever else is on the way."""
        seconds = flow.bits / min(way.uplink, way.downlink, way.link)
        flow.last = self._in_order(flow, now + _nanoseconds(way.lost_seconds(flow) + way.latency + seconds))
        flow.first = flow.last - _nanoseconds(seconds)
        loop.call_at_nanosecond(flow.last, self._deliver, flow)

    def _queue(self, loop: EventLoop, now: int, flow: Flow, way: Way) -> None:
        """Model `queue`: has a flow wait for the uplink, and then for the downlink."""
        pair = flow.source, flow.target

        def transmit(begin: int) -> None:
            begin += _nanoseconds(way.lost_seconds(flow))
            sent = begin + _nanoseconds(flow.bits / way.uplink)
            if way.link != inf:
                # Its bits pass the link while they are sent, when those before them have passed it.
                begin = max(begin, self._link_free.get(pair, 0))
                sent = max(begin + _nanoseconds(flow.bits / way.link), sent)
                self._link_free[pair] = sent
            # Jitter and losses must not let a message overtake another one of the same link.
            first = max(begin + _nanoseconds(way.latency), self._last_arrival.get(pair, 0))
            self._last_arrival[pair] = last = first + sent - begin
            duration = _nanoseconds(flow.bits / way.downlink)
            loop.call_at_nanosecond(first, self._receive, loop, first, flow, duration, last)

        # Other messages use the uplink during the round trips after which a loss is noticed.
        job = Job(flow, _nanoseconds(flow.transmissions * flow.bits / way.uplink), transmit)
        self._uplink_servers[flow.source].add(loop, now, job)

    def _limit(self, flow: Flow) -> float:
        """Returns the rate that the window of TCP allows, and the way back of its acknowledgments."""
        if self.tcp is None or not self.tcp.cross_traffic:
            return flow.limit
        back = min(self._rates(flow.target, flow.source)) * self.tcp.bandwidth_factor
        return min(flow.limit, back / self.tcp.cross_traffic)

    def withdraw(self, loop: EventLoop, now: int, flow: Flow) -> int:
        """Takes a message off its directed link, with all others there; returns the bytes that are left.

        It is never delivered, and uses nothing any more.
        """
        flow.is_withdrawn = True
        self._last_arrival.pop((flow.source, flow.target), None)
        self._link_free.pop((flow.source, flow.target), None)
        left = flow.left(now)
        if self.model == "fair":
            # Its bits are those of all transmissions, and what is left is sent, and may be lost, once more.
            left = self._fair.withdraw(loop, now, flow) / flow.transmissions
        elif self.model == "queue":
            for end in (flow.source, flow.target):
                self._uplink_servers[end].withdraw(loop, now, flow)
                self._downlink_servers[end].withdraw(loop, now, flow)
        return ceil(left / BITS)

    def _rates(self, source: int, target: int) -> tuple[float, float, float]:
        """Returns the rates of the uplink, the downlink, and the link between them."""
        link = inf if self.bandwidth is None else float(self.bandwidth[source, target])
        return float(self.uplink[source]), float(self.downlink[target]), link

    def _receive(self, loop: EventLoop, now: int, flow: Flow, duration: int, last: int) -> None:
        """Queues a message at the downlink when its first bit arrives, and its acknowledgments behind others.

        `duration`: nanoseconds for which it has the downlink; `last`: when its last bit comes there.
        """
        if flow.is_withdrawn:
            return
        if self.tcp is not None and self.tcp.cross_traffic:
            up, down, _ = self._rates(flow.target, flow.source)
            bits = self.tcp.cross_traffic * flow.bits / self.tcp.bandwidth_factor
            self._uplink_servers[flow.target].add(loop, now, Job(flow, _nanoseconds(bits / up)))
            self._downlink_servers[flow.source].add(loop, now, Job(flow, _nanoseconds(bits / down)))

        def begin(first: int) -> None:
            flow.first, flow.last = first, max(first + duration, last)

        def end(now: int) -> None:
            if last > now:
                loop.call_at_nanosecond(last, self._deliver, flow)
            else:
                flow.deliver()

        self._downlink_servers[flow.target].add(loop, now, Job(flow, duration, begin, end))

    def _deliver(self, flow: Flow) -> None:
        if not flow.is_withdrawn:
            flow.deliver()

    def _in_order(self, flow: Flow, due: int) -> int:
        pair = flow.source, flow.target
        self._last_arrival[pair] = due = max(due, self._last_arrival.get(pair, 0))
        return due


def _nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND)
