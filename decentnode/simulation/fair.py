"""Max-min fair sharing of uplinks and downlinks (Bertsekas and Gallager, Data Networks, 2nd ed., 6.5.2).

A flow is what a directed link sends now: one message at a time, first in first out, as over one TCP
connection. As in SimGrid (Casanova et al., 2014), the latency of a message passes first, and uses no link;
then its bits flow. Rates change only when a flow begins or ends. They are those of progressive filling: all
rates grow in proportion to their weights; where a link is full, or a flow at its limit, the rates there stay.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import cast

import numpy as np
from numpy.typing import NDArray

from decentnode.errors import RunFailed
from decentnode.simulation.clock import SECOND, EventLoop
from decentnode.simulation.quantities import Numbers

MOST_FLOWS = 16384
"""Directed links with a message on the way at once, at most: the end of one may change the rates of all."""
LONGEST = 2.0**62
"""Nanoseconds of a transfer at most, about 146 years: times are whole numbers of 64 bits."""
NEVER = 2**63 - 1
FULL = 1.0 - 1e-9
"""The share of its capacity at which a link counts as full, whatever the rounding."""


def max_min_rates(
    capacity: Numbers, links: NDArray[np.int64], usage: Numbers, limit: Numbers, weight: Numbers
) -> Numbers:
    """Returns the rates of flows, shape (flows,), that are max-min fair in proportion to their weights.

    Each flow uses the links of its row of `links`, shape (flows, k), and has a finite limit of its own. Of
    link m of a row it takes `usage[m]` times its rate. A link is a bottleneck when no flow of it is held back
    elsewhere. All bottlenecks are found at once, so there are as many passes as the longest chain of
    bottlenecks has links.
    """
    rates = np.zeros(len(links))
    left = capacity.astype(float)
    share = np.zeros(len(capacity))
    open_flows = np.arange(len(links))
    columns = [links[:, column] for column in range(len(usage))]
    most = limit / weight

    def used(columns: list[NDArray[np.int64]], rates: Numbers) -> Numbers:
        """Returns what flows of these rates take of each link."""
        parts = zip(columns, usage, strict=True)
        sums = (part * np.bincount(column, rates, len(left)) for column, part in parts)
        return sum(sums, np.zeros(len(left)))

    while len(open_flows):
        weights = used(columns, weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            # What a link offers per weight never falls, except by rounding.
            share = np.where(weights > 0, np.maximum(left / weights, share), inf)
        offers = [share[column] for column in columns]
        level = np.minimum(np.minimum.reduce(offers), most)
        held_back = np.zeros(len(left), bool)
        for column, offer in zip(columns, offers, strict=True):
            held_back[column[level < offer]] = True
        settled = most <= level
        for column, offer in zip(columns, offers, strict=True):
            settled |= (level == offer) & ~held_back[column]
        rate = (level * weight)[settled]
        rates[open_flows[settled]] = rate
        left -= used([column[settled] for column in columns], rate)
        np.maximum(left, 0.0, out=left)
        still = ~settled
        open_flows, columns = open_flows[still], [column[still] for column in columns]
        most, weight = most[still], weight[still]
    return rates


@dataclass(eq=False, slots=True)
class Flow:
    """A message, and how it may be sent."""

    source: int
    target: int
    bits: float
    limit: float
    """Bits per second at most, or infinite."""
    weight: float
    deliver: Callable[[], object]
    transmissions: int = 1
    """How often it is sent until it arrives."""
    is_withdrawn: bool = False
    """Whether its link went down under it: it uses nothing any more, and is never delivered."""
    first: int = NEVER
    """With `delay` and `queue` when its first bit arrives, in nanoseconds."""
    last: int = NEVER
    has_arrived: bool = False
    """With `fair` whether its latency has passed."""
    row: int | None = None
    """Its place in the arrays while its bits flow."""

    def left(self, now: int) -> float:
        """Returns the bits that have not arrived, if they come evenly from first to last."""
        if now <= self.first:
            return self.bits
        return self.bits * max(0.0, (self.last - now) / (self.last - self.first))


class FairLinks:
    """The flows of all directed links, their rates, and when each of them ends."""

    def __init__(
        self, uplink: Numbers, downlink: Numbers, bandwidth: Numbers | None = None, cross_traffic: float = 0.0
    ) -> None:
        """`bandwidth`: of each directed link, shape (n, n); `cross_traffic`: what its acknowledgments take of
        the way back, for a rate of 1."""
        self._nodes = len(uplink)
        self._bandwidth = bandwidth
        self._capacity = np.concatenate([uplink, downlink])
        one_way = np.ones(2 if bandwidth is None else 3)
        self._usage = np.concatenate([one_way, cross_traffic * one_way]) if cross_traffic else one_way
        """What a flow of rate 1 takes of each of its links."""
        self._own_links: dict[tuple[int, int], int] = {}
        """The places of directed links with a rate of their own that have carried something."""
        self._is_full = np.zeros(len(self._capacity), bool)
        self._flows_by_link: dict[tuple[int, int], deque[Flow]] = {}
        self._flows: list[Flow | None] = [None] * MOST_FLOWS
        self._free = list(range(MOST_FLOWS))[::-1]
        self._active = np.zeros(MOST_FLOWS, bool)
        self._links = np.zeros((MOST_FLOWS, len(self._usage)), np.int64)
        self._limit, self._weight, self._rate, self._left = (np.zeros(MOST_FLOWS) for _ in range(4))
        self._since, self._due = np.zeros(MOST_FLOWS, np.int64), np.full(MOST_FLOWS, NEVER)
        self._rows_of: defaultdict[int, dict[int, float]] = defaultdict(dict)
        """By link the rows of its flows, and their usage. No set: sums must have one order."""
        self._new: list[int] = []
        """Rows without a rate yet."""
        self._changed: dict[int, None] = {}
        """Links on which a flow has begun or ended since rates were computed."""
        self._is_asked = False
        self._computed = 0
        """How often rates were computed: a timer of earlier rates does nothing."""

    def send(self, loop: EventLoop, begin: int, flow: Flow) -> None:
        """Has a message delivered that may flow from `begin` on."""
        self._flows_by_link.setdefault((flow.source, flow.target), deque()).append(flow)
        loop.call_at_nanosecond(begin, self._arrive, loop, begin, flow)

    def rates(self) -> dict[tuple[int, int], float]:
        """Returns the bits per second of all that flows, by directed link."""
        flows = [flow for flow in self._flows if flow is not None]
        return {(flow.source, flow.target): float(self._rate[flow.row]) for flow in flows}

    def withdraw(self, loop: EventLoop, now: int, flow: Flow) -> float:
        """Takes a message off its links, which was marked as withdrawn; returns the bits that are left."""
        link, left = (flow.source, flow.target), flow.bits
        self._flows_by_link[link].remove(flow)
        if (row := flow.row) is not None:
            left = self._left[row] - self._rate[row] * (now - self._since[row]) / SECOND
            self._end(flow, row)
            self._ask(loop, now)
        self._begin_next(loop, now, link)
        return max(0.0, float(left))

    def _arrive(self, loop: EventLoop, now: int, flow: Flow) -> None:
        flow.has_arrived = True
        if not flow.is_withdrawn and self._flows_by_link[flow.source, flow.target][0] is flow:
            self._begin(loop, now, flow)

    def _links_of(self, source: int, target: int) -> list[int]:
        """Returns the places of the links on the way from one node to another."""
        links = [source, self._nodes + target]
        if self._bandwidth is not None:
            place = self._own_links.setdefault((source, target), len(self._capacity))
            if place == len(self._capacity):
                self._capacity = np.append(self._capacity, self._bandwidth[source, target])
                self._is_full = np.append(self._is_full, False)
            links.append(place)
        return links

    def _begin(self, loop: EventLoop, now: int, flow: Flow) -> None:
        links = self._links_of(flow.source, flow.target)
        if len(links) < len(self._usage):
            links += self._links_of(flow.target, flow.source)
        limit = min(flow.limit, float((self._capacity[links] / self._usage).min()))
        if limit == inf:
            self._leave_link(loop, now, flow)
            return
        if not self._free:
            raise RunFailed(
                f"network_model fair: more than {MOST_FLOWS:,} directed links carry messages at once; "
                "use queue, or fewer nodes or neighbors"
            )
        row = flow.row = self._free.pop()
        self._flows[row] = flow
        self._active[row] = True
        self._links[row] = links
        self._limit[row], self._weight[row], self._left[row] = limit, flow.weight, flow.bits
        self._rate[row] = 0.0
        self._since[row] = now
        self._new.append(row)
        for link, usage in zip(links, self._usage.tolist(), strict=True):
            self._rows_of[link][row] = usage
            self._changed[link] = None
        self._ask(loop, now)

    def _leave_link(self, loop: EventLoop, now: int, flow: Flow) -> None:
        """Delivers a message, and lets the next one of its directed link flow."""
        link = flow.source, flow.target
        self._flows_by_link[link].popleft()
        self._begin_next(loop, now, link)
        flow.deliver()

    def _begin_next(self, loop: EventLoop, now: int, link: tuple[int, int]) -> None:
        queue = self._flows_by_link[link]
        if not queue:
            del self._flows_by_link[link]
        elif queue[0].has_arrived and queue[0].row is None:
            self._begin(loop, now, queue[0])

    def _ask(self, loop: EventLoop, now: int) -> None:
        """Has rates computed after everything that was asked for at this time: once for a burst."""
        if not self._is_asked:
            self._is_asked = True
            loop.call_at_nanosecond(now, self._compute, loop, now)

    def _compute(self, loop: EventLoop, now: int) -> None:
        """Computes the rates that may have changed, and when the next flow ends."""
        self._is_asked = False
        self._computed += 1
        affected, rates = self._affected_rates()
        self._changed, self._new = {}, []
        # A flow whose rate stays keeps its end, so that it does not drift by rounding.
        differs = rates != self._rate[affected]
        rows, rates = affected[differs], rates[differs]
        left = self._left[rows] - self._rate[rows] * ((now - self._since[rows]) / SECOND)
        self._left[rows] = left = np.maximum(left, 0.0)
        self._since[rows] = now
        self._rate[rows] = rates
        self._due[rows] = now + np.minimum(np.rint(left / rates * SECOND), LONGEST).astype(np.int64)
        due = int(self._due.min())
        if due != NEVER:
            loop.call_at_nanosecond(due, self._finish, loop, due, self._computed)

    def _affected_rates(self) -> tuple[NDArray[np.int64], Numbers]:
        """Returns the rows whose rates may have changed, and their rates.

        A change reaches a flow only through links that are full, before it or after it. So flows that such
        links join are computed, and all others stay as they are. Where a link becomes full by that, its flows
        join them.
        """
        is_full, links_of = self._is_full, self._links
        # A message may have been withdrawn at the time at which it began to flow.
        new = [row for row in self._new if self._active[row]]
        rows = dict.fromkeys(new)
        shared: dict[int, None] = {}
        todo = [link for link in self._changed if is_full[link]]
        todo += [link for row in new for link in links_of[row].tolist() if is_full[link]]
        most = np.count_nonzero(self._active) // 8
        while True:
            while todo and len(rows) <= most:
                link = todo.pop()
                if link in shared:
                    continue
                shared[link] = None
                for row in self._rows_of[link]:
                    if row not in rows:
                        rows[row] = None
                        todo += [other for other in links_of[row].tolist() if is_full[other]]
            if len(rows) > most:
                break
            affected = np.array(sorted(rows), np.int64)
            links, places = np.unique(links_of[affected], return_inverse=True)
            capacity = np.array([self._capacity[link] if link in shared else inf for link in links.tolist()])
            rates = max_min_rates(
                capacity,
                places.reshape(-1, len(self._usage)),
                self._usage,
                self._limit[affected],
                self._weight[affected],
            )
            before = self._rate[affected].copy()
            self._rate[affected] = rates
            for link in {**dict.fromkeys(links.tolist()), **self._changed}:
                rows_of = self._rows_of[link]
                used = (self._rate[list(rows_of)] * list(rows_of.values())).sum()
                is_full[link] = used >= FULL * self._capacity[link]
                if is_full[link] and link not in shared:
                    todo.append(link)
            self._rate[affected] = before
            if not todo:
                return affected, rates
        affected = np.flatnonzero(self._active)
        links = links_of[affected]
        rates = max_min_rates(
            self._capacity, links, self._usage, self._limit[affected], self._weight[affected]
        )
        used = np.bincount(links.reshape(-1), np.outer(rates, self._usage).reshape(-1), len(self._capacity))
        self._is_full = used >= FULL * self._capacity
        return affected, rates

    def _finish(self, loop: EventLoop, now: int, computed: int) -> None:
        """Ends all flows that are due now."""
        if computed != self._computed:
            return
        for row in np.flatnonzero(self._due <= now).tolist():
            flow = cast(Flow, self._flows[row])
            self._end(flow, row)
            self._leave_link(loop, now, flow)
        self._ask(loop, now)

    def _end(self, flow: Flow, row: int) -> None:
        """Gives back what a message used while its bits flowed."""
        self._flows[row], self._active[row], self._due[row] = None, False, NEVER
        flow.row = None
        self._free.append(row)
        for link in self._links[row].tolist():
            del self._rows_of[link][row]
            self._changed[link] = None
