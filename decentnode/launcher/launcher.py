"""Starts this machine's host processes, runs the rendezvous, monitors, and writes the summary."""

import contextlib
import fcntl
import os
import shutil
import signal
import time
from functools import partial
from itertools import chain
from typing import Any

from decentnode.communication.launcher_link.handshakes import HandshakeBoard
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import (
    Failed,
    Reporter,
    ReportReader,
)
from decentnode.communication.security.curve import prove_guard
from decentnode.core.clock import AwakeClock, seconds_since_process_start
from decentnode.core.process_setup import default_threads, leave_behind, signals_that_stop
from decentnode.core.text import counted
from decentnode.core.timeouts import Timeouts
from decentnode.errors import DecentnodeError, ExitCode, StartError
from decentnode.launcher import peer_service, preflight
from decentnode.launcher.attackers import AttackProcess
from decentnode.launcher.cluster.graceful_stop import GracefulStop
from decentnode.launcher.cluster.late_join import RESTART, LateJoin
from decentnode.launcher.cluster.remote_machines import RemoteMachines
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.monitoring.monitor import RunMonitor
from decentnode.launcher.monitoring.report_handler import ReportHandler
from decentnode.launcher.monitoring.watchdog import NEVER
from decentnode.launcher.observer.evaluators import EvaluatorPool
from decentnode.launcher.observer.observer import Contribution, ModelObserver
from decentnode.launcher.observer.vector_sender import VectorSender
from decentnode.launcher.processes.child_process import ChildProcess
from decentnode.launcher.processes.fork_server import ForkServer, end_hung, name_socket_directory
from decentnode.launcher.recovery.resume import ResumePlan
from decentnode.launcher.recovery.run_state import RunState
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.final_lines import exit_code, headline
from decentnode.launcher.report.row_writers import RowWriters
from decentnode.launcher.report.summary import summarize
from decentnode.launcher.state import messages
from decentnode.launcher.state.evaluation_log import EvaluationLog
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.run_directory import make_run_directory
from decentnode.node.experiment import Experiment, average_model_test
from decentnode.node.host_process import ForkContext
from decentnode.results.figures.plot_process import Pictures, make_figures

POLL_INTERVAL = 0.1
UNSEEN_END = "its process ended with the fork server"
PIPE_BYTES = 1 << 20
STOP_POLL_INTERVAL = 0.02
START_POLL_INTERVAL = 1.0


class Launcher:
    """One machine's part of a run, from the fork to the summary."""

    def __init__(
        self, experiment: Experiment, machine: int, console: LiveConsole,
        resume_plan: ResumePlan | None = None, job: str = "", threads: int | None = None,
    ) -> None:  # fmt: skip
        """Makes the run directory, or uses that of a resumed run; raises BadInput. Nothing runs yet.

        `job`: the job that has started all machines; empty where the configuration lists them. `threads`: of
        torch in each process, where the code of a plug-in has set a number.
        """
        self.experiment, self.machine = experiment, machine
        wanted, here = experiment.settings.training.threads, len(experiment.mapping.ranks_of(machine))
        # In this order: the configuration, the number that the run began with, code, environment, processors.
        kept = resume_plan.threads if resume_plan else None
        self.threads = wanted if wanted != "auto" else kept or threads or default_threads(here)
        self.console = console
        self._credentials = preflight.credentials(experiment.settings, machine)
        self.run_dir = resume_plan.run_dir if resume_plan else make_run_directory(experiment, machine)
        self._run_state = RunState(experiment, machine, self.run_dir, resume_plan, job, self.threads)
        home = {position: process.ranks for position, process in enumerate(experiment.processes)}
        nodes, local = range(experiment.graph.num_nodes), experiment.mapping.ranks_of(machine)
        self._heartbeats = HeartbeatBoard(sorted(local))
        self.membership = MembershipTable(nodes, home, local, machine == 0, self._heartbeats)
        self.run_id = 0
        self._handshakes = HandshakeBoard(experiment.graph.num_nodes)
        self._event_log = EventLog(self.run_dir / "events.jsonl", console.line)
        self._run_monitor = RunMonitor(
            experiment, machine, self.run_dir, self._heartbeats, self.membership, self._event_log
        )
        self.evaluations = EvaluationLog(
            self.run_dir / "evaluations.jsonl", warn=partial(self._event_log.log, "disk")
        )
        self._evaluators = EvaluatorPool(experiment, local, self.run_dir, self._event_log.log)
        self._attacks = AttackProcess(experiment, local, self.run_dir, self._event_log.log)
        self._peer_service_process: ChildProcess | None = None
        writers = () if machine else experiment.settings.records.writers
        self._writers = RowWriters(writers, self._event_log.log)
        self._rendezvous = Rendezvous(
            experiment.mapping, machine, self._run_state.join_message(), self._credentials,
            experiment.settings.failures,
        )  # fmt: skip
        self._vector_sender = VectorSender(machine, 8 * experiment.layout.numel, self._rendezvous.send)
        self._remote_machines = RemoteMachines(
            experiment, machine, self.membership, self._rendezvous.last_received, self._event_log.log
        )
        self._graceful_stop = GracefulStop(
            self._heartbeats, machine, self._remote_machines.present, self._rendezvous.send,
            experiment.settings.failures.stop_deadline,
        )  # fmt: skip
        self._late_join = LateJoin(
            experiment,
            machine,
            self.membership,
            self._rendezvous,
            self._run_state.identity,
            self._is_stopping,
        )
        self._reports = ReportHandler(
            machine_of=experiment.mapping.machine_of,
            membership=self.membership,
            event_log=self._event_log,
            monitor=self._run_monitor,
            run_state=self._run_state,
            late_join=self._late_join,
            graceful_stop=self._graceful_stop,
            evaluations=self.evaluations,
            evaluators=self._evaluators,
            console=console,
        )
        self._signals = 0
        self._startup = self._command = 0.0

    def run(self) -> ExitCode:
        """Runs everything; returns the exit code. Leaves no process running, whatever happens."""
        self._fork()
        try:
            # A signal ends the wait for the local nodes and for the other machines.
            try:
                self._gather()
                self._meet()
            except StartError:
                if not self._is_stopping():
                    raise
            while self._unresolved() and not self._is_stopping():
                until_exit = self._run_monitor.watchdog.exit_pause(time.monotonic())
                self._watch(min(self._remote_machines.pause, until_exit, self.console.interval))
            if self._is_stopping():
                self._stop_nodes()
            wall = time.monotonic() - self._began if self.run_id else 0.0
            self._complete_observations()
            self._complete_attacks()
            summary = self._sum_up(wall)
        except BaseException as error:
            self.console.close()
            self._run_monitor.close(str(error) if isinstance(error, DecentnodeError) else "")
            raise
        finally:
            # The control socket first: no request may reach a launcher that is ending.
            self._run_monitor.close()
            self.server.close()
            self._evaluators.close()
            self._attacks.close()
            self._writers.close()
            if self._peer_service_process is not None:
                self._peer_service_process.close()
            self._rendezvous.close()
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        code = exit_code(self.membership, self._graceful_stop.signal, self._event_log.lost_results)
        # After the server: figures take time, and all node processes have ended by now.
        are_wanted = self.experiment.settings.evaluation.figures and self.evaluations.rows
        pictures = make_figures(self.run_dir) if are_wanted and not self._is_stopping() else Pictures()
        self.console.ended(summary, self.run_dir, pictures, code)
        return code

    # Before the first round.

    def _fork(self) -> None:
        # First: these must not hold the pipe of the nodes open.
        self._attacks.start()
        self._writers.start(self.run_dir, self._run_state.lock)
        self._evaluators.start(self.threads)
        self._socket_dir = name_socket_directory()
        self._peer_service_process = peer_service.start_service(
            self.experiment, self.machine, self.run_dir, self._socket_dir, self._credentials
        )
        read, write = os.pipe()
        # Room for the reports of thousands of nodes while this process is busy. The kernel refuses it to a
        # user who has much memory in pipes; nodes then wait for this process where it is busy.
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._report_reader = ReportReader(read)
        self._start_signal = os.eventfd(0, os.EFD_SEMAPHORE)
        fork_context = ForkContext(
            snapshots=self._evaluators.snapshots,
            evaluators=self._evaluators.board,
            evaluator_timeout=self.experiment.settings.failures.timeouts.evaluator,
            reporter=Reporter(write, read),
            records=self.run_dir / "records",
            heartbeats=self._heartbeats,
            identity=self._run_state.identity,
            experiment=self.experiment,
            handshakes=self._handshakes,
            start=self._start_signal,
            socket_dir=self._socket_dir,
            threads=self.threads,
            credentials=self._credentials,
        )
        stop_signals = signals_that_stop()
        # A signal between fork and handler would kill this process without its clean-up.
        signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
        try:
            self.server = ForkServer(fork_context, [*self.membership.here])
            for signum in stop_signals:
                signal.signal(signum, lambda number, _: self._interrupt(signal.Signals(number)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals)
        # The pipe must end when the last node process does.
        os.close(write)
        self._run_monitor.open(self._socket_dir, {RESTART: self._late_join.restart})

    def _interrupt(self, signum: signal.Signals) -> None:
        """The first signal asks the nodes to stop; a second one, or one before the start, kills them."""
        self._run_monitor.wake()
        # A closed terminal may send SIGHUP twice, and a session that ends sends it after SIGTERM.
        self._signals += not (self._signals and signum is signal.SIGHUP)
        self._graceful_stop.request(signum)
        if self._signals > 1 or not self.run_id:
            self._end_at_once()

    def _is_stopping(self) -> bool:
        return self._graceful_stop.signal is not None

    def _end_at_once(self) -> None:
        self._graceful_stop.is_urgent = True
        self.server.kill()

    def _gather(self) -> None:
        """Waits until every local host process is ready; raises StartError if one cannot start."""
        clock, table = AwakeClock(START_POLL_INTERVAL), self.membership
        limit = clock.now() + self.experiment.settings.failures.start_deadline
        while table.pids.keys() != table.here.keys() and not self._is_stopping():
            self._watch(START_POLL_INTERVAL)
            lost = table.ranks(MemberState.LOST)
            if lost and not self._is_stopping():
                first = {table.members[rank].error: rank for rank in reversed(lost)}
                logs = (f"{why}; its log: {self._run_monitor.logs[rank]}" for why, rank in first.items())
                raise StartError("\n".join(logs))
            if clock.now() > limit:
                silent = sorted(table.here.keys() - table.pids.keys())
                ranks = [rank for position in silent for rank in table.here[position]]
                raise StartError(f"these ranks of this machine were not ready in time: {ranks}")

    def _meet(self) -> None:
        """Runs the rendezvous, then gives the start signal to the local nodes."""
        experiment, machine = self.experiment, self.machine
        deadline = experiment.settings.failures.start_deadline
        if self._credentials is not None:
            prove_guard(self._credentials)
        # All processes are ready, so their handshakes are written.
        start = self._rendezvous.meet(self._handshakes.contents(), deadline, self._is_stopping)
        if self._is_stopping():
            return
        self._run_state.begin(start)
        self.evaluations.read(is_late=bool(start.late))
        self._writers.begin()
        self._handshakes.fill(start.handshakes)
        self._observer = ModelObserver(
            snapshots=self._evaluators.snapshots,
            reporting=partial(self.membership.reporting, self.membership.local),
            machine=machine,
            send=self._vector_sender.contributions.put,
            test=average_model_test(experiment) if experiment.settings.evaluation.average_model else None,
            notify=self._run_monitor.wake,
            machines={*self._rendezvous.machines} - {*start.absent},
            is_late=bool(start.late),
        )
        self._observer.start()
        # The observer may be busy at the end, and must not keep the process alive.
        leave_behind(self._observer)
        self._reports.observer = self._observer
        self.membership.start(self._run_state.identity.round)
        resume_plan = self._run_state.resume_plan
        # A late machine goes on with the time of the run: what it saved itself ends before it was away.
        before = start.seconds if start.late else resume_plan.seconds if resume_plan else 0.0
        self._began = time.monotonic() - before
        self._startup = seconds_since_process_start()
        self._command = time.monotonic() - self._startup
        self.run_id = start.run_id
        # All shared memory is written before the start signal, which the nodes wait for.
        self._run_state.identity.begin(self._began)
        self._run_monitor.begin(self._began)
        self._late_join.begin(start, self.server, self._start_signal)
        self.console.began(experiment, self._startup)
        if self._run_state.news:
            self.console.line(self._run_state.news)
        self._log_differences()
        self._reports.mark_lost(sorted(self._run_state.identity.absent), "has not come yet")

    def _log_differences(self) -> None:
        """Logs which machines run other code than this one, and may."""
        while self._rendezvous.news:
            self._event_log.log("code", self._rendezvous.news.pop(0))

    # While the nodes run.

    def _unresolved(self) -> bool:
        """Whether some known node may still report, or a local process has not exited."""
        if not self.membership.known.isdisjoint(self.membership.active):
            return True
        return self._run_monitor.watchdog.exit_pause(time.monotonic()) < NEVER

    def _watch(self, timeout: float) -> None:
        """Processes what nodes and machines have sent; waits at most `timeout` seconds for it."""
        fds = [
            *self._evaluators.descriptors,
            *([self._peer_service_process.fd] if self._peer_service_process else []),
        ]
        if not self._report_reader.closed:
            fds.append(self._report_reader.fd)
        if self.run_id:
            fds += self._rendezvous.descriptors
            # ZeroMQ descriptors are edge-triggered: messages may be waiting although none is readable.
            timeout = 0.0 if self._rendezvous.has_messages else timeout
        self._run_monitor.wait(fds, timeout)
        if self._peer_service_process is not None and self._peer_service_process.has_ended():
            self._peer_service_process.close()
            log, self._peer_service_process = self._peer_service_process.log, None
            text = f"the peer-sampling service has ended; nodes repeat its last views; its log: {log}"
            self._event_log.log("communication", text)
        # The nodes first: they publish what is evaluated.
        reports = [*self._report_reader.read(), *self._evaluators.reports()]
        self._reports.take_own([*reports, *self._run_monitor.watchdog.check(time.monotonic())])
        if self._report_reader.closed:
            # The fork server died without a report: its children died with it.
            active = self.membership.local.intersection(self.membership.active)
            self._reports.take_own(Failed(rank, UNSEEN_END) for rank in sorted(active))
            self.membership.ended.update(self.membership.here)
        if self.run_id:
            self._exchange_with_machines()
            self._graceful_stop.advance()
            is_alone = self._remote_machines.is_left_alone(Timeouts.machine_gone)
            if problem := self._run_state.tend(self._remote_machines.lost, is_alone, self._rendezvous.send):
                self._event_log.log("checkpoint", problem)
            self._end_hung_nodes()
            if not self._is_stopping():
                self._run_monitor.stragglers.report(self._event_log, time.monotonic())
            self._show_progress()

    def _exchange_with_machines(self) -> None:
        now = time.monotonic()
        # Machine 0 keeps its reports: it writes the summary.
        unsent = self._reports.unsent if self.machine else []
        if self._remote_machines.is_relay_due(bool(unsent), now):
            self._rendezvous.send(messages.RelayedReports(self.machine, unsent))
        self._reports.unsent = []
        notes = self._rendezvous.receive()
        self._remote_machines.receive(notes)
        # Checked before use: another launcher may be faulty or of another run.
        notes = list(filter(self._remote_machines.admits, notes))
        for note in self._vector_sender.exchange(notes, self._remote_machines.listening):
            if isinstance(note, messages.RelayedReports):
                for report in self._remote_machines.reports(note):
                    self._reports.take(report)
            elif isinstance(note, Contribution | messages.VectorAck):
                self._observer.take(note)
            elif isinstance(note, messages.Join):
                for report in self._late_join.answer(note):
                    self._reports.take(report)
                self._log_differences()
            elif isinstance(note, messages.CheckpointsCommitted):
                self._run_state.retention.settle(note.round, note.kept)
            else:
                self._graceful_stop.take(note)
        # After the messages: a machine that has just reported is not silent.
        for report in self._remote_machines.forget_silent(now):
            self._reports.take(report)
        # After all messages, because they may have changed the set of machines.
        self._observer.expect(self._remote_machines.observing)
        self._observer.is_alone = self._remote_machines.is_left_alone()

    def _end_hung_nodes(self) -> None:
        """Kills processes that hang, or outlive their nodes, so every run ends."""
        hung = self._run_monitor.watchdog.hung(time.monotonic())
        # Reported before the kill, so the reason is the hang and not the signal.
        self._reports.take_own(chain.from_iterable(hung.values()))
        end_hung([self.membership.pids[position] for position in hung])

    def _show_progress(self, is_last: bool = False) -> None:
        while not self._observer.observations.empty():
            observation = self._observer.observations.get()
            self.evaluations.observations[observation.round] = observation
        observed = self.machine == 0 and self._observer.is_alive() and self._observer.error is None
        expected = self.membership.reporting(self.membership.known)
        if is_last:
            # What is there now is all that comes.
            self.evaluations.forget(self.membership.members)
            expected, observed = {}, False
        rows = self.evaluations.complete(expected, observed)
        for row in rows:
            self.console.evaluated(row)
        if rows:
            self._writers.more_rows()
        self._writers.drop_failed()
        self.console.progress(self.membership)

    # After the last round.

    def _stop_nodes(self) -> None:
        """Ends the nodes of all machines after one round; kills those that take too long."""
        # Taken before the stop, to report how many of them were killed.
        here = self.membership.local.intersection(self.membership.active)
        if not self._graceful_stop.is_urgent:
            saved = self._run_state.saved_by_all
            outlook = "No checkpoint exists yet: if nodes are killed, the run is lost."
            outlook = outlook if saved is None else f"After a kill, resume continues at round {saved + 2}."
            most = f"Nodes that need more than {self._graceful_stop.deadline:g} s are killed"
            text = f"stopping after the current round. {most}; a second Ctrl-C kills all at once. {outlook}"
            self._event_log.log("stop", text)
        while self._unresolved() and not self._graceful_stop.is_urgent:
            self._watch(STOP_POLL_INTERVAL)
            if self._graceful_stop.is_overdue:
                self._end_at_once()
        limit = time.monotonic() + Timeouts.killed
        while self.membership.local & set(self.membership.active) and time.monotonic() < limit:
            self._watch(STOP_POLL_INTERVAL)
        killed = here.difference(self.membership.ranks(MemberState.FINISHED, MemberState.STOPPED))
        if killed and self._graceful_stop.is_urgent and self.run_id:
            saved = self._run_state.saved_by_all
            outlook = "no checkpoint of all nodes to resume from (checkpoint.every)"
            outlook = outlook if saved is None else f"resume continues at round {saved + 2}"
            text = f"killed {counted(len(killed), 'node')} that did not finish in time; {outlook}"
            self._event_log.log("stop", text)

    def _complete_observations(self) -> None:
        """Completes the observations of all machines; a signal shortens the wait."""
        if not self.run_id:
            return
        self._observer.finish()
        within = Timeouts.last_observation if not self._is_stopping() else Timeouts.stopped_observation
        clock = AwakeClock(POLL_INTERVAL)
        limit = clock.now() + within
        while (self._observer.is_alive() or self._evaluators.is_busy) and not self._graceful_stop.is_urgent:
            # Evaluations end by themselves: an evaluator without progress is killed.
            if clock.now() > limit and not (self._evaluators.is_busy and not self._is_stopping()):
                break
            self._watch(POLL_INTERVAL)
        self._vector_sender.exchange((), self._remote_machines.listening)  # the observer's last contributions
        self._show_progress(is_last=True)
        if self._observer.error is not None or self._observer.is_alive():
            why = repr(self._observer.error or "it was not ready in time")
            self.console.line(f"mean model and consensus distance are not available: {why}")

    def _complete_attacks(self) -> None:
        """Waits for the attacks on the last rounds, until a signal."""
        self._attacks.finish()
        limit = time.monotonic() + Timeouts.attacks
        while not self._is_stopping() and time.monotonic() < limit and self._attacks.is_busy(POLL_INTERVAL):
            self._watch(0.0)

    def _sum_up(self, wall: float) -> dict[str, Any]:
        """Writes the summary, and sends machine 0 what it may not know yet."""
        # The reports of its nodes' ends may have been lost with a broken connection.
        last_words = self.membership.last_words() if self.machine else []
        self._rendezvous.send(messages.RelayedReports(self.machine, [*self._reports.unsent, *last_words]))
        startup = max(self._startup, self._heartbeats.last_to_begin - self._command)
        unfinished = self.membership.ranks(MemberState.STOPPED, MemberState.LOST)
        saved = self._run_state.retention.newest_round if unfinished else None
        refused = self._rendezvous.refused + self._remote_machines.refused
        summary = summarize(
            experiment=self.experiment,
            membership=self.membership,
            evaluations=self.evaluations,
            run_id=self.run_id,
            startup=startup,
            wall=wall,
            resumable=saved,
            refused=refused,
            threads=self.threads,
            beside_mb=self._evaluators.memory_mb,
        )
        summary["attacks"] = self._attacks.close()
        # A resumed run that did not start keeps its earlier summary.
        has_begun = self.run_id or self._run_state.resume_plan is None
        self._run_monitor.conclude(self.evaluations, summary if has_begun else None)
        self._writers.finish(lambda: self._graceful_stop.is_urgent)
        code = exit_code(self.membership, self._graceful_stop.signal, self._event_log.lost_results)
        self._run_monitor.close(headline(summary, code))
        return summary
