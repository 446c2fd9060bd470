"""Mean model, consensus distance, and the evaluation of the mean model.

Each machine has one observer, a thread of its launcher that reads the nodes' snapshots. The coordinator
combines the partial sums of all machines. No node waits for it longer than `Timeouts.snapshot`.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from decentnode.communication.launcher_link.reports import Published, Report
from decentnode.communication.launcher_link.snapshots import SnapshotBuffers
from decentnode.core.clock import AwakeClock
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.evaluation_log import Observation
from decentnode.launcher.state.messages import (
    ClusterMessage,
    Contribution,
    MeanVector,
    PartialDistance,
    PartialSum,
    VectorAck,
)

Event = Published | Contribution | VectorAck | None
"""Input of the observer; None: end."""
POLL_INTERVAL = 0.2
"""Seconds between two checks of which nodes are awaited, while a round is being observed."""
MOST_AHEAD_ROUNDS, MOST_AHEAD_BYTES = 16, 1 << 28
"""Limit of rounds that only other machines have reported, and of the bytes of their sums: the larger one
counts.
"""


@dataclass
class _RoundParts:
    """What has arrived for one round."""

    grew: float
    """When something new last arrived."""
    shown: set[int] = field(default_factory=set)
    declined: set[int] = field(default_factory=set)
    sums: dict[int, PartialSum] = field(default_factory=dict)
    mean: Tensor | None = None
    averaged: int = 0
    """Number of nodes in the mean that was computed here."""
    distances: dict[int, PartialDistance] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    """Machines that have received this one's vector."""
    coordinator: int = 0
    """The machine that its contributions were sent to."""

    @property
    def count(self) -> int:
        """Number of nodes in the sums that have arrived."""
        return sum(part.count for part in self.sums.values())

    @property
    def parts(self) -> int:
        """How much has arrived; duplicates count once."""
        from_machines = len(self.sums) + len(self.distances) + len(self.arrived) + (self.mean is not None)
        return self.answers + from_machines

    @property
    def answers(self) -> int:
        """How many nodes have reported this round."""
        return len(self.shown) + len(self.declined)


@dataclass(eq=False, repr=False)
class ModelObserver(threading.Thread):
    """Turns snapshots and other machines' contributions into observations."""

    snapshots: SnapshotBuffers
    reporting: Callable[[], Mapping[int, int]]
    """The awaited local nodes, as `MembershipTable.reporting` returns them."""
    machine: int
    local: Collection[int]
    """The ranks of this machine."""
    send: Callable[[Contribution], object]
    """Sends contributions: to the coordinator, or from there to all."""
    test: Callable[[Tensor, int], dict[str, float]] | None
    """Evaluates a vector after a round."""
    notify: Callable[[], object] = lambda: None
    """Called when there is something to send or show, or the thread ends."""
    machines: set[int] = field(default_factory=lambda: {0})
    """The machines whose contributions the coordinator waits for."""
    coordinator: int = 0
    is_late: bool = False
    """This machine joined late and contributes nothing before its first evaluation."""
    observations: queue.SimpleQueue[Observation] = field(default_factory=queue.SimpleQueue)
    error: BaseException | None = None
    _expected: Mapping[int, int] = field(default_factory=dict)
    """The nodes that were reporting when rounds were last checked; the table may be ahead."""
    _next_check: float = 0.0
    """When rounds are checked also if reports are missing."""
    _newcomers: set[int] = field(default_factory=set)
    """Late machines, which the coordinator waits for from their first evaluations on."""
    _events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    _rounds: dict[int, _RoundParts] = field(default_factory=dict)
    _clock: AwakeClock = field(default_factory=lambda: AwakeClock(POLL_INTERVAL))
    _concluded: set[int] = field(default_factory=set)
    _closing: bool = False

    def __post_init__(self) -> None:
        super().__init__(name="decentnode-observer", daemon=True)

    # Called by the launcher.

    def register(
        self, report_dispatcher: Dispatcher[Report], message_dispatcher: Dispatcher[ClusterMessage]
    ) -> None:
        """Registers for models that nodes of this machine publish, and for what other observers send."""
        report_dispatcher.register(Published, self._note_publication)
        message_dispatcher.register(PartialSum, self.take)
        message_dispatcher.register(PartialDistance, self.take)
        message_dispatcher.register(MeanVector, self.take)
        message_dispatcher.register(VectorAck, self.take)

    def _note_publication(self, published: Published) -> None:
        if published.rank in self.local:
            self.take(published)

    def expect(self, machines: set[int], coordinator: int) -> None:
        """Makes the coordinator wait for these machines, for new ones from their first evaluations on."""
        self._newcomers |= machines - self.machines
        self.machines, self.coordinator = machines, coordinator

    @property
    def _coordinates(self) -> bool:
        return self.coordinator == self.machine

    def take(self, event: Published | Contribution | VectorAck) -> None:
        """Passes a published vector, or another machine's contribution, to the thread."""
        self._events.put(event)

    def finish(self) -> None:
        """Ends the thread when open rounds are complete; the launcher must still send its contributions."""
        self._events.put(None)

    # Everything below runs in this thread.

    def run(self) -> None:
        """Observes until finished; an error in here ends the observation and nothing else."""
        try:
            self._observe()
        except Exception as error:
            self.error = error
            self.notify()
            # Released unread, so no node waits for an observer that has failed.
            for round, round_parts in self._rounds.items():
                self._release(round, round_parts)
            while not self._closing:
                event = self._events.get()
                self._closing = event is None
                self._release_late(event)
        finally:
            self.notify()

    def _observe(self) -> None:
        while not (self._closing and not self._rounds):
            events = self._arrived()
            is_due = self._is_probably_due(events)
            if is_due:
                self._expected, self._next_check = self.reporting(), self._clock.now() + POLL_INTERVAL
                # Asked before these are taken: every report that the table has is among them.
                events += self._waiting()
            for event in events:
                self._closing = self._closing or event is None
                if event is not None:
                    self._book(event)
            for round in sorted(self._rounds) if is_due else ():
                self._advance(round, self._rounds[round])

    def _arrived(self) -> list[Event]:
        """Returns all waiting events; without any, the first that arrives, or none after POLL_INTERVAL."""
        with contextlib.suppress(queue.Empty):
            return [self._events.get(timeout=POLL_INTERVAL if self._rounds else None), *self._waiting()]
        return []

    def _waiting(self) -> list[Event]:
        return [self._events.get() for _ in range(self._events.qsize())]

    def _is_probably_due(self, events: Sequence[Event]) -> bool:
        """Whether a round may be complete with these events.

        To know takes a pass over all nodes, which thousands of reports in a second cannot have each.
        """
        awaited = len(self._expected)
        return (
            self._clock.now() >= self._next_check
            or len(events) >= awaited
            or not all(isinstance(event, Published) for event in events)
            or any(
                self.machine in parts.sums or parts.answers + len(events) >= awaited
                for parts in self._rounds.values()
            )
        )

    def _release_late(self, event: Event) -> None:
        if isinstance(event, Published) and event.published:
            self.snapshots.release(event.rank, event.round)

    def _book(self, event: Published | Contribution | VectorAck) -> None:
        # Its first sum shows that a late machine evaluates with the others.
        if isinstance(event, PartialSum):
            self._newcomers.discard(event.machine)
        self.is_late = self.is_late and isinstance(event, MeanVector)
        if self.is_late:
            return
        # A node that evaluates late must not wait for an observation that is over.
        if event.round in self._concluded:
            self._release_late(event)
            return
        may_begin = isinstance(event, Published) or not (isinstance(event, VectorAck) or self._is_full())
        if event.round not in self._rounds and not may_begin:
            return
        begun = _RoundParts(self._clock.now(), coordinator=self.coordinator)
        round_parts = self._rounds.setdefault(event.round, begun)
        before = round_parts.parts
        match event:
            case Published():
                (round_parts.shown if event.published else round_parts.declined).add(event.rank)
            case PartialSum():
                round_parts.sums[event.machine] = event
            case PartialDistance():
                round_parts.distances[event.machine] = event
            case VectorAck():
                round_parts.arrived.add(event.machine)
            case MeanVector():
                round_parts.mean = torch.from_numpy(np.frombuffer(event.content, dtype=np.float64).copy())
        if round_parts.parts > before:
            round_parts.grew = self._clock.now()

    def _is_full(self) -> bool:
        """Whether other machines have reported more open rounds than a correct run can have."""
        ahead = sum(not (parts.shown or parts.declined) for parts in self._rounds.values())
        return ahead >= max(MOST_AHEAD_ROUNDS, MOST_AHEAD_BYTES // (8 * self.snapshots.elements))

    def _advance(self, round: int, parts: _RoundParts) -> None:
        """Takes every step that the input allows: sum, mean, distances, observation."""
        # One machine or node must not delay the observations of all others.
        late = self._clock.now() - parts.grew > Timeouts.observation
        answered = parts.shown | parts.declined
        # A node in a later round has skipped this one.
        are_here = all(rank in answered or done > round for rank, done in self._expected.items())
        if self.machine not in parts.sums and (late or are_here):
            self._contribute(PartialSum(self.machine, round, len(parts.shown), self._sum(round, parts)))
            if not parts.shown:
                # There may never be a mean to measure a distance from.
                self._contribute(PartialDistance(self.machine, round, 0, 0.0))
        if parts.coordinator != self.coordinator:
            # The last one is silent, and what it had is needed again.
            parts.coordinator = self.coordinator
            for known in (parts.sums, parts.distances):
                if self.machine in known:
                    self._contribute(known[self.machine])
        awaited = self.machines - self._newcomers
        if self._coordinates and parts.mean is None and (late or awaited <= parts.sums.keys()):
            self._make_mean(round, parts)
        is_summed = self.machine in parts.sums
        if parts.mean is not None and self.machine not in parts.distances and is_summed:
            distance = self._distance(round, parts)
            self._contribute(PartialDistance(self.machine, round, len(parts.shown), distance))
        complete = not self._coordinates or awaited <= parts.distances.keys()
        if late or (is_summed and complete and (parts.mean is not None or not parts.count)):
            self._conclude(round, parts)
            self.notify()

    def _contribute(self, contribution: Contribution) -> None:
        """Books a contribution of this machine, and sends it: a mean to all, others to the coordinator."""
        self._book(contribution)
        if isinstance(contribution, MeanVector) == self._coordinates:
            self.send(contribution)
            self.notify()

    def _sum(self, round: int, parts: _RoundParts) -> bytes:
        if not parts.shown:
            return b""
        # In float64, so rounding is negligible, and in rank order, whatever the order of arrival.
        total = torch.zeros(self.snapshots.elements, dtype=torch.float64)
        for rank in sorted(parts.shown):
            total += self.snapshots.vector(rank, round)
        return total.numpy().tobytes()

    def _make_mean(self, round: int, round_parts: _RoundParts) -> None:
        round_parts.averaged = round_parts.count
        if not round_parts.averaged:
            return
        # In the order of machines, so the mean does not depend on the order of arrival.
        parts = [np.frombuffer(part.content) for _, part in sorted(round_parts.sums.items()) if part.count]
        self._contribute(MeanVector(round, (np.sum(parts, axis=0) / round_parts.averaged).tobytes()))

    def _distance(self, round: int, parts: _RoundParts) -> float:
        assert parts.mean is not None
        mean = parts.mean
        distance = sum(
            float((self.snapshots.vector(rank, round) - mean).norm()) for rank in sorted(parts.shown)
        )
        # Only now: sum and distance need the same vectors.
        self._release(round, parts)
        return distance

    def _release(self, round: int, parts: _RoundParts) -> None:
        for rank in parts.shown:
            self.snapshots.release(rank, round)

    def _conclude(self, round: int, parts: _RoundParts) -> None:
        """Forgets a round, whose later input is ignored; the coordinator then has its observation."""
        self._release(round, self._rounds.pop(round))
        self._concluded.add(round)
        if parts.mean is None or not self._coordinates:
            # Otherwise the row of this round waits for an observation until the run ends.
            self.observations.put(Observation(round, 0, None, None))
            return
        count = sum(part.count for part in parts.distances.values())
        distance = sum(part.distance for part in parts.distances.values())
        # A model of zeros has no scale.
        scale = float(parts.mean.norm()) or 1.0
        scores = self.test(parts.mean, round) if self.test else None
        # A machine may have sent a distance without a part in the mean.
        nodes = min(count, parts.averaged)
        self.observations.put(Observation(round, nodes, distance / max(count, 1) / scale, scores))
