"""What each report of a node means for the run; nowhere else is a report matched."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain

from decentnode.communication.launcher_link import reports
from decentnode.communication.launcher_link.reports import OfRound, Report
from decentnode.core.text import how_it_ended
from decentnode.launcher.cluster.late_join import LateJoin
from decentnode.launcher.monitoring.event_log import EventLog
from decentnode.launcher.monitoring.membership import MembershipTable
from decentnode.launcher.monitoring.monitor import RunMonitor
from decentnode.launcher.observer.evaluators import EvaluatorPool
from decentnode.launcher.observer.observer import ModelObserver
from decentnode.launcher.recovery.run_state import RunState
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.summary import EvaluationLog
from decentnode.results.metrics import LOSS

Tell = Callable[[str, str, int, int, int | None], object]


@dataclass
class ReportHandler:
    """Gives each report to the table, the event log, and the parts of the launcher that need it."""

    local: Collection[int]
    """The ranks of this machine."""
    membership: MembershipTable
    event_log: EventLog
    monitor: RunMonitor
    run_state: RunState
    late_join: LateJoin
    evaluations: EvaluationLog
    evaluators: EvaluatorPool
    screen: LiveConsole
    observer: ModelObserver | None = None
    """None before the first round."""
    all_finite: bool = True
    """Whether all test losses so far are finite."""
    unsent: list[Report] = field(default_factory=list)
    """Reports of this machine that machine 0 does not have."""

    def take_own(self, found: Iterable[Report]) -> None:
        """Processes reports of this machine, with the figures of its memory where that ran out."""
        for report in chain.from_iterable(map(self.monitor.memory.explain, found)):
            self.take(report)
            # Process ids concern this launcher only.
            if not isinstance(report, reports.Ready):
                self.unsent.append(report)

    def take(self, report: Report) -> None:
        """Processes a report of any machine."""
        members = self.membership
        match report:
            case reports.Ready():
                self.monitor.pids[report.process] = report.pid
            case reports.RoundProgress():
                self._progress(report, report.loss)
                members.members[report.rank].epsilon = report.epsilon
            case reports.Published():
                self._progress(report, report.train_loss)
                self._publish(report)
            case reports.Evaluated():
                self._evaluate(report)
            case reports.PeerMissing():
                members.miss(report)
                text = f"continuing without rank {report.peer}: {report.reason}"
                self._tell("peer_lost", report, text, self.event_log.say_unless_stopping)
            case reports.PeerBack():
                members.regain(report.rank, report.peer)
                self._tell("peer_back", report, f"exchanges with rank {report.peer} again")
            case reports.Rejected():
                members.heard(report.rank)
                self._tell("refused", report, f"discarded the payload of rank {report.peer}: {report.reason}")
            case reports.FaultInjected():
                members.heard(report.rank)
                text = f"{report.fault}: {report.what}"
                self.event_log.record("injected", text, report.rank, report.round)
            case reports.Restarted():
                self._restart(report)
            case reports.Rejoined():
                self._go_back(report.rank, report.round)
            case reports.Checkpointed():
                members.heard(report.rank)
                self.run_state.retention.note(report.rank, report.round)
            case reports.NotCheckpointed():
                members.heard(report.rank)
                self.run_state.retention.problem = f"{_where(report)}: no checkpoint: {report.reason}"
            case reports.Finished():
                members.heard(report.rank).finish(report)
            case reports.Stopped():
                members.heard(report.rank).stop(report.rounds)
            case reports.Failed():
                self.lose([report.rank], report.error, report.out_of_memory)
            case reports.Exited():
                self.lose(members.exit(report.process), how_it_ended(report.status))
            case reports.Notice():
                self.event_log.say("communication", report.text, report.rank)
            case reports.DiskProblem():
                self.event_log.disk_problem(report.rank, report.text, report.lost)
            case reports.Waiting():
                return self.monitor.waits.take(report, time.monotonic())
            case reports.Stuck():
                return self._tell("stuck", report, f"no progress for {report.seconds:.0f} s ({report.doing})")
        # The last two come from a watchdog, not from a node, and are no progress.
        self.monitor.watchdog.look_soon()

    def lose(self, ranks: Iterable[int], error: str, out_of_memory: bool = False) -> None:
        """Marks nodes as lost, with the first reason; shows each, and expects no more of its evaluations."""
        lost = self.membership.lose(ranks, error, out_of_memory)
        # Evaluators here answer for local nodes that are lost.
        self.evaluations.forget(set(lost) - set(self.local))
        for rank in lost:
            self.monitor.tell_loss(rank)
            if not self.event_log.is_stopping():
                self.screen.show_log(self.monitor.log(rank))

    def _progress(self, report: reports.RoundProgress | reports.Published, loss: float | None) -> None:
        self.membership.heard(report.rank).progress(report.round, report.bytes_sent, loss)
        self.monitor.waits.end(report.rank, report.round, time.monotonic())

    def _publish(self, report: reports.Published) -> None:
        self.evaluations.add(report)
        if report.rank in self.local and self.observer is not None:
            self.run_state.keep_rows()
            self.observer.take(report)
            if report.evaluation == "background":
                self.evaluators.submit(report)

    def _evaluate(self, report: reports.Evaluated) -> None:
        # Not heard from: an evaluator may have sent it, long after the node.
        self.membership.members[report.rank].note_test(report.metrics, report.round)
        self.evaluations.add(report)
        # One line, because usually all nodes follow.
        if report.metrics.get(LOSS.name, 0.0) is None and self.all_finite:
            self.all_finite = False
            self._tell("not_finite", report, "the test loss is not finite")

    def _restart(self, report: reports.Restarted) -> None:
        for rank, text in self.late_join.note(report).items():
            self.event_log.say("restarted", text, rank)
        self.membership.restart(report.process)
        self.monitor.watchdog.begin_anew(report.process)

    def _go_back(self, rank: int, round: int) -> None:
        # The exception: a rejoining node discards later rounds.
        self.membership.heard(rank).round = round - 1
        if problem := self.run_state.go_back(rank, round):
            self.event_log.say("checkpoint", problem)

    def _tell(self, kind: str, report: OfRound, text: str, tell: Tell | None = None) -> None:
        peer = getattr(report, "peer", None)
        (tell or self.event_log.say)(kind, f"{_where(report)}: {text}", report.rank, report.round, peer)


def _where(report: OfRound) -> str:
    return f"rank {report.rank}, round {report.round + 1}"
