"""Injects the faults of a configuration, and reports each (after the nemesis of Kingsbury's Jepsen, 2013)."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from decentnode.communication import wire
from decentnode.communication.interceptor import MessageInterceptor, Received
from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard, HeartbeatSlot
from decentnode.communication.launcher_link.reports import FaultInjected, Reporter
from decentnode.communication.launcher_link.shared_array import SharedMemory
from decentnode.core.registry import name_of
from decentnode.core.rng import generator
from decentnode.node.faults.base import Fault, MessageFault, NodeFault, includes
from decentnode.simulation.outages import Outages, OutageSchedule

MOST_REMEMBERED = 8
"""Messages per link and kind that are remembered, to recognize a resend."""
ROUNDS_REMEMBERED = 8
"""Rounds in which a fault was reported; payloads of peers may belong to other rounds than the node's own."""


@dataclass
class FaultInjector:
    """The faults of a run; made before the fork."""

    faults: Sequence[Fault]
    machines: Sequence[int]
    """The machine of each rank."""
    seed: int

    def __post_init__(self) -> None:
        self._acted = SharedMemory().array((len(self.faults), len(self.machines)))
        """By fault and rank, the round after the last one in which it acted; outlives crashed processes."""

    def heartbeat(self, rank: int, heartbeat: HeartbeatSlot, reporter: Reporter) -> HeartbeatSlot:
        """The heartbeat slot of a node; it injects the faults for that rank, if there are any."""
        faults = [
            (i, fault)
            for i, fault in self._meant_for(rank)
            if isinstance(fault, NodeFault) and not fault.is_virtual
        ]
        if not faults:
            return heartbeat
        return FaultHeartbeat(
            heartbeat.words, heartbeat.seconds, rank, injector=self, faults=faults, reporter=reporter
        )

    def interceptor(
        self, ranks: Sequence[int], heartbeats: HeartbeatBoard, reporter: Reporter
    ) -> "FaultInterceptor | None":
        """The filter of messages for these ranks of one process; None without faults for them."""
        faults = {
            rank: [
                (i, fault)
                for i, fault in self._meant_for(rank)
                if isinstance(fault, MessageFault) and not fault.is_virtual
            ]
            for rank in ranks
        }
        if not any(faults.values()):
            return None
        return FaultInterceptor(faults, heartbeats, self, reporter=reporter)

    def outages(self, reporter: Reporter) -> Outages:
        """Returns all that acts at virtual times; the launcher is told of each outage."""
        schedules = {}
        for rank in range(len(self.machines)):
            # Keyed by fault and rank, so that another fault changes no draw.
            draws = [
                (fault, generator(self.seed, "fault", i, rank))
                for i, fault in self._meant_for(rank)
                if fault.is_virtual
            ]
            schedule = OutageSchedule(
                *(fault.outages_of(rank, draw) for fault, draw in draws if draw.random() < fault.probability)
            )
            if schedule:
                schedules[rank] = schedule
        cuts = [cut for fault in self.faults if fault.is_virtual and (cut := fault.cut()) is not None]

        def report(rank: int, what: str) -> None:
            print(f"rank {rank}: {what}", flush=True)
            reporter.send(FaultInjected(rank, 0, "outage", what))

        return Outages(schedules, cuts, report)

    def is_due(self, fault: int, rank: int, round: int) -> bool:
        """Whether a fault of a node is due in that round and has not acted in it, or in a later one."""
        share = self.faults[fault].probability
        # Keyed by fault, rank and round, so a restarted process draws the same.
        drawn = share >= 1.0 or generator(self.seed, "fault", fault, rank, round).random() < share
        # Only the process of the rank writes here, so no lock is needed.
        if not drawn or self._acted[fault, rank] > round:
            return False
        self._acted[fault, rank] = round + 1
        return True

    def _meant_for(self, rank: int) -> list[tuple[int, Fault]]:
        """The faults for a rank, with their indices in the configuration, which key their random choices."""
        return [
            (i, fault)
            for i, fault in enumerate(self.faults)
            if includes(fault.ranks, rank) and fault.machine in (None, self.machines[rank])
        ]

    def report(self, reporter: Reporter, fault: int, rank: int, round: int, description: str) -> None:
        """Reports that a fault, by its number, acts on a rank in a round, and on what."""
        name = name_of(self.faults[fault])
        print(f"round {round + 1}: injected fault: {name} of rank {rank} ({description})", flush=True)
        reporter.send(FaultInjected(rank, round, name, description))


@dataclass(eq=False)
class FaultHeartbeat(HeartbeatSlot):
    """A heartbeat slot that injects a node's faults when the node marks its activity."""

    rank: int
    injector: FaultInjector
    faults: Sequence[tuple[int, NodeFault]]
    reporter: Reporter
    _lasting_faults: list[NodeFault] = field(default_factory=list, init=False)
    _began: float = field(default=0.0, init=False)

    def mark(self, round: int, activity: Activity) -> None:
        """Ends the faults of the previous activity, marks this one, and injects its faults."""
        seconds, lasting = time.monotonic() - self._began, self._lasting_faults
        self._lasting_faults = []
        for fault in lasting:
            fault.lift(seconds, self)
        # Marked before the faults act, so the launcher sees where a hung node is.
        super().mark(round, activity)
        self._began = time.monotonic()
        for number, fault in self.faults:
            is_meant = activity is Activity[fault.activity.upper()] and fault.injects_in(round)
            if is_meant and self.injector.is_due(number, self.rank, round):
                # Reported and recorded first: a crash never returns from `inject`.
                self.injector.report(self.reporter, number, self.rank, round, fault.activity)
                self._lasting_faults.append(fault)
                fault.inject()


Link = tuple[int, int]
"""(sender, receiver) of a message."""


@dataclass(frozen=True, eq=False)
class _Held:
    """A delayed message."""

    until: float
    link: Link
    message: Received
    overtaken: bool = False
    """Whether the next message of its link overtakes it."""


@dataclass(eq=False)
class FaultInterceptor(MessageInterceptor):
    """Injects faults into the messages that arrive at one process."""

    faults: Mapping[int, Sequence[tuple[int, MessageFault]]]
    """The faults of each local rank, with their numbers."""
    heartbeats: HeartbeatBoard
    injector: FaultInjector
    reporter: Reporter

    def __post_init__(self) -> None:
        self.next_release = math.inf
        self._held: list[_Held] = []
        self._seen: dict[tuple[int, int, int], dict[object, int]] = {}
        self._reported: defaultdict[tuple[int, int], deque[int]] = defaultdict(
            lambda: deque(maxlen=ROUNDS_REMEMBERED)
        )

    def filter_messages(self, message: Received, now: float) -> list[Received]:
        frames = message[0]
        try:
            # Not `frame.bytes`, which the frame would cache although its content may change.
            header = wire.Header.unpack(bytes(frames[0].buffer))
        except wire.WireError:
            # Passed on, because the receiver counts invalid messages by their reason.
            return [message]
        link = (header.sender, header.receiver)
        before = [held for held in self._held if held.link == link]
        passing = self._struck(message, header, now)
        if queue := [held.until for held in before if not held.overtaken]:
            # A link keeps the order: messages behind a delayed one wait with it.
            for passed in passing:
                self._hold(link, passed, max(queue))
            passing = []
        return passing + self._release([held for held in before if held.overtaken])

    def released(self, now: float) -> list[Received]:
        return self._release([held for held in self._held if held.until <= now])

    def _struck(self, message: Received, header: wire.Header, now: float) -> list[Received]:
        """Returns what is left of a message after all faults."""
        faults = self.faults.get(header.receiver, ())
        if not faults:
            return [message]
        seen = self.heartbeats.of(header.receiver).read()
        # Other kinds may name another round, or none: they belong to the receiver's current round.
        addressed = header.kind in (wire.Kind.PAYLOAD, wire.Kind.NOTICE, wire.Kind.MESSAGE)
        round = header.round if addressed else seen.round
        attempt = self._attempt(header)
        passing = [message]
        for number, fault in faults:
            applies = (
                includes(fault.peers, header.sender)
                and fault.separates(header.sender, header.receiver)
                and fault.pursue(round, now)
                and (fault.activity is None or seen.activity is Activity[fault.activity.upper()])
            )
            if not applies:
                continue
            identity = (header.kind, header.sender, header.receiver, *header.key, header.seq, attempt)
            # Keyed by the message, not by its arrival, so the same messages are affected in each run.
            draw = generator(self.injector.seed, "fault", number, *identity)
            if fault.probability < 1.0 and draw.random() >= fault.probability:
                continue
            self._report_once(number, header, round)
            hold = partial(self._hold, (header.sender, header.receiver))
            passing = [left for passed in passing for left in fault.inject(passed, draw, now, hold=hold)]
        return passing

    def _attempt(self, header: wire.Header) -> int:
        """How often this message has arrived before; a resend gets a new random draw."""
        series = self._seen.setdefault((header.sender, header.receiver, header.kind), {})
        content = (header.key, header.seq)
        times = series.pop(content, -1) + 1
        series[content] = times
        if len(series) > MOST_REMEMBERED:
            # `pop` moves a repeated message to the end, so the first is the oldest.
            del series[next(iter(series))]
        return times

    def _report_once(self, number: int, header: wire.Header, round: int) -> None:
        """Reports the first message that a fault affects for a rank in a round."""
        reported = self._reported[number, header.receiver]
        if round not in reported:
            reported.append(round)
            kind = wire.Kind(header.kind).name.lower()
            description = f"{kind} from rank {header.sender}"
            self.injector.report(self.reporter, number, header.receiver, round, description)

    def _hold(self, link: Link, message: Received, until: float, overtaken: bool = False) -> None:
        self._held.append(_Held(until, link, message, overtaken=overtaken))
        self.next_release = min(self.next_release, until)

    def _release(self, held: "list[_Held]") -> list[Received]:
        if held:
            self._held = [kept for kept in self._held if kept not in held]
            self.next_release = min((kept.until for kept in self._held), default=math.inf)
        # The sort is stable, so messages due at the same time keep their order.
        return [due.message for due in sorted(held, key=lambda due: due.until)]
