"""Starts this machine's host processes, lets the machines meet, watches, and sums up."""

import fcntl
import os
import shutil
import signal
import time
from functools import partial
from typing import Any

from decentnode.communication.launcher_link.handshakes import HandshakeBoard
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import (
    Evaluated,
    Failed,
    Ready,
    Report,
    Reporter,
    ReportReader,
    Restarted,
)
from decentnode.communication.launcher_link.snapshots import SnapshotBuffers
from decentnode.communication.security.curve import prove_guard
from decentnode.config import loader as config
from decentnode.core.clock import seconds_since_process_start
from decentnode.core.process_setup import leave_behind, signals_that_stop
from decentnode.core.timeouts import Timeouts
from decentnode.core.version import __version__
from decentnode.errors import DecentnodeError, ExitCode, StartError
from decentnode.launcher import preflight
from decentnode.launcher.cluster.late_join import RESTART, LateJoin
from decentnode.launcher.cluster.messages import (
    CheckpointsCommitted,
    Join,
    MeanVector,
    PartialDistance,
    PartialSum,
    RelayedReports,
    VectorAck,
)
from decentnode.launcher.cluster.remote_machines import RemoteMachines
from decentnode.launcher.cluster.rendezvous import Rendezvous, StartQuorum
from decentnode.launcher.fork_server import ForkServer, end_hung, hold_signals, name_socket_directory
from decentnode.launcher.graceful_stop import GracefulStop, killed_in_words
from decentnode.launcher.monitoring.exit_monitor import ExitMonitor
from decentnode.launcher.monitoring.membership import MembershipTable, MemberState
from decentnode.launcher.monitoring.monitor import RunMonitor
from decentnode.launcher.observer.observer import ModelObserver
from decentnode.launcher.observer.vector_sender import VectorSender
from decentnode.launcher.recovery.resume import ResumePlan
from decentnode.launcher.recovery.run_state import RunState
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.final_lines import exit_code, headline
from decentnode.launcher.report.summary import EvaluationLog, Timing, make_run_directory, summarize
from decentnode.node.experiment import Experiment, average_model_test
from decentnode.node.host_process import ForkContext
from decentnode.results.plot_process import Pictures, make_figures

POLL_INTERVAL = 0.1
UNSEEN_END = "its process ended with the fork server"
PIPE_BYTES = 1 << 20
STOP_POLL_INTERVAL = 0.02


class Launcher:
    """One machine's part of a run, from the fork to the summary."""

    def __init__(
        self, experiment: Experiment, machine: int, screen: LiveConsole, past: ResumePlan | None = None
    ) -> None:
        """Makes the run directory, or takes that of a run that goes on; raises BadInput. Nothing runs yet."""
        self.experiment = experiment
        self.machine = machine
        self.screen = screen
        self._credentials = preflight.credentials(experiment.settings, machine)
        self.run_dir = past.run_dir if past else make_run_directory(experiment, machine)
        self._run_state = RunState(experiment, machine, self.run_dir, past)
        self.membership = MembershipTable(
            range(experiment.graph.num_nodes), {i: p.ranks for i, p in enumerate(experiment.processes)}
        )
        self.run_id = 0
        self._local = set(experiment.mapping.ranks_of(machine))
        self._known = self._local if machine else set(self.membership.members)
        """Ranks whose end this launcher learns of."""
        self._positions = [i for i, p in enumerate(experiment.processes) if p.machine == machine]
        self._snapshots = SnapshotBuffers(
            sorted(self._local), experiment.layout.numel, experiment.layout.dtype
        )
        self._introductions = HandshakeBoard(experiment.graph.num_nodes)
        self._heartbeats = HeartbeatBoard(sorted(self._local))
        self._pids: dict[int, int] = {}
        self._run_monitor = RunMonitor(
            experiment, machine, self.run_dir, self._heartbeats, self.membership, self._pids.get, screen.note
        )
        self.evaluations = EvaluationLog(
            self.run_dir / "evaluations.jsonl", warn=self._run_monitor.event_log.warn
        )
        own = {i: experiment.processes[i].ranks for i in self._positions}
        self._exit_monitor = ExitMonitor(self.membership, own, experiment.settings.failures.timeouts)
        digest = config.digest(experiment.settings, experiment.graph.graph)
        code = experiment.sources.hashes
        join = Join(machine, __version__, digest, experiment.dataset_digest, code)
        self._assembly = Rendezvous(
            experiment.mapping, machine, self._run_state.greeting(join), self._credentials,
            StartQuorum(experiment.mapping, experiment.settings.failures), experiment.layout.numel,
        )  # fmt: skip
        self._vector_sender = VectorSender(machine, self._assembly.send, self._assembly.cut)
        self._others = RemoteMachines(
            experiment, machine, self.membership, self._assembly.last_heard, self._run_monitor.event_log.say
        )
        self._stopping = GracefulStop(
            self._heartbeats, machine, self._others.present, self._assembly.send,
            experiment.settings.failures.stop_deadline,
        )  # fmt: skip
        self._late_join = LateJoin(
            experiment, machine, self.membership, self._assembly, self._run_state.lineage,
            lambda: self._signal is not None,
        )  # fmt: skip
        self._signals = 0
        self._unsent: list[Report] = []
        self._startup = self._wall = self._command = 0.0

    def run(self) -> ExitCode:
        """The whole run; returns the exit code. Whatever happens, nothing is left running."""
        self._fork()
        try:
            self._begin_together()
            while self._unresolved() and self._signal is None:
                self._watch(min(self._others.pause, self._exit_monitor.pause, self.screen.interval))
            if self._signal is not None:
                self._let_go()
            self._wall = time.monotonic() - self._began if self.run_id else 0.0
            self._complete_observations()
            summary = self._sum_up()
        except BaseException as error:
            self.screen.close()
            self._run_monitor.close(str(error) if isinstance(error, DecentnodeError) else "")
            raise
        finally:
            self._run_monitor.close()
            self.server.close()
            self._assembly.close()
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        code = self._exit_code()
        self.screen.ended(summary, self.run_dir, self._draw(), code)
        return code

    def _draw(self) -> Pictures:
        """Pictures of what was evaluated, unless somebody waits for the end."""
        wanted = self.experiment.settings.evaluation.figures and self.evaluations.rows
        return make_figures(self.run_dir) if wanted and self._signal is None else Pictures()

    # Before the first round.

    def _fork(self) -> None:
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._inflow = ReportReader(read)
        self._start_signal = os.eventfd(0, os.EFD_SEMAPHORE)
        self._socket_dir = name_socket_directory()
        threads = max(1, len(os.sched_getaffinity(0)) // len(self._local))
        fork_context = ForkContext(
            self.experiment, self._snapshots, self._introductions, self._heartbeats, self._run_state.lineage,
            Reporter(write, read), self._start_signal, self.run_dir, self._socket_dir, threads,
            self._credentials,
        )  # fmt: skip
        with hold_signals(*(heard := signals_that_stop())):
            self.server = ForkServer(fork_context, self._positions)
            for signum in heard:
                signal.signal(signum, lambda number, _: self._interrupt(signal.Signals(number)))
        os.close(write)
        self._run_monitor.open(self._socket_dir)
        self._run_monitor.add_request(RESTART, self._late_join.restart)

    def _interrupt(self, signum: signal.Signals) -> None:
        """The first signal asks the nodes to stop, a second one, or one before the start, kills them."""
        self._run_monitor.alarm.ring()
        # Whoever closes a terminal may say so twice, and a session that ends says it after SIGTERM.
        self._signals += not (self._signals and signum is signal.SIGHUP)
        self._stopping.ask(signum)
        if self._signals > 1 or not self.run_id:
            self._end_at_once()

    def _end_at_once(self) -> None:
        self._stopping.is_urgent = True
        self.server.kill()

    @property
    def _signal(self) -> signal.Signals | None:
        """What the run was asked to stop with."""
        return self._stopping.signal

    def _begin_together(self) -> None:
        """Waits for the local nodes and for the other machines, then starts; a signal ends the waiting."""
        try:
            self._gather()
            self._meet()
        except StartError:
            if self._signal is None:
                raise

    def _gather(self) -> None:
        """Waits until every local host process can be reached; raises StartError when one cannot start."""
        limit = time.monotonic() + self.experiment.settings.failures.start_deadline
        while len(self._pids) < len(self._positions) and self._signal is None:
            self._watch(max(0.0, limit - time.monotonic()))
            self._refuse_early_losses()
            if time.monotonic() > limit:
                silent = sorted(set(self._positions) - self._pids.keys())
                ranks = [rank for i in silent for rank in self.experiment.processes[i].ranks]
                raise StartError(f"these ranks of this machine were not ready in time: {ranks}")

    def _refuse_early_losses(self) -> None:
        lost = self.membership.ranks(MemberState.LOST)
        if lost and self._signal is None:
            first = {self.membership.members[rank].error: rank for rank in reversed(lost)}
            raise StartError(
                "\n".join(f"{why}; its log: {self._run_monitor.log(r)}" for why, r in first.items())
            )

    def _meet(self) -> None:
        """Lets the machines find each other, then gives the start to the local nodes."""
        experiment, machine = self.experiment, self.machine
        deadline = experiment.settings.failures.start_deadline
        if self._credentials is not None:
            prove_guard(self._credentials)
        self._assembly.introductions = self._introductions.said()
        start = self._assembly.meet(deadline, lambda: self._signal is not None)
        if self._signal is not None:
            return
        self._run_state.begin(start)
        self.evaluations.go_on(self._run_state.rows)
        self._introductions.fill(self._assembly.introductions)
        self._observer = ModelObserver(
            self._snapshots, partial(self.membership.reporting, self._local), machine,
            self._vector_sender.put,
            average_model_test(experiment) if experiment.settings.evaluation.average_model else None,
            self._run_monitor.alarm.ring,
        )  # fmt: skip
        self._others.present -= set(start.absent)
        self._observer.expect_machines(self._others.present)
        self._observer.is_late = bool(start.late)
        self._observer.start()
        leave_behind(self._observer)
        self._snapshots.run_id = start.message_id
        self.membership.start(self._run_state.lineage.round, self._known)
        self._began = time.monotonic() - self._run_state.seconds
        self._startup = seconds_since_process_start()
        self._command = time.monotonic() - self._startup
        self.run_id = start.run_id
        self._run_state.lineage.begin(self._began)
        self._run_monitor.begin(self._began)
        absent = self._late_join.begin(start, self.server, self._start_signal)
        self.screen.began(experiment, self.run_dir, self._startup)
        if self._run_state.news:
            self.screen.note(self._run_state.news)
        for report in absent:
            self._take(report)

    # While the nodes run.

    def _unresolved(self) -> bool:
        """Whether some node may still report, here, or on machine 0 anywhere; or has not yet left here."""
        if not self._known.isdisjoint(self.membership.active):
            return True
        return self._exit_monitor.are_awaited(time.monotonic())

    def _watch(self, timeout: float) -> None:
        """Takes in what nodes and machines have sent, waiting at most `timeout` seconds for it."""
        fds = [] if self._inflow.closed else [self._inflow.fd]
        if self.run_id:
            fds += self._assembly.descriptors
            timeout = 0.0 if self._assembly.has_messages else timeout
        self._run_monitor.wait(fds, timeout)
        reports = self._run_monitor.complete(self._inflow.read())
        if self._inflow.closed:
            reports += [Failed(r, UNSEEN_END) for r in self.membership.active if r in self._local]
            self.membership.ended.update(self._positions)
        for report in reports:
            self._take(report)
        # Processes are the own launcher's to know.
        self._unsent += [report for report in reports if not isinstance(report, Ready)]
        if self.run_id:
            self._exchange_with_machines()
            self._stopping.advance()
            is_alone = self._others.is_left_alone(Timeouts.machine_gone)
            self._run_state.tend(self._others.gone, is_alone, self._assembly.send)
            self._end_hung_nodes()
            self._run_monitor.tell_waits(stopping=self._signal is not None)
            self._show_progress()

    def _take(self, report: Report) -> None:
        if isinstance(report, Ready):
            self._pids[report.process] = report.pid
            return
        if isinstance(report, Restarted):
            for rank, text in self._late_join.note(report).items():
                self._run_monitor.event_log.say("restarted", text, rank)
        lost = self.membership.take(report)
        self._run_monitor.take(report, stopping=self._signal is not None)
        if news := self._run_state.take(report):
            self._run_monitor.event_log.say("checkpoint", news)
        if isinstance(report, Evaluated):
            self.evaluations.add(report)
            if report.rank in self._local and self.run_id:
                self._observer.take(report)
        for rank in lost:
            self._run_monitor.lost(rank, stopping=self._signal is not None)
            if self._signal is None:
                self.screen.show_log(self._run_monitor.log(rank))

    def _exchange_with_machines(self) -> None:
        now = time.monotonic()
        unsent = self._unsent if self.machine else []
        if self._others.is_relay_due(bool(unsent), now):
            self._assembly.send(RelayedReports(self.machine, unsent))
        self._unsent = []
        notes = self._assembly.receive()
        self._vector_sender.exchange(notes, self._others.listening)
        for machine in self._others.heard_again(notes):
            self._expect(machine)
        for note in filter(self._others.admits, notes):
            if isinstance(note, RelayedReports):
                for report in self._others.reports(note):
                    self._take(report)
            elif isinstance(note, PartialSum | MeanVector | PartialDistance | VectorAck):
                self._observer.take(note)
            elif isinstance(note, Join):
                self._welcome(note)
            elif isinstance(note, CheckpointsCommitted):
                self._run_state.retention.settle(note.round, note.kept)
            else:
                self._stopping.take(note)
        for report in self._others.forget_silent(now):
            self._take(report)
        self._observer.expect_machines(self._others.observing)
        self._observer.is_alone = self._others.is_left_alone()

    def _welcome(self, join: Join) -> None:
        for report in (reports := self._late_join.answer(join)):
            self._take(report)
        if reports:
            self._expect(join.machine)

    def _expect(self, machine: int) -> None:
        """A machine takes part again, or for the first time."""
        self._others.present.add(machine)
        self._observer.expect_late(machine)

    def _end_hung_nodes(self) -> None:
        """Kills processes that hang, or whose nodes have long ended. So a run always ends."""
        hung = self._run_monitor.hung()
        for verdict in (verdict for verdicts in hung.values() for verdict in verdicts):
            self._take(verdict)
            self._unsent.append(verdict)
        overdue = self._exit_monitor.overdue(time.monotonic())
        end_hung([self._pids[position] for position in [*hung, *overdue]])

    def _show_progress(self) -> None:
        while not self._observer.observations.empty():
            self.evaluations.observe(self._observer.observations.get())
        observed = self.machine == 0 and self._observer.is_alive() and self._observer.error is None
        for row in self.evaluations.complete(self.membership.reporting(self._known), observed):
            self.screen.evaluated(row)
        self.screen.progress(self.membership)

    # After the last round.

    def _let_go(self) -> None:
        """Lets the nodes of all machines end after one round; those that take too long are killed."""
        here = self._local.intersection(self.membership.active)
        if not self._stopping.is_urgent:
            announcement = self._stopping.announcement(self._run_state.saved_by_all)
            self._run_monitor.event_log.say("stop", announcement)
        while self._unresolved() and not self._stopping.is_urgent:
            self._watch(STOP_POLL_INTERVAL)
            if self._stopping.is_overdue:
                self._end_at_once()
        limit = time.monotonic() + Timeouts.killed
        while self._local & set(self.membership.active) and time.monotonic() < limit:
            self._watch(STOP_POLL_INTERVAL)
        killed = here.difference(self.membership.ranks(MemberState.FINISHED, MemberState.STOPPED))
        if killed and self._stopping.is_urgent and self.run_id:
            self._run_monitor.event_log.say(
                "stop", killed_in_words(len(killed), self._run_state.saved_by_all)
            )

    def _complete_observations(self) -> None:
        """Lets the observers of all machines end what is under way; a signal cuts that short."""
        if not self.run_id:
            return
        self._observer.finish()
        within = Timeouts.last_observation if self._signal is None else Timeouts.stopped_observation
        limit = time.monotonic() + within
        while self._observer.is_alive() and not self._stopping.is_urgent and time.monotonic() < limit:
            self._watch(POLL_INTERVAL)
        self._vector_sender.exchange((), self._others.listening)  # what it said at the very last
        self._show_progress()
        if self._observer.error is not None or self._observer.is_alive():
            why = repr(self._observer.error or "it was not ready in time")
            self.screen.note(f"mean model and consensus distance are not available: {why}")
        for row in self.evaluations.complete({}, observed=False):
            self.screen.evaluated(row)

    def _sum_up(self) -> dict[str, Any]:
        """Writes the summary, and tells machine 0 what it may not know yet."""
        # How its nodes ended may have been lost with a connection that broke.
        last_words = self.membership.last_words(self._local) if self.machine else []
        self._assembly.send(RelayedReports(self.machine, [*self._unsent, *last_words]))
        timing = Timing(max(self._startup, self._heartbeats.last_to_begin - self._command), self._wall)
        unfinished = self.membership.ranks(MemberState.STOPPED, MemberState.LOST)
        saved = self._run_state.retention.newest_round if unfinished else None
        refused = self._assembly.refused + self._others.refused
        summary = summarize(
            self.experiment, self.membership, self.evaluations, self.run_id, timing, saved, refused
        )
        # A run that was to go on, and did not begin, keeps the summary that it has.
        has_begun = self.run_id or not self._run_state.goes_on
        self._run_monitor.conclude(self.evaluations, summary if has_begun else None)
        self._run_monitor.close(headline(summary, self._exit_code()))
        return summary

    def _exit_code(self) -> ExitCode:
        return exit_code(
            self.membership, self._local, self._known, self._signal, self._run_monitor.results_are_lost
        )
