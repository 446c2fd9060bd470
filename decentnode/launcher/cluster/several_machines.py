"""The other machines of a run: the rendezvous, what their launchers send, and who has fallen silent.

Each launcher sends the reports of its nodes to all others, so each knows the whole run. One of them, the
coordinator, decides for all: it combines evaluations and means, lets checkpoints be deleted, names the last
round of a stop, and admits machines that come late. It is the machine that was here first of those that are
heard: machine 0 at the start, the next one when that falls silent. A machine that comes late is the last in
this order, so a machine that returns takes nothing over.

A launcher reports only on nodes of its own machine; about these a listed machine may report anything.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from math import inf, isfinite

from msgspec.structs import astuple

from decentnode.communication.base import HostProcess
from decentnode.communication.launcher_link.reports import Exited, Failed, Report, Restarted
from decentnode.communication.security.curve import Credentials
from decentnode.config.settings import FailureSettings
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.base import Cluster
from decentnode.launcher.cluster.late_join import LateJoin
from decentnode.launcher.cluster.rendezvous import Rendezvous, refusal_for
from decentnode.launcher.cluster.vector_sender import VectorSender
from decentnode.launcher.processes.fork_server import INCARNATIONS
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import (
    Arrived,
    CheckpointsCommitted,
    ClusterMessage,
    Contribution,
    EvaluationRows,
    Join,
    LauncherMessage,
    PartialDistance,
    PartialSum,
    Pause,
    PlaceOffer,
    PlaceRequest,
    Presence,
    RelayedReports,
    Start,
    VectorPiece,
)
from decentnode.mapping.base import Mapping
from decentnode.node.checkpoint.node_checkpoints import RunIdentity

RELAY_INTERVAL = 1.0
"""Seconds between two relays, with the progress of the nodes; an empty one shows that a launcher runs."""
GATHER_INTERVAL = 0.05
"""Seconds between two relays of reports."""
IDENTITY = "identity"
RANGE = "range"
"""Why a report is refused: it is about another machine's nodes, or about values that the run does
not have.
"""
NOBODY = -1
"""Subject of reports for the local launcher only, such as `Ready`: its process ids receive signals."""


class SeveralMachines(Cluster):
    """The links of this launcher, and what is known of the other machines."""

    def __init__(
        self,
        *,
        machine: int,
        mapping: Mapping,
        processes: Sequence[HostProcess],
        membership: MembershipTable,
        event_log: EventLog,
        report_dispatcher: Dispatcher[Report],
        message_dispatcher: Dispatcher[ClusterMessage],
        join: Join,
        credentials: Credentials | None,
        failures: FailureSettings,
        rounds: int,
        vector_bytes: int,
        identity: RunIdentity,
        is_stopping: Callable[[], bool],
        why_not_taken_back: str,
    ) -> None:
        """`message_dispatcher` gets messages for other parts; `vector_bytes`: the size of a sum of vectors.

        `why_not_taken_back`: why lost nodes cannot rejoin.
        """
        super().__init__(membership)
        self._machine = machine
        self._mapping = mapping
        self._machine_of = [*map(mapping.machine_of, membership.members)]
        self._carriers = [process.machine for process in processes]
        self._presences: dict[int, Presence] = {}
        """The machines that have come, the first one first."""
        self._silent = failures.timeouts.launcher_silent
        """Seconds without a message from a machine until it is silent."""
        self._rounds = rounds
        self._vector_bytes = vector_bytes
        self._event_log = event_log
        self._report_dispatcher, self._message_dispatcher = report_dispatcher, message_dispatcher
        self._identity, self._address = identity, join.address
        self._greetings: list[LauncherMessage] = []
        """What others have said before the nodes of this machine, which comes late, begin."""
        self._unsent: list[Report] = []
        """Reports of this machine that the others do not have."""
        self._advanced: set[int] = set()
        """Ranks of this machine that have done a round since the last relay."""
        self._last_relay = 0.0
        self._refused_reports: Counter[str] = Counter()
        self._is_reported: set[int] = set()
        """Machines whose refused reports were logged."""
        self._rendezvous = Rendezvous(mapping, machine, join, credentials, failures, self._offer)
        self._vector_sender = VectorSender(machine, vector_bytes, self._rendezvous.send)
        self._late_join = LateJoin(
            machine=machine,
            mapping=mapping,
            membership=membership,
            rendezvous=self._rendezvous,
            failures=failures,
            run_seconds=lambda: identity.seconds,
            is_stopping=is_stopping,
            why_not_taken_back=why_not_taken_back,
        )
        message_dispatcher.register(RelayedReports, self._dispatch_reports)
        message_dispatcher.register(Join, self._answer_join)
        message_dispatcher.register(Arrived, self._welcome)

    # The start, and the end.

    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        start = self._rendezvous.meet(handshakes, deadline, is_stopped)
        self._presences = _in_order(start.presences)
        for machine, address in self._rendezvous.addresses.items():
            self._identity.move(self._mapping.ranks_of(machine), address)
        if start.late:
            # Machines that were here before the one that answered were not heard there.
            for machine in takewhile(lambda first: first != start.machine, self._presences):
                self._last_received[machine] = -inf
            self._arrive(start, is_stopped)
        self._log_differences()
        return start

    def _arrive(self, start: Start, is_stopped: Callable[[], bool]) -> None:
        """Tells all others that nodes of this machine will begin, and waits until they expect them."""
        arrived = Arrived(self._machine, start.presences[self._machine], self._address)
        self._rendezvous.send(arrived, *self._others)
        limit = time.monotonic() + Timeouts.rejoin_answer
        awaited = start.presences.keys() - {self._machine, *start.absent}
        while awaited and time.monotonic() < limit and not is_stopped():
            greetings = self._rendezvous.receive(timeout=RELAY_INTERVAL / 10)
            awaited -= {getattr(message, "machine", 0) for message in greetings}
            self._greetings += greetings

    @property
    def addresses(self) -> dict[int, str]:
        return self._rendezvous.addresses

    def _offer(self, request: PlaceRequest) -> PlaceOffer:
        """Answers a machine that looks for its place, or names the machine that does."""
        if not self.coordinates:
            coordinator = self.coordinator
            address = self._rendezvous.addresses.get(coordinator) or self._mapping.address(coordinator)
            return PlaceOffer(addresses={coordinator: address}, ask=coordinator)
        now, lost = time.monotonic(), self.membership.lost
        # A machine that returns to its own place need not wait until that counts as lost.
        free = [
            m
            for m in self._others
            if lost.issuperset(self._mapping.ranks_of(m))
            or (m == request.wanted and now - self._last_received[m] > Timeouts.machine_twin)
        ]
        return self._rendezvous.place_among(request, free)

    def _answer_join(self, join: Join) -> None:
        if self._rendezvous.is_newcomer(join.machine) and self._first_heard(join.machine) == self._machine:
            self._late_join.answer(join, self._presences)
            self._log_differences()

    def _welcome(self, arrived: Arrived) -> None:
        """Counts on the nodes of a machine that has come late, and sends it the state of those here."""
        machine, late = arrived.machine, arrived.presence.joins
        if late <= self._presences.get(machine, Presence()).joins:
            return
        self._presences = _in_order(self._presences | {machine: arrived.presence})
        self._rendezvous.move(machine, arrived.address)
        if arrived.address:
            self._identity.move(self._mapping.ranks_of(machine), arrived.address)
        for rank in sorted(self.membership.active.intersection(self._mapping.ranks_of(machine))):
            self._report_dispatcher.dispatch(Failed(rank, "its machine was started again"))
        for position, carrier in enumerate(self._carriers):
            if carrier == machine:
                self._report_dispatcher.dispatch(Restarted(position, None, INCARNATIONS * late))
        self._rendezvous.send(RelayedReports(self._machine, self.membership.standing()), machine)

    def _log_differences(self) -> None:
        """Logs which machines run other code than this one, and may."""
        while self._rendezvous.conditions.news:
            self._event_log.log("code", self._rendezvous.conditions.news.pop(0))

    def conclude(self) -> None:
        # The reports of its nodes' ends may have been lost with a broken connection.
        self._relay(self.membership.standing())

    def announce_end(self, error: BaseException) -> None:
        self._rendezvous.announce_end(refusal_for(error))

    def close(self) -> None:
        self._rendezvous.close()

    # Messages.

    @property
    def descriptors(self) -> Sequence[int]:
        return self._rendezvous.descriptors

    @property
    def has_messages(self) -> bool:
        return self._rendezvous.has_messages

    @property
    def pause(self) -> float:
        now = time.monotonic()
        # Limits in the past are left out: they would make this pause 0 again and again.
        silent = [self._last_received[m] + self._silent for m in self._heard]
        return max(0.0, min([self._next_relay, *silent]) - now)

    @property
    def _next_relay(self) -> float:
        # Reports of many nodes go together.
        return self._last_relay + (GATHER_INTERVAL if self._unsent else RELAY_INTERVAL)

    def exchange(self, now: float) -> None:
        if now >= self._next_relay:
            self._last_relay = now
            self._relay()
        messages, self._greetings = [*self._greetings, *self._rendezvous.receive()], []
        self._take_back(messages)
        # Checked before use: another launcher may be faulty or of another run.
        messages = list(filter(self._admits, messages))
        for message in self._vector_sender.exchange(messages, self._counterparts):
            self._message_dispatcher.dispatch(message)
        # After the messages: a machine that has just reported is not silent.
        self._lose_silent(now)

    def send(self, message: LauncherMessage, to: int | None = None) -> int:
        if to is not None:
            machines = [to]
        elif self.coordinates:
            machines = self._arrived
        else:
            machines = [self.coordinator]
        return self._rendezvous.send(message, *machines)

    def relay(self, report: Report) -> None:
        self._unsent.append(report)

    def relay_progress(self, ranks: Iterable[int]) -> None:
        self._advanced.update(ranks)

    def _relay(self, standing: Iterable[Report] = ()) -> None:
        active = sorted(self._advanced & self.membership.active)
        progress = [self.membership.progress_of(rank) for rank in active]
        # In this order: nobody must find a round done before what was reported of earlier ones.
        relayed = RelayedReports(self._machine, [*self._unsent, *progress, *standing])
        self._rendezvous.send(relayed, *self._arrived)
        self._unsent = []
        self._advanced.clear()

    def contribute(self, contribution: Contribution) -> None:
        self._vector_sender.contributions.put(contribution)

    def flush_contributions(self) -> None:
        self._vector_sender.exchange((), self._counterparts)

    # Who is there.

    @property
    def _last_received(self) -> dict[int, float]:
        return self._rendezvous.last_received

    def present(self) -> set[int]:
        return {self._machine, *(self._machine_of[rank] for rank in self.membership.active)}

    @property
    def _others(self) -> list[int]:
        return [machine for machine in self._rendezvous.machines if machine != self._machine]

    @property
    def _arrived(self) -> list[int]:
        """Other machines that have come, also silent ones, which may be suspended."""
        return [machine for machine in self._presences if machine != self._machine]

    def _is_heard(self, machine: int, now: float) -> bool:
        return now - self._last_received[machine] <= self._silent

    @property
    def _heard(self) -> list[int]:
        """Other machines that are heard; those whose nodes have finished observe the last round, too."""
        now = time.monotonic()
        return [machine for machine in sorted(self._arrived) if self._is_heard(machine, now)]

    def _first_heard(self, left_out: int = NOBODY, share: float = 1.0) -> int:
        """Returns the machine that was here first of those that are heard, without one of them.

        `share`: heard within this share of the time after which a machine is silent.
        """
        now, within = time.monotonic(), share * self._silent
        return next(
            machine
            for machine in self._presences
            if machine != left_out
            and (machine == self._machine or now - self._last_received[machine] <= within)
        )

    @property
    def coordinator(self) -> int:
        return self._first_heard()

    @property
    def coordinates(self) -> bool:
        return self.coordinator == self._machine

    def _may_decide(self, machine: int) -> bool:
        """Whether a machine coordinates; it may have missed the one before it a moment earlier than here."""
        return machine in (self.coordinator, self._first_heard(share=0.5))

    @property
    def _counterparts(self) -> list[int]:
        """Machines that this launcher sends vectors: means, or what the mean needs."""
        return self._heard if self.coordinates else [self.coordinator]

    @property
    def observing(self) -> set[int]:
        # Their launcher reports, and not all of their nodes are lost.
        kept = self.membership.members.keys() - self.membership.lost
        return {self._machine_of[rank] for rank in kept}.intersection(self._heard) | {self._machine}

    @property
    def lost(self) -> set[int]:
        return self.membership.lost - self.membership.silent(Timeouts.machine_lost)

    def _lose_silent(self, now: float) -> None:
        """Marks the nodes of silent machines as lost."""
        for machine in sorted(self.present() - {self._machine}):
            if not self._is_heard(machine, now):
                why = f"no message from machine {machine} for {self._silent:g} s"
                for rank in sorted(self.membership.active.intersection(self._mapping.ranks_of(machine))):
                    # Recorded separately: these nodes count again if their launcher reports again.
                    self.membership.members[rank].silent_since = now
                    self._report_dispatcher.dispatch(Failed(rank, why))

    def _take_back(self, messages: Iterable[LauncherMessage]) -> None:
        """Counts nodes of a machine that reports again: only their launcher was silent.

        A launcher that only asks to join has none of these nodes: it is a new process.
        """
        speaking = {
            getattr(message, "machine", 0) for message in messages if not isinstance(message, Join | Arrived)
        }
        for machine in sorted(speaking - self.present()):
            silent = self.membership.silent().intersection(self._mapping.ranks_of(machine))
            for rank in silent:
                self.membership.count_as_running(rank)
            if silent:
                text = f"machine {machine} reconnected; its nodes are active again"
                self._event_log.log("machine_back", text)

    # What counts of what they send.

    @property
    def refused(self) -> Counter[str]:
        return self._rendezvous.refused + self._refused_reports

    def _admits(self, message: LauncherMessage) -> bool:
        """Whether a message fits this run; rounds or sizes that the run does not have are counted."""
        machine = getattr(message, "machine", 0)
        rounds = (getattr(message, name, None) for name in ("round", "last", "kept", "reached"))
        fits = isinstance(message, Start) or all(-1 <= r < self._rounds for r in rounds if r is not None)
        if isinstance(message, EvaluationRows):
            fits = all(0 <= row.round < self._rounds for row in message.rows)
        is_mean = isinstance(message, VectorPiece) and not message.count
        # A machine that does not hear the coordinator may decide for itself, and not for others.
        decides = is_mean or isinstance(message, CheckpointsCommitted | EvaluationRows)
        # Where this one is the first, and was suspended for a while, the others have stopped without it.
        decides = decides or (isinstance(message, Pause) and not self.coordinates)
        if decides and not self._may_decide(machine):
            return False
        if isinstance(message, PartialSum | PartialDistance | VectorPiece):
            fits = fits and message.round >= 0 and 0 <= message.count <= len(self._mapping.ranks_of(machine))
        if isinstance(message, PartialSum):
            fits = fits and not message.count and not message.content
        elif isinstance(message, VectorPiece):
            fits = fits and 0 <= message.start < message.start + len(message.content) <= self._vector_bytes
        if not fits:
            self._refuse(machine, RANGE)
        return fits

    def _dispatch_reports(self, relayed: RelayedReports) -> None:
        for report in relayed.reports:
            if reason := self._objection(report, relayed.machine):
                self._refuse(relayed.machine, reason)
            else:
                self._report_dispatcher.dispatch(report)

    def _objection(self, report: Report, machine: int) -> str:
        """Returns why a report from this machine is refused; an empty text if it counts."""
        # These name a process instead of a rank.
        if isinstance(report, Restarted | Exited):
            about, carriers = report.process, self._carriers
        else:
            about, carriers = getattr(report, "rank", NOBODY), self._machine_of
        if not 0 <= about < len(carriers):
            return IDENTITY
        if carriers[about] != machine:
            return IDENTITY
        peers = [*getattr(report, "peers", ()), getattr(report, "peer", 0)]
        is_known = all(peer in self.membership.members for peer in peers)
        is_due = -1 <= getattr(report, "round", 0) <= self._rounds
        is_possible = 0 <= getattr(report, "rounds", 0) <= self._rounds
        # A NaN in one report would spread into the means of the summary.
        values = [*astuple(report), *getattr(report, "metrics", {}).values()]
        is_finite = all(isfinite(number) for number in values if isinstance(number, float))
        return "" if is_known and is_due and is_possible and is_finite else RANGE

    def _refuse(self, machine: int, reason: str) -> None:
        self._refused_reports[reason] += 1
        # Shown once per machine, because a faulty launcher may send thousands.
        if machine not in self._is_reported:
            self._is_reported.add(machine)
            about = "nodes of other machines" if reason == IDENTITY else "what the run does not have"
            self._event_log.log("refused", f"ignored reports from machine {machine} about {about}")


def _in_order(presences: dict[int, Presence]) -> dict[int, Presence]:
    """Returns the machines in the order in which they came; of those from the start the lowest first."""
    return dict(sorted(presences.items(), key=lambda entry: (entry[1].order, entry[0])))
