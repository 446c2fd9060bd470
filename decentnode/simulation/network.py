"""When a message arrives: propagation, and links that are shared or not.

A node has one uplink and one downlink to everybody, as a home or a virtual machine has. A message of s bytes
is sent at rate u, travels for the latency l, and is received at rate v:

    delay    t = l + 8 s / min(u, v), whatever else is on the way
    queue    first in, first out at the sender's uplink; then, in the order in which first bits arrive, at the
             receiver's downlink. Bits are received while others are still sent: alone, t is that of `delay`
    fair     when l has passed, all that is on the way shares uplinks and downlinks max-min fairly (fair.py)

A directed link may have a rate b of its own, which is a third limit beside u and v. TCP (tcp.py) changes all
four.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal

import numpy as np
from numpy.random import Generator

from decentnode.simulation.clock import SECOND, EventLoop
from decentnode.simulation.fair import FairLinks, Flow
from decentnode.simulation.quantities import Numbers
from decentnode.simulation.tcp import BITS, Tcp

Model = Literal["delay", "queue", "fair"]


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
    _uplink_free: dict[int, int] = field(default_factory=dict)
    """By rank when its uplink has sent all that was asked of it, in nanoseconds."""
    _downlink_free: dict[int, int] = field(default_factory=dict)
    _last_arrival: dict[tuple[int, int], int] = field(default_factory=dict)
    """By directed link the latest arrival so far, with `queue` and `fair` that of a first bit."""
    _link_free: dict[tuple[int, int], int] = field(default_factory=dict)
    """By directed link with a rate of its own when it has sent all that was asked of it."""

    @cached_property
    def _fair(self) -> FairLinks:
        factor = 1.0 if self.tcp is None else self.tcp.rate_factor
        return FairLinks(self.uplink * factor, self.downlink * factor)

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
    ) -> None:
        """Has a message of so many bytes, sent at `now`, delivered when it arrives."""
        bits = BITS * size
        up, down = float(self.uplink[source]), float(self.downlink[target])
        link = inf if self.bandwidth is None else float(self.bandwidth[source, target])
        travel = float(self.latency[source, target])
        weight = 1.0
        if self.tcp is not None:
            weight = self.tcp.weight(travel, up, down)
            window_rate = self.tcp.window_rate(travel)
            up, down, link = (rate * self.tcp.rate_factor for rate in (up, down, link))
            link = min(link, window_rate)
            travel *= self.tcp.latency_factor
        if self.jitter:
            travel += self.random.exponential(self.jitter)
        transmissions = 1 if not self.loss else int(self.random.geometric(1.0 - self.loss))
        if self.model == "fair":
            # What is lost has used its links, and is missed after a round trip.
            due = self._in_order(source, target, now + _nanoseconds((2 * transmissions - 1) * travel))
            self._fair.send(loop, due, Flow(source, target, transmissions * bits, link, weight, deliver))
            return
        # What is lost has used the uplink, and is missed after a round trip.
        lost = (transmissions - 1) * (bits / min(up, link) + 2 * travel)
        if self.model == "delay":
            due = now + _nanoseconds(lost + travel + bits / min(up, down, link))
            loop.call_at_nanosecond(self._in_order(source, target, due), deliver)
            return
        begin = max(now, self._uplink_free.get(source, 0))
        # Other messages use the uplink during the round trips after which a loss is noticed.
        self._uplink_free[source] = begin + _nanoseconds(transmissions * bits / up)
        begin += _nanoseconds(lost)
        sent = begin + _nanoseconds(bits / up)
        if link != inf:
            # Its bits pass the link while they are sent, when those before them have passed it.
            begin = max(begin, self._link_free.get((source, target), 0))
            sent = max(begin + _nanoseconds(bits / link), sent)
            self._link_free[source, target] = sent
        # Jitter must not let a message overtake another one of the same link.
        first = self._in_order(source, target, begin + _nanoseconds(travel))
        last = first + sent - begin
        if down == inf and last == first:
            # Neither end takes time, so no message waits for another one.
            loop.call_at_nanosecond(first, deliver)
        else:
            loop.call_at_nanosecond(first, self._receive, loop, target, first, last, bits / down, deliver)

    def _receive(
        self, loop: EventLoop, target: int, first: int, last: int, seconds: float,
        deliver: Callable[[], object],
    ) -> None:  # fmt: skip
        """Queues a message at the downlink when its first bit arrives."""
        begin = max(first, self._downlink_free.get(target, 0))
        done = max(begin + _nanoseconds(seconds), last)
        self._downlink_free[target] = done
        loop.call_at_nanosecond(done, deliver)

    def _in_order(self, source: int, target: int, due: int) -> int:
        due = max(due, self._last_arrival.get((source, target), 0))
        self._last_arrival[source, target] = due
        return due


def _nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND)
