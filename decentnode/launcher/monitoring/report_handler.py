"""What each report of a node means for the run; nowhere else is a report matched."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from decentnode.communication.launcher_link import reports
from decentnode.communication.launcher_link.reports import Report, RoundReport
from decentnode.core.text import how_it_ended
from decentnode.launcher.cluster.graceful_stop import GracefulStop
from decentnode.launcher.cluster.late_join import LateJoin
from decentnode.launcher.monitoring.monitor import RunMonitor
from decentnode.launcher.observer.evaluators import EvaluatorPool
from decentnode.launcher.observer.observer import ModelObserver
from decentnode.launcher.recovery.run_state import RunState
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.state.evaluation_log import EvaluationLog
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.results.metrics import LOSS

SIGNS_OF_LIFE = (
    reports.RoundProgress, reports.Published, reports.PeerMissing, reports.PeerBack, reports.Rejected,
    reports.FaultInjected, reports.Rejoined, reports.Checkpointed, reports.NotCheckpointed, reports.Finished,
    reports.Stopped,
)  # fmt: skip
"""A node that sends one of these takes part."""


@dataclass
class ReportHandler:
    """Gives each report to the table, the event log, and the parts of the launcher that need it."""

    machine_of: Callable[[int], int]
    membership: MembershipTable
    event_log: EventLog
    monitor: RunMonitor
    run_state: RunState
    late_join: LateJoin
    graceful_stop: GracefulStop
    evaluations: EvaluationLog
    evaluators: EvaluatorPool
    console: LiveConsole
    observer: ModelObserver | None = None
    """The observer of this machine; None before the first round."""
    all_finite: bool = True
    """Whether all test losses so far are finite."""
    unsent: list[Report] = field(default_factory=list)
    """Reports of this machine that machine 0 does not have."""

    def take_own(self, own_reports: Iterable[Report]) -> None:
        """Processes reports of this machine, with the figures of its memory where that ran out."""
        for report in chain.from_iterable(map(self.monitor.memory.explain, own_reports)):
            self.take(report)
            # Process ids concern this launcher only.
            if not isinstance(report, reports.Ready):
                self.unsent.append(report)

    def take(self, report: Report) -> None:
        """Processes a report of any machine."""
        table = self.membership
        if isinstance(report, SIGNS_OF_LIFE):
            table.members[report.rank].last_report = time.monotonic()
        match report:
            case reports.Ready():
                table.pids[report.process] = report.pid
            case reports.RoundProgress():
                self._progress(report, report.loss)
                table.members[report.rank].epsilon = report.epsilon
            case reports.Published():
                self._progress(report, report.train_loss)
                self._publish(report)
            case reports.Evaluated():
                self._evaluate(report)
            case reports.PeerMissing():
                table.missing_edges.setdefault((report.rank, report.peer), report)
                text = f"continuing without rank {report.peer}: {report.reason}"
                self._log("peer_lost", report, text, shown=self.graceful_stop.signal is None)
            case reports.PeerBack():
                table.missing_edges.pop((report.rank, report.peer), None)
                self._log("peer_back", report, f"exchanges with rank {report.peer} again")
            case reports.Rejected():
                self._log("refused", report, f"discarded the payload of rank {report.peer}: {report.reason}")
            case reports.FaultInjected():
                text = f"{report.fault}: {report.what}"
                self.event_log.log("injected", text, report.rank, report.round, shown=False)
            case reports.Restarted():
                self._restart(report)
            case reports.Rejoined():
                self._return_to(report.rank, report.round)
            case reports.Checkpointed():
                self.run_state.retention.note(report.rank, report.round)
            case reports.NotCheckpointed():
                why = f"no checkpoint: {report.reason}"
                self.run_state.retention.problem = f"rank {report.rank}, round {report.round + 1}: {why}"
            case reports.Finished():
                table.members[report.rank].finish(report)
            case reports.Stopped():
                member = table.members[report.rank]
                member.state, member.round = MemberState.STOPPED, report.rounds - 1
            case reports.Failed():
                self.mark_lost([report.rank], report.error, report.out_of_memory)
            case reports.Exited():
                table.ended.add(report.process)
                self.mark_lost(table.home.get(report.process, ()), how_it_ended(report.status))
            case reports.Notice():
                self.event_log.log("communication", report.text, report.rank)
            case reports.DiskProblem():
                self.event_log.disk_problem(report.rank, report.text, report.lost)
            case reports.Waiting():
                return self.monitor.stragglers.take(report, time.monotonic())
            case reports.Stuck():
                return self._log("stuck", report, f"no progress for {report.seconds:.0f} s ({report.doing})")
        # The last two come from a watchdog, not from a node, and are no progress.
        self.monitor.watchdog.check_soon()

    def mark_lost(self, ranks: Iterable[int], error: str, out_of_memory: bool = False) -> None:
        """Marks nodes as lost unless they have ended, with the first reason; shows each, and expects no more
        of its evaluations.
        """
        # What ends because it was asked to is recorded alone.
        logs, shown = self.monitor.logs, self.graceful_stop.signal is None
        for rank in ranks:
            member, beat = self.membership.members[rank], self.membership.heartbeats.get(rank)
            if not member.is_active:
                continue
            member.state, member.error, member.out_of_memory = MemberState.LOST, error, out_of_memory
            why = error.removeprefix(f"rank {rank}, ")
            if beat is not None:
                # A local node's heartbeat is ahead of its reports.
                round, text = beat.read().round, f"rank {rank} is lost: {why}; its log: {logs[rank]}"
            else:
                round, text = member.round, f"rank {rank} on machine {self.machine_of(rank)} is lost: {why}"
                # Evaluators here answer for local nodes that are lost.
                self.evaluations.forget([rank])
            self.event_log.log("node_lost", text, rank, max(round, 0), shown=shown)
            if shown:
                self.console.show_log(logs[rank])

    def _progress(self, report: reports.RoundProgress | reports.Published, loss: float | None) -> None:
        member = self.membership.members[report.rank]
        # Relayed reports may arrive late, so progress never decreases.
        member.round, member.loss = max(member.round, report.round), loss
        member.bytes_sent = max(member.bytes_sent, report.bytes_sent)
        self.monitor.stragglers.end(report.rank, report.round, time.monotonic())

    def _publish(self, report: reports.Published) -> None:
        self.evaluations.add(report)
        if report.rank in self.membership.local and self.observer is not None:
            self.observer.take(report)
            if report.evaluation == "background":
                self.evaluators.submit(report)

    def _evaluate(self, report: reports.Evaluated) -> None:
        self.membership.members[report.rank].note_test(report.metrics, report.round)
        self.evaluations.add(report)
        # One line, because usually all nodes follow.
        if report.metrics.get(LOSS.name, 0.0) is None and self.all_finite:
            self.all_finite = False
            self._log("not_finite", report, "the test loss is not finite")

    def _restart(self, report: reports.Restarted) -> None:
        for rank, text in self.late_join.note(report).items():
            self.event_log.log("restarted", text, rank)
        self.membership.restart(report.process)
        self.monitor.watchdog.restart(report.process)

    def _return_to(self, rank: int, round: int) -> None:
        # The exception: a rejoining node discards later rounds.
        self.membership.members[rank].round = round - 1
        # The node has deleted these checkpoints, so no resume may count on them.
        self.run_state.retention.undo(rank, round)
        if rank in self.membership.local and (problem := self.evaluations.discard_from(round)):
            self.event_log.log("checkpoint", problem)

    def _log(self, kind: str, report: RoundReport, text: str, shown: bool = True) -> None:
        text, peer = f"rank {report.rank}, round {report.round + 1}: {text}", getattr(report, "peer", None)
        self.event_log.log(kind, text, report.rank, report.round, peer, shown)
