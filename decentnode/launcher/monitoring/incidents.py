"""What happens to nodes outside of their rounds: losses, dropped edges, refusals, faults, as events."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from decentnode.communication.launcher_link import reports
from decentnode.communication.launcher_link.reports import Report, RoundReport
from decentnode.core.streams import log_of
from decentnode.core.text import how_it_ended
from decentnode.formats.metrics import LOSS
from decentnode.formats.reader import Event
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable


@dataclass(kw_only=True)
class Incidents:
    """Records each report that is an event, and the losses of nodes in the membership table."""

    membership: MembershipTable
    event_log: EventLog
    machine_of: Callable[[int], int]
    logs: Mapping[int, Path]
    """By rank the log of its process."""
    show_log: Callable[[Path], object]
    """Shows the end of a lost node's log."""
    is_stopping: Callable[[], bool]
    """Whether the run was asked to stop: what ends because of that is recorded, and not shown."""
    all_finite: bool = True
    """Whether all test losses so far are finite."""
    unmet: dict[tuple[int, int], str] = field(default_factory=dict)
    """By (rank, peer) why there never was a link between their processes."""
    health_events: dict[str, Event] = field(default_factory=dict)
    """By its text each event about something beside the nodes that results depend on, in their order."""

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for all reports that are events."""
        dispatcher.register(
            reports.Failed, lambda r: self.lose([r.rank], r.error, r.out_of_memory, r.is_bad_input)
        )
        dispatcher.register(reports.Exited, self._note_exit)
        dispatcher.register(reports.PeerMissing, self._note_missing_peer)
        dispatcher.register(reports.PeerBack, self._note_peer_back)
        dispatcher.register(reports.Rejected, self._note_refusal)
        dispatcher.register(reports.FaultInjected, self._note_fault)
        dispatcher.register(reports.Evaluated, self._note_evaluation)
        dispatcher.register(reports.Stuck, self._note_stuck)
        dispatcher.register(reports.Degraded, self._note_degraded)
        dispatcher.register(reports.Notice, lambda r: self.event_log.log("communication", r.text, r.rank))
        dispatcher.register(
            reports.DiskProblem, lambda r: self.event_log.disk_problem(r.rank, r.text, r.lost)
        )

    def lose(
        self, ranks: Iterable[int], error: str, out_of_memory: bool = False, is_bad_input: bool = False
    ) -> None:
        """Marks nodes as lost unless they have ended, with the first reason, and shows each."""
        shown = not self.is_stopping()
        for rank in ranks:
            if not self.membership.lose(rank, error, out_of_memory, is_bad_input):
                continue
            why = error.removeprefix(f"rank {rank}, ")
            if (beat := self.membership.heartbeats.get(rank)) is not None:
                # A local node's heartbeat is ahead of its reports.
                round, text = beat.read().round, f"rank {rank} is lost: {why}{log_of(self.logs[rank])}"
            else:
                round = self.membership.members[rank].round
                text = f"rank {rank} on machine {self.machine_of(rank)} is lost: {why}"
            self.event_log.log("node_lost", text, rank, max(round, 0), shown=shown)
            if shown:
                self.show_log(self.logs[rank])

    def _note_exit(self, report: reports.Exited) -> None:
        self.lose(self.membership.home.get(report.process, ()), how_it_ended(report.status))

    def _note_missing_peer(self, report: reports.PeerMissing) -> None:
        if report.is_unmet:
            self.unmet[report.rank, report.peer] = report.reason
        text = f"continuing without rank {report.peer}: {report.reason}"
        self._log("peer_lost", report, text, peer=report.peer, shown=not self.is_stopping())

    def _note_peer_back(self, report: reports.PeerBack) -> None:
        self.unmet.pop((report.rank, report.peer), None)
        self._log("peer_back", report, f"exchanges with rank {report.peer} again", peer=report.peer)

    def _note_refusal(self, report: reports.Rejected) -> None:
        text = f"discarded the payload of rank {report.peer}: {report.reason}"
        self._log("refused", report, text, peer=report.peer)

    def _note_fault(self, report: reports.FaultInjected) -> None:
        text = f"{report.fault}: {report.what}"
        self.event_log.log("injected", text, report.rank, report.round, shown=False)

    def _note_evaluation(self, report: reports.Evaluated) -> None:
        # One line, because usually all nodes follow.
        if report.metrics.get(LOSS.name, 0.0) is None and self.all_finite:
            self.all_finite = False
            self._log("not_finite", report, "the test loss is not finite")

    def _note_stuck(self, report: reports.Stuck) -> None:
        self._log("stuck", report, f"no progress for {report.seconds:.0f} s ({report.doing})")

    def _note_degraded(self, report: reports.Degraded) -> None:
        # Once: each host process says that a service which all of them ask is lost.
        if report.text not in self.health_events:
            round = report.round if report.round >= 0 else None
            self.health_events[report.text] = self.event_log.log(report.part, report.text, report.rank, round)

    def _log(
        self, kind: str, report: RoundReport, text: str, peer: int | None = None, shown: bool = True
    ) -> None:
        text = f"rank {report.rank}, round {report.round + 1}: {text}"
        self.event_log.log(kind, text, report.rank, report.round, peer=peer, shown=shown)
