"""Starts this machine's host processes, runs the rendezvous, monitors, and writes the summary."""

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from math import isinf
from typing import Any

import msgspec

from decentnode.communication.launcher_link.handshakes import HandshakeBoard
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import (
    Degraded,
    Failed,
    Ready,
    Report,
    Reporter,
    ReportReader,
)
from decentnode.communication.security.curve import prove_guard
from decentnode.config.consistency import why_not_taken_back
from decentnode.core import hooks
from decentnode.core.clock import AwakeClock, seconds_since_process_start
from decentnode.core.process_setup import default_threads, leave_behind, signals_that_stop
from decentnode.core.streams import log_name, log_of
from decentnode.core.text import counted, how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, DecentnodeError, ExitCode, StartError
from decentnode.formats.reader import EvaluationRow
from decentnode.launcher import peer_service, preflight
from decentnode.launcher.cluster.base import Cluster, OneMachine
from decentnode.launcher.cluster.graceful_stop import GracefulStop
from decentnode.launcher.cluster.place import save_addresses
from decentnode.launcher.cluster.several_machines import SeveralMachines
from decentnode.launcher.extension import RunExtension, UserFunctions
from decentnode.launcher.monitoring.incidents import Incidents
from decentnode.launcher.monitoring.memory_estimate import MemoryEstimate
from decentnode.launcher.monitoring.monitor import RunMonitor
from decentnode.launcher.monitoring.watchdog import NEVER
from decentnode.launcher.observer.evaluators import EvaluatorPool
from decentnode.launcher.observer.observer import ModelObserver
from decentnode.launcher.processes.child_process import ChildProcess
from decentnode.launcher.processes.fork_server import (
    ForkServer,
    ProcessServer,
    end_hung,
    name_socket_directory,
)
from decentnode.launcher.recovery.restarts import RESTART, Restarts
from decentnode.launcher.recovery.resume import ResumePlan
from decentnode.launcher.recovery.run_state import RunState
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.final_lines import exit_code, headline
from decentnode.launcher.report.summary import summarize
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.evaluation_log import EvaluationLog
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.messages import (
    Arrived,
    CheckpointsCommitted,
    ClusterMessage,
    EvaluationRows,
    Pause,
    StopRequest,
)
from decentnode.launcher.state.run_directory import HEARTBEAT_INTERVAL, RunLock, make_run_directory
from decentnode.launcher.state.target import Target
from decentnode.mapping.job import repetition, seconds_to_stop
from decentnode.node.experiment import Experiment, average_model_test
from decentnode.node.host_process import ForkContext
from decentnode.node.plugin_sources import package_digest

POLL_INTERVAL = 0.1
PROGRESS_INTERVAL = 0.25
"""Seconds between two readings of the nodes' progress in shared memory."""
MANY_NODES, REPORTS_INTERVAL = 256, 0.05
"""With more nodes here their reports are read in such intervals: each wake-up takes longer than a report."""
ROWS_INTERVAL = 0.25
"""Seconds between two passes over the evaluations of all nodes, unless all seem to be there."""
SAME_REQUEST = {signal.SIGINT: Timeouts.same_interrupt, signal.SIGTERM: Timeouts.same_termination}
"""Seconds in which these signals repeat the first request to stop; later they ask to kill."""
UNSEEN_END = "its process ended with the fork server"
PIPE_BYTES = 1 << 20
STOP_POLL_INTERVAL = 0.02
ROWS_TOGETHER = 50_000
"""Evaluations of one node that one message has, so that it stays below the largest size."""
START_POLL_INTERVAL = 1.0


class Launcher:
    """One machine's part of a run, from the fork to the summary."""

    def __init__(
        self, experiment: Experiment, machine: int, console: LiveConsole,
        resume_plan: ResumePlan | None = None, job: str = "", threads: int | None = None,
        make_server: Callable[[ForkContext, Sequence[int]], ProcessServer] = ForkServer,
        or_resume: bool = False, lock: RunLock | None = None,
    ) -> None:  # fmt: skip
        """Makes the run directory, or uses that of a resumed run; raises BadInput. Nothing runs yet.

        `job`: the job that has started all machines; empty where the configuration lists them. `threads`: of
        torch in each process, where the code of a plug-in has set a number. `make_server`: makes what starts
        the host processes. `or_resume`: whether a new run may be the one that other machines resume.
        `lock`: that of the run, where who starts it holds it already.
        """
        self.experiment, self.machine = experiment, machine
        settings, mapping = experiment.settings, experiment.mapping
        local = mapping.ranks_of(machine)
        # In this order: the configuration, the number that the run began with, code, environment, processors.
        kept = resume_plan.threads if resume_plan else None
        wanted = settings.training.threads
        self.threads = wanted if wanted != "auto" else kept or threads or default_threads(len(local))
        self._make_server = make_server
        self.console = console
        self._credentials = preflight.credentials(settings, machine)
        self.run_dir = (
            resume_plan.run_dir if resume_plan else make_run_directory(experiment, machine, or_resume)
        )
        self._repetition = repetition(self.run_dir) if or_resume else ""
        self._run_state = RunState(
            experiment=experiment,
            machine=machine,
            run_dir=self.run_dir,
            resume_plan=resume_plan,
            job=job,
            threads=self.threads,
            or_resume=or_resume,
            lock=lock,
        )
        self._event_log = EventLog(self.run_dir / "events.jsonl", console.line)
        self.run_id = 0
        self._asked_at: float | None = None
        """When the first Ctrl-C or SIGTERM reached this process; None: none has."""
        self._startup = self._command = self._began = 0.0

        # What nodes and launcher share.
        self._heartbeats = HeartbeatBoard(sorted(local))
        self._handshakes = HandshakeBoard(experiment.graph.num_nodes)
        self.membership = MembershipTable(
            range(experiment.graph.num_nodes),
            home={position: process.ranks for position, process in enumerate(experiment.processes)},
            local=local,
            heartbeats=self._heartbeats,
        )
        self._logs = {r: self.run_dir / log_name(p.ranks[0]) for p in experiment.processes for r in p.ranks}
        """By rank the log of its process."""

        # The processes beside the nodes.
        self._evaluators = EvaluatorPool(experiment, local, self.run_dir, self._degrade)
        self._peer_service_process: ChildProcess | None = None
        self._extensions: list[RunExtension] = [
            extension(experiment, machine, self.run_dir, self._run_state.lock, log_event=self._degrade)
            for extension in (UserFunctions, *hooks.found("run").values())
        ]

        # The parts, which receive reports and messages in the order in which they register.
        self._report_dispatcher = Dispatcher[Report]()
        self._message_dispatcher = Dispatcher[ClusterMessage]()
        reason = why_not_taken_back(settings.sharing.make(), experiment.samples.gradient_sync)
        self._cluster: Cluster = (
            OneMachine(mapping, self.membership, self._run_state.join_message())
            if len(mapping.machines) == 1
            else SeveralMachines(
                machine=machine,
                mapping=mapping,
                processes=experiment.processes,
                membership=self.membership,
                event_log=self._event_log,
                report_dispatcher=self._report_dispatcher,
                message_dispatcher=self._message_dispatcher,
                join=self._run_state.join_message(),
                credentials=self._credentials,
                failures=settings.failures,
                rounds=settings.rounds,
                vector_bytes=8 * experiment.layout.shared.numel,
                identity=self._run_state.identity,
                is_stopping=self._is_ending,
                why_not_taken_back=reason,
            )
        )
        self._graceful_stop = GracefulStop(
            self._heartbeats,
            machine,
            self._cluster.present,
            lambda: self._cluster.coordinates,
            send=self._cluster.send,
            deadline=min(settings.failures.timeouts.stop_deadline, seconds_to_stop()),
        )
        self._run_monitor = RunMonitor(
            settings=settings,
            machine=machine,
            machines=len(mapping.machines),
            run_dir=self.run_dir,
            heartbeats=self._heartbeats,
            membership=self.membership,
            event_log=self._event_log,
            memory_estimate=MemoryEstimate(experiment, machine, self._evaluators.count),
        )
        self._restarts = Restarts(
            machine=machine,
            mapping=mapping,
            processes=experiment.processes,
            membership=self.membership,
            event_log=self._event_log,
            identity=self._run_state.identity,
            attempts=settings.failures.restart.attempts,
            why_not_taken_back=reason,
            is_stopping=self._is_ending,
        )
        self._incidents = Incidents(
            membership=self.membership,
            event_log=self._event_log,
            machine_of=mapping.machine_of,
            logs=self._logs,
            show_log=console.show_log,
            is_stopping=self._is_stopping,
        )
        self._target = Target(*experiment.plan.target) if experiment.plan.target else None
        self._end_is_logged = False
        """Whether an event says after which round all nodes end at the target."""
        self.evaluations = EvaluationLog(
            self.run_dir / "evaluations.jsonl", experiment.plan.pool, log_event=self._event_log.log
        )
        self.membership.register(self._report_dispatcher)
        self._restarts.register(self._report_dispatcher)
        self._incidents.register(self._report_dispatcher)
        self._run_monitor.register(self._report_dispatcher)
        self._run_state.retention.register(self._report_dispatcher)
        self.evaluations.register(self._report_dispatcher)
        self._evaluators.register(self._report_dispatcher)
        self._message_dispatcher.register(CheckpointsCommitted, self._run_state.retention.receive)
        self._message_dispatcher.register(StopRequest, self._graceful_stop.take)
        self._message_dispatcher.register(Pause, self._graceful_stop.take)
        self._message_dispatcher.register(EvaluationRows, self._take_rows)
        self._message_dispatcher.register(Arrived, self._send_rows)
        self._next_progress = 0.0
        """When the progress of the nodes is read next."""
        self._reports_due = 0.0
        """When reports of the nodes are waited for next."""
        self._rows_due = NEVER
        """When rows are looked for although nodes seem to lack; NEVER: no evaluation is reported."""
        self._has_all_rows = False
        """Whether the coordinator has sent the last row."""

    def run(self) -> ExitCode:
        """Runs everything; returns the exit code. Leaves no process running, whatever happens."""
        self._fork()
        try:
            # The run records it when it begins; it is kept, and costs no time while the nodes start.
            package_digest()
            # A signal ends the wait for the local nodes and for the other machines.
            try:
                self._gather()
                self._meet()
            except StartError:
                if not self._is_stopping():
                    raise
            while self._unresolved() and not self._is_stopping():
                until_exit = self._run_monitor.watchdog.exit_pause(time.monotonic())
                pause = min(self._cluster.pause, until_exit, self.console.interval)
                self._watch(min(pause, HEARTBEAT_INTERVAL))
                self._refuse_isolation()
            if self._is_stopping():
                self._stop_nodes()
            wall = time.monotonic() - self._began if self.run_id else 0.0
            self._complete_observations()
            self._complete_extensions()
            summary = self._sum_up(wall)
        except BaseException as error:
            self.console.close()
            self._cluster.announce_end(error)
            self._run_monitor.close(str(error) if isinstance(error, DecentnodeError) else "")
            raise
        finally:
            # The control socket first: no request may reach a launcher that is ending.
            self._run_monitor.close()
            self.server.close()
            self._evaluators.close()
            for extension in self._extensions:
                extension.close()
            if self._peer_service_process is not None:
                self._peer_service_process.close()
            self._cluster.close()
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._run_state.lock.end_lease()
        code = exit_code(self.membership, self._graceful_stop.signal, self._event_log.lost_results)
        # After the server: figures take time, and all node processes have ended by now.
        has_more = self.evaluations.rows and not self._is_stopping()
        lines = [line for one in self._extensions for line in one.closing_lines()] if has_more else []
        self.console.ended(summary, self.run_dir, code, lines, self._repetition)
        return code

    # Before the first round.

    def _fork(self) -> None:
        # First: these must not hold the pipe of the nodes open.
        for extension in self._extensions:
            extension.start()
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
            self.server = self._make_server(fork_context, [*self.membership.here])
            for signum in stop_signals:
                signal.signal(signum, lambda number, _: self._interrupt(signal.Signals(number)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals)
        # The pipe must end when the last node process does.
        os.close(write)
        self._run_monitor.open(self._socket_dir, {RESTART: self._restarts.restart})

    def _interrupt(self, signum: signal.Signals) -> None:
        """Asks the nodes to stop; kills them before the start, and where a person asks once more.

        Slurm sends SIGTERM twice within milliseconds to every process of a step, torchrun passes on a Ctrl-C
        that has reached this process, too. What warns of a limit or of the end of a terminal kills nothing.
        """
        self._run_monitor.wake()
        self._graceful_stop.request(signum)
        is_repeated = False
        if same := SAME_REQUEST.get(signum):
            now = time.monotonic()
            self._asked_at = now if self._asked_at is None else self._asked_at
            is_repeated = now - self._asked_at > same
        if is_repeated or not self.run_id:
            self._end_at_once()

    def _is_stopping(self) -> bool:
        return self._graceful_stop.signal is not None

    def _is_ending(self) -> bool:
        """Whether nodes are to end before their last round, by a signal or at the target."""
        return self._graceful_stop.is_requested

    def _end_at_once(self) -> None:
        self._graceful_stop.is_urgent = True
        self.server.kill()

    def _gather(self) -> None:
        """Waits until every local host process is ready.

        Raises StartError if one cannot start, and BadInput if the user can mend that.
        """
        clock, table = AwakeClock(START_POLL_INTERVAL), self.membership
        limit = clock.now() + self.experiment.settings.failures.start_deadline
        while table.pids.keys() != table.here.keys() and not self._is_stopping():
            self._watch(START_POLL_INTERVAL)
            lost = table.ranks(MemberState.LOST)
            if lost and not self._is_stopping():
                first = {table.members[rank].error: rank for rank in reversed(lost)}
                logs = (f"{why}{log_of(self._logs[rank])}" for why, rank in first.items())
                is_bad_input = all(table.members[rank].is_bad_input for rank in lost)
                raise (BadInput if is_bad_input else StartError)("\n".join(logs))
            if clock.now() > limit:
                silent = sorted(table.here.keys() - table.pids.keys())
                ranks = [rank for position in silent for rank in table.here[position]]
                raise StartError(f"these ranks of this machine were not ready in time: {ranks}")

    def _meet(self) -> None:
        """Agrees with the other machines, then gives the start signal to the local nodes."""
        deadline = self.experiment.settings.failures.start_deadline
        if self._credentials is not None:
            prove_guard(self._credentials, Timeouts.guard_self_test)
        # All processes are ready, so their handshakes are written.
        start = self._cluster.meet(self._handshakes.contents(), deadline, self._is_stopping)
        if self._is_stopping():
            return
        self._run_state.begin(start)
        save_addresses(self.run_dir, self._cluster.addresses)
        self.evaluations.read()
        for extension in self._extensions:
            extension.begin()
        self._handshakes.fill(start.handshakes)
        experiment, settings = self.experiment, self.experiment.settings
        self._observer = ModelObserver(
            snapshots=self._evaluators.snapshots,
            reporting=partial(self.membership.reporting, self.membership.local),
            machine=self.machine,
            local=self.membership.local,
            send=self._cluster.contribute,
            test=average_model_test(experiment) if settings.evaluation.average_model else None,
            notify=self._run_monitor.wake,
            machines={*range(len(experiment.mapping.machines))} - {*start.absent},
            is_late=bool(start.late),
        )
        self._observer.register(self._report_dispatcher, self._message_dispatcher)
        self._observer.start()
        # The observer may be busy at the end, and must not keep the process alive.
        leave_behind(self._observer)
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
        self._restarts.begin(start, self.server)
        if not start.late:
            # The start signal: each host process waits for one.
            os.eventfd_write(self._start_signal, len(self.membership.here))
        self._look_at_target(self.evaluations.rows.values())
        self.console.began(self.experiment, self._startup, before)
        if network := settings.communication.make().network_text:
            self.console.line(f"simulated time: {network}; {settings.training.slowed or 'instant steps'}")
        if self._run_state.news:
            self.console.line(self._run_state.news)
        self._incidents.lose(sorted(self._run_state.identity.absent), "has not come yet")

    # While the nodes run.

    def _refuse_isolation(self) -> None:
        """Raises StartError if no node here ever had a link to another machine: all would train alone."""
        unmet = self._incidents.unmet
        if not unmet or self.membership.ranks(MemberState.FINISHED):
            return
        absent, local = self._run_state.identity.absent, self.membership.local
        edges = {
            (rank, peer) for rank in local for peer in self.experiment.first_peers([rank]) - local - absent
        }
        if edges and edges <= unmet.keys():
            rank, peer = min(edges)
            raise StartError(
                f"no link to any other machine: rank {rank} {unmet[rank, peer]} (rank {peer}); "
                "NAT and packet filters must pass on the ports from communication.base_port on, both ways"
            )

    def _unresolved(self) -> bool:
        """Whether some node may still report, or a local process has not exited."""
        if self.membership.active:
            return True
        return self._run_monitor.watchdog.exit_pause(time.monotonic()) < NEVER

    def _watch(self, timeout: float) -> None:
        """Processes what nodes and machines have sent; waits at most `timeout` seconds for it."""
        self._wait(timeout)
        now = time.monotonic()
        # Progress before reports, and recorded after them (`MembershipTable.read_progress`).
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_INTERVAL
            self.membership.read_progress()
        # The nodes first: they publish what is evaluated.
        reports = [*self._report_reader.read(), *self._evaluators.reports()]
        if reports:
            self._reports_due = now + REPORTS_INTERVAL if len(self.membership.local) > MANY_NODES else 0.0
            # Nodes may have made progress.
            self._run_monitor.watchdog.check_soon()
        self._take([*reports, *self._run_monitor.watchdog.check(now)])
        self._cluster.relay_progress(self.membership.record_progress())
        if self._report_reader.closed:
            # The fork server died without a report: its children died with it.
            active = self.membership.local & self.membership.active
            self._take(Failed(rank, UNSEEN_END) for rank in sorted(active))
            self.membership.ended.update(self.membership.here)
        if self._peer_service_process is not None and self._peer_service_process.has_ended():
            how, log = how_it_ended(self._peer_service_process.close()), self._peer_service_process.log
            self._peer_service_process = None
            text = f"the peer-sampling service has ended ({how}); nodes repeat its last views; its log: {log}"
            self._degrade("peer_sampling", text)
        for extension in self._extensions:
            extension.check()
        self._run_state.lock.renew()
        if self.run_id:
            self._exchange_with_machines()
            self._graceful_stop.advance()
            self._log_end_at_target()
            cluster = self._cluster
            if problem := self._run_state.tend(cluster.lost, cluster.coordinates, cluster.send):
                self._event_log.log("checkpoint", problem)
            self._end_hung_nodes()
            self._run_monitor.stragglers.end_waits(self.membership, now)
            if not self._is_stopping():
                self._run_monitor.stragglers.report(self._event_log, time.monotonic())
            self._show_progress()

    def _exchange_with_machines(self) -> None:
        self._cluster.exchange(time.monotonic())
        # After all messages, because they may have changed the set of machines.
        self._observer.expect(self._cluster.observing, self._cluster.coordinator)

    def _wait(self, timeout: float) -> None:
        """Waits for a report, a message, the end of a process, or what is due, at most `timeout` seconds."""
        fds = list(self._evaluators.descriptors)
        if self._peer_service_process is not None:
            fds.append(self._peer_service_process.fd)
        if (pause := self._reports_due - time.monotonic()) > 0:
            timeout = min(timeout, pause)
        elif not self._report_reader.closed:
            fds.append(self._report_reader.fd)
        if self.run_id:
            fds += self._cluster.descriptors
            # ZeroMQ descriptors are edge-triggered: messages may be waiting although none is readable.
            timeout = 0.0 if self._cluster.has_messages else timeout
        self._run_monitor.wait(fds, min(timeout, max(0.0, self._rows_due - time.monotonic())))

    def _take(self, own_reports: Iterable[Report]) -> None:
        """Processes reports of this machine, with the figures of its memory where that ran out."""
        for report in chain.from_iterable(map(self._run_monitor.memory_estimate.explain, own_reports)):
            self._report_dispatcher.dispatch(report)
            # Process ids concern this launcher only.
            if not isinstance(report, Ready):
                self._cluster.relay(report)

    def _degrade(self, part: str, text: str) -> None:
        """Records, here and on all machines, what happened to something beside the nodes of this machine."""
        round = max(self._heartbeats.of(rank).read().round for rank in self.membership.local)
        self._take([Degraded(min(self.membership.local), round, part, text)])

    def _end_hung_nodes(self) -> None:
        """Kills processes that hang, or outlive their nodes, so every run ends."""
        hung = self._run_monitor.watchdog.hung(time.monotonic())
        # Reported before the kill, so the reason is the hang and not the signal.
        self._take(chain.from_iterable(hung.values()))
        end_hung([self.membership.pids[position] for position in hung])

    def _show_progress(self, is_last: bool = False) -> None:
        """Writes and shows the evaluations that are complete, and the progress of the nodes."""
        while not self._observer.observations.empty():
            observation = self._observer.observations.get()
            self.evaluations.observations[observation.round] = observation
        if self.evaluations.reports or is_last:
            now = time.monotonic()
            self._rows_due = min(self._rows_due, now + ROWS_INTERVAL)
            is_probable = self.evaluations.is_probably_complete(self.membership.running)
            if is_last or is_probable or now >= self._rows_due:
                self._complete_rows(is_last)
                self._rows_due = now + ROWS_INTERVAL if self.evaluations.reports else NEVER
        self.console.progress(self.membership)

    def _complete_rows(self, is_last: bool) -> None:
        # The coordinator sends its rows to all. Without its last one each machine has what it knows.
        if not (self._cluster.coordinates or is_last):
            return
        remote_lost = self.membership.lost - self.membership.local
        expected, unanswered = self.membership.reporting(), remote_lost
        observed = self._observer.is_alive() and self._observer.error is None
        if is_last:
            # What is there now is all that comes.
            expected, unanswered, observed = {}, set(self.membership.members), False
        rows = self.evaluations.complete(expected, observed, unanswered)
        if self._cluster.coordinates and (rows or is_last):
            self._cluster.send(EvaluationRows(self.machine, rows, is_last))
        self._show_rows(rows)

    def _take_rows(self, rows: EvaluationRows) -> None:
        self._has_all_rows = self._has_all_rows or rows.is_last
        self._show_rows(self.evaluations.adopt(rows.rows))

    def _send_rows(self, arrived: Arrived) -> None:
        """Sends a machine that has come late the rows that it may have missed."""
        save_addresses(self.run_dir, self._cluster.addresses)
        if self._cluster.coordinates:
            rows = [*self.evaluations.rows.values()]
            some = max(1, ROWS_TOGETHER // len(self.membership.members))
            for start in range(0, len(rows), some):
                self._cluster.send(EvaluationRows(self.machine, rows[start : start + some]), arrived.machine)

    def _show_rows(self, rows: Sequence[EvaluationRow]) -> None:
        for row in rows:
            self.console.evaluated(row)
            # Each sees each row, whatever another one wants.
            ends = [
                extension.after_round(row)
                for extension in self._extensions
                if self._cluster.coordinates or not extension.of_coordinator
            ]
            decides = self._cluster.coordinates and self.membership.active and not self._is_ending()
            if any(ends) and decides:
                self._event_log.log(
                    "after_round", f"the run ends after round {row.round + 1}", round=row.round
                )
                self._graceful_stop.finish(row.round)
        if rows:
            self._look_at_target(rows)

    def _look_at_target(self, rows: Collection[EvaluationRow]) -> None:
        """Ends the run if one of these evaluations has reached its target; the coordinator decides."""
        target = self._target
        if target is None or not target.take(rows) or target.reached is None:
            return
        if not self._cluster.coordinates:
            return
        mean, goal = target.metric.text(target.means[target.reached]), target.metric.text(target.value)
        text = f"{target.metric.words} {mean} after round {target.reached + 1} has reached its target, {goal}"
        self._event_log.log("target", text, round=target.reached)
        # In the last round there is nothing to end.
        if self.membership.active:
            self._graceful_stop.finish(target.reached)

    def _log_end_at_target(self) -> None:
        """Records once, on each machine, after which round all nodes end at the target."""
        reached, last = self._graceful_stop.reached, self._heartbeats.last_round
        if reached is None or self._end_is_logged or not self._heartbeats.completes:
            return
        self._end_is_logged = True
        if self._target is not None and self._target.reached is None:
            self._target.reached = reached
        kind, why = ("after_round", "as after_round asked for") if self._target is None else ("target", "")
        why = why or f"because round {reached + 1} has reached the target"
        self._event_log.log(kind, f"all nodes end after round {last + 1}, {why}", round=reached)

    # After the last round.

    def _stop_nodes(self) -> None:
        """Ends the nodes of all machines after one round; kills those that take too long."""
        # Taken before the stop, to report how many of them were killed.
        here = self.membership.local & self.membership.active
        if not self._graceful_stop.is_urgent:
            saved = self._run_state.saved_by_all
            outlook = "No checkpoint exists yet: if nodes are killed, the run is lost."
            outlook = outlook if saved is None else f"After a kill, resume continues at round {saved + 2}."
            most = self._graceful_stop.deadline
            which = "that hang" if isinf(most) else f"that need more than {most:g} s"
            kills = f"Nodes {which} are killed; a second Ctrl-C kills all at once"
            text = f"stopping after the current round. {kills}. {outlook}"
            self._event_log.log("stop", text)
        while self._unresolved() and not self._graceful_stop.is_urgent:
            self._watch(STOP_POLL_INTERVAL)
            if self._graceful_stop.is_overdue:
                self._end_at_once()
        limit = time.monotonic() + Timeouts.killed
        while self.membership.local & self.membership.active and time.monotonic() < limit:
            self._watch(STOP_POLL_INTERVAL)
        killed = here.difference(self.membership.ranks(MemberState.FINISHED, MemberState.STOPPED))
        if killed and self._graceful_stop.is_urgent and self.run_id:
            saved = self._run_state.saved_by_all
            outlook = "no checkpoint of all nodes to resume from (checkpoint.every)"
            outlook = outlook if saved is None else f"resume continues at round {saved + 2}"
            why = "that did not finish in time" if self._graceful_stop.is_overdue else "at the second signal"
            text = f"killed {counted(len(killed), 'node')} {why}; {outlook}"
            self._event_log.log("stop", text)

    def _complete_observations(self) -> None:
        """Completes the observations of all machines; a signal shortens the wait."""
        if not self.run_id:
            return
        self._observer.finish()
        within = Timeouts.last_observation if not self._is_stopping() else Timeouts.stopped_observation
        clock = AwakeClock(POLL_INTERVAL)
        limit = clock.now() + within
        while self._awaits_observations() and not self._graceful_stop.is_urgent:
            # Evaluations end by themselves: an evaluator without progress is killed.
            if clock.now() > limit and not (self._are_evaluating and not self._is_stopping()):
                break
            self._watch(POLL_INTERVAL)
        self._cluster.flush_contributions()
        self._show_progress(is_last=True)
        if self._observer.error is not None or self._observer.is_alive():
            why = repr(self._observer.error or "it was not ready in time")
            self._degrade("observer", f"mean model and consensus distance are not available: {why}")

    def _awaits_observations(self) -> bool:
        """Whether results of the last rounds will still come: from here, or from the coordinator."""
        is_told = self._cluster.coordinates or self._has_all_rows
        return self._observer.is_alive() or self._are_evaluating or not is_told

    @property
    def _are_evaluating(self) -> bool:
        """Whether evaluators here or on a machine that is heard of have something to report."""
        observing, ranks_of = self._cluster.observing, self.experiment.mapping.ranks_of
        ranks = set(chain.from_iterable(map(ranks_of, observing)))
        return self._evaluators.is_busy or self.evaluations.awaits(ranks)

    def _complete_extensions(self) -> None:
        """Waits for what the summary has of extensions, such as the attacks on the last rounds."""
        for extension in self._extensions:
            extension.nodes_ended()
        limit = time.monotonic() + Timeouts.attacks
        for extension in self._extensions:
            # A signal ends the wait.
            while not self._is_stopping() and time.monotonic() < limit and extension.is_busy(POLL_INTERVAL):
                self._watch(0.0)

    def _health(self) -> list[dict[str, Any]]:
        """Returns what happened to everything beside the nodes, in the order of the events."""
        return [msgspec.to_builtins(event) for event in self._incidents.health_events.values()]

    def _sum_up(self, wall: float) -> dict[str, Any]:
        """Writes the summary, and sends the others what they may not know yet."""
        of_extensions = [extension.summary() for extension in self._extensions]
        self._cluster.conclude()
        startup = max(self._startup, self._heartbeats.last_to_begin - self._command)
        unfinished = self.membership.ranks(MemberState.STOPPED, MemberState.LOST)
        saved = self._run_state.saved_by_all if unfinished else None
        summary = summarize(
            experiment=self.experiment,
            membership=self.membership,
            evaluations=self.evaluations,
            run_id=self.run_id,
            startup=startup,
            wall=wall,
            resumable=saved,
            kept_bytes=self._run_state.kept_bytes,
            refused=self._cluster.refused,
            code_changes=self._run_state.code_changes,
            threads=self.threads,
            evaluators_mb=self._evaluators.memory_mb,
            network_text=self.experiment.settings.communication.make().network_text,
            target=self._target,
        )
        for entries in of_extensions:
            summary |= entries
        code = exit_code(self.membership, self._graceful_stop.signal, self._event_log.lost_results)
        summary["exit_code"] = int(code)
        summary["health"] = self._health()
        # A resumed run that did not start keeps its earlier summary.
        has_begun = self.run_id or self._run_state.resume_plan is None
        self._run_monitor.conclude(self.evaluations, summary if has_begun else None)
        for extension in self._extensions:
            extension.finish(lambda: self._graceful_stop.is_urgent)
        if len(health := self._health()) > len(summary["health"]):
            # Writers read the summary, so one that is dropped now came after it.
            summary["health"] = health
            self._run_monitor.conclude(self.evaluations, summary if has_begun else None)
        code = exit_code(self.membership, self._graceful_stop.signal, self._event_log.lost_results)
        self._run_monitor.close(headline(summary, code))
        return summary
