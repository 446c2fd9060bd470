"""The other machines of a run: the rendezvous, what their launchers send, and who has fallen silent.

Before the start, machine 0 is the meeting point. Afterwards the training does not need it: nodes exchange
with their neighbors alone. The launchers relay the reports of their nodes to machine 0, which writes the
summary and informs the others of restarted and late machines.

A launcher reports only on nodes of its own machine. Only machine 0 relays reports about others, and no
launcher accepts reports about its own nodes. About its own nodes a listed machine may report anything.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isfinite

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
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import (
    ClusterMessage,
    Contribution,
    Join,
    LauncherMessage,
    PartialDistance,
    PartialSum,
    RelayedReports,
    Start,
    VectorPiece,
)
from decentnode.mapping.base import Mapping

RELAY_INTERVAL = 1.0
"""Seconds between two relays, with the progress of the nodes; an empty one shows that a launcher runs."""
IDENTITY = "identity"
RANGE = "range"
"""Why a report is refused: it is about another machine's nodes, or about values that the run does
not have.
"""
NOBODY = -1
"""Subject of reports for the local launcher only, such as `Ready`: its process ids receive signals."""


class SeveralMachines(Cluster):
    """The links of this launcher, through machine 0, and what is known of the other machines."""

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
        run_seconds: Callable[[], float],
        is_stopping: Callable[[], bool],
        why_not_taken_back: str,
    ) -> None:
        """`message_dispatcher` gets messages for other parts; `vector_bytes`: the size of a sum of vectors.

        `run_seconds`: seconds since the start of the run; `why_not_taken_back`: why lost nodes cannot rejoin.
        """
        super().__init__(membership)
        self._machine = machine
        self._mapping = mapping
        self._machine_of = [*map(mapping.machine_of, membership.members)]
        self._carriers = [process.machine for process in processes]
        self._rounds = rounds
        self._vector_bytes = vector_bytes
        self._event_log = event_log
        self._report_dispatcher, self._message_dispatcher = report_dispatcher, message_dispatcher
        self._unsent: list[Report] = []
        """Reports of this machine that machine 0 does not have."""
        self._advanced: set[int] = set()
        """Ranks of this machine that have done a round since the last relay."""
        self._last_relay = 0.0
        self._refused_reports: Counter[str] = Counter()
        self._is_reported: set[int] = set()
        """Machines whose refused reports were logged."""
        self._rendezvous = Rendezvous(mapping, machine, join, credentials, failures)
        self._vector_sender = VectorSender(machine, vector_bytes, self._rendezvous.send)
        self._late_join = LateJoin(
            machine=machine,
            mapping=mapping,
            processes=processes,
            membership=membership,
            rendezvous=self._rendezvous,
            run_seconds=run_seconds,
            is_stopping=is_stopping,
            why_not_taken_back=why_not_taken_back,
        )
        message_dispatcher.register(RelayedReports, self._dispatch_reports)
        message_dispatcher.register(Join, self._answer_join)

    # The start, and the end.

    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        start = self._rendezvous.meet(handshakes, deadline, is_stopped)
        self._log_differences()
        return start

    def _answer_join(self, join: Join) -> None:
        for report in self._late_join.answer(join):
            self._report_dispatcher.dispatch(report)
        self._log_differences()

    def _log_differences(self) -> None:
        """Logs which machines run other code than this one, and may."""
        while self._rendezvous.news:
            self._event_log.log("code", self._rendezvous.news.pop(0))

    def conclude(self) -> None:
        # The reports of its nodes' ends may have been lost with a broken connection.
        self._relay(self.membership.last_words() if self._machine else ())

    def part(self, error: BaseException) -> None:
        self._rendezvous.part(refusal_for(error))

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
        silent = [self._last_received[m] + Timeouts.machine_silent for m in self._listening]
        return max(0.0, min([self._last_relay + RELAY_INTERVAL, *silent]) - now)

    def exchange(self, now: float) -> None:
        if self._unsent or now - self._last_relay >= RELAY_INTERVAL:
            self._last_relay = now
            self._relay()
        messages = self._rendezvous.receive()
        self._take_back(messages)
        # Checked before use: another launcher may be faulty or of another run.
        messages = list(filter(self._admits, messages))
        for message in self._vector_sender.exchange(messages, self._listening):
            self._message_dispatcher.dispatch(message)
        # After the messages: a machine that has just reported is not silent.
        self._lose_silent(now)

    def send(self, message: LauncherMessage, to: int | None = None) -> int:
        return self._rendezvous.send(message, to)

    def relay(self, report: Report) -> None:
        # Machine 0 keeps its reports: it writes the summary.
        if self._machine:
            self._unsent.append(report)

    def relay_progress(self, ranks: Iterable[int]) -> None:
        if self._machine:
            self._advanced.update(ranks)

    def _relay(self, last_words: Iterable[Report] = ()) -> None:
        active = sorted(self._advanced & self.membership.active)
        progress = [self.membership.progress_of(rank) for rank in active]
        # In this order: machine 0 must not find a round done before what was reported of earlier ones.
        self._rendezvous.send(RelayedReports(self._machine, [*self._unsent, *progress, *last_words]))
        self._unsent = []
        self._advanced.clear()

    def contribute(self, contribution: Contribution) -> None:
        self._vector_sender.contributions.put(contribution)

    def flush_contributions(self) -> None:
        self._vector_sender.exchange((), self._listening)

    # Who is there.

    @property
    def _last_received(self) -> dict[int, float]:
        return self._rendezvous.last_received

    def present(self) -> set[int]:
        return {self._machine, *(self._machine_of[rank] for rank in self.membership.active)}

    @property
    def _listening(self) -> list[int]:
        """Machines that this launcher sends to: messages to a silent one would queue, a vector each.

        Includes machines whose nodes have finished: they still observe the last round.
        """
        now, counterparts = time.monotonic(), [0] if self._machine else [*self._last_received][1:]
        return [m for m in counterparts if now - self._last_received[m] <= Timeouts.machine_silent]

    @property
    def observing(self) -> set[int]:
        # Their launcher reports, and not all of their nodes are lost.
        kept = self.membership.members.keys() - self.membership.lost
        return {self._machine_of[rank] for rank in kept}.intersection(self._listening) | {self._machine}

    @property
    def lost(self) -> set[int]:
        return self.membership.lost - self.membership.silent(Timeouts.machine_lost)

    def is_left_alone(self, seconds: float = Timeouts.machine_silent) -> bool:
        return self._machine != 0 and time.monotonic() - self._last_received[0] > seconds

    def _lose_silent(self, now: float) -> None:
        """Marks the nodes of silent machines as lost, on machine 0."""
        for machine in sorted(self.present() - {0}) if self._machine == 0 else ():
            if now - self._last_received[machine] > Timeouts.machine_silent:
                why = f"no message from machine {machine} for {Timeouts.machine_silent:.0f} s"
                for rank in sorted(self.membership.active.intersection(self._mapping.ranks_of(machine))):
                    # Recorded separately: these nodes count again if their launcher reports again.
                    self.membership.members[rank].silent_since = now
                    self._report_dispatcher.dispatch(Failed(rank, why))

    def _take_back(self, messages: Iterable[LauncherMessage]) -> None:
        """Counts nodes of a machine that reports again: only their launcher was silent.

        A launcher that only asks to join has none of these nodes: it is a new process.
        """
        speaking = {getattr(message, "machine", 0) for message in messages if not isinstance(message, Join)}
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
        # Machine 0 relays reports about all nodes but those here; another machine those about its own.
        is_responsible = carriers[about] != self._machine if machine == 0 else carriers[about] == machine
        if not is_responsible:
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
