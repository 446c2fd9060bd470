"""The launcher's monitoring: records events, answers requests, and finds hung nodes."""

import contextlib
import os
import time
from math import inf
from pathlib import Path
from typing import Any

from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard
from decentnode.communication.launcher_link.reports import Report
from decentnode.config.settings import Settings
from decentnode.core.polling import ready
from decentnode.core.text import counted
from decentnode.formats.records import write_atomically
from decentnode.launcher.monitoring.control_socket import ControlServer, NodeStatus, Requests, Status
from decentnode.launcher.monitoring.memory_estimate import MemoryEstimate
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.launcher.monitoring.watchdog import DOING, Behind, Watchdog
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.evaluation_log import EvaluationLog
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable, MemberState

MOST_WAITED = 10


class RunMonitor:
    """One machine's monitor; `open` and `begin` start it."""

    def __init__(
        self,
        *,
        settings: Settings,
        machine: int,
        machines: int,
        run_dir: Path,
        heartbeats: HeartbeatBoard,
        membership: MembershipTable,
        event_log: EventLog,
        memory_estimate: MemoryEstimate,
    ) -> None:
        """`machines`: how many the run has."""
        self.stragglers = StragglerTracker()
        self.memory_estimate = memory_estimate
        limits = settings.failures.timeouts
        self.watchdog = Watchdog(
            heartbeats, membership, limits, memory_estimate.needed, are_scripts=settings.is_of_scripts
        )
        # Before the first round nothing is checked.
        self.watchdog.next_check = inf
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._settings = settings
        self._membership = membership
        self._event_log = event_log
        self._machine, self._machines = machine, machines
        self._run_dir = run_dir
        self._control: ControlServer | None = None
        self._began = 0.0

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers watchdog and stragglers."""
        self.watchdog.register(dispatcher)
        self.stragglers.register(dispatcher)

    def open(self, socket_dir: str, requests: Requests) -> None:
        """Opens the control socket, also for these requests; the run continues without one if that fails."""
        if self.memory_estimate.shortage:
            self._event_log.log("memory", self.memory_estimate.shortage)
        # Answered from what the launcher knows, so a request never delays a node.
        requests = {"status": lambda _: self._status(), **requests}
        try:
            self._control = ControlServer(self._run_dir, socket_dir, self._machine, requests)
        except OSError as error:
            self._event_log.log("disk", f"{self._run_dir}: its status cannot be asked for: {error.strerror}")

    def begin(self, began: float) -> None:
        """Records the start signal."""
        self._began, self.watchdog.next_check = began, 0.0
        text = f"{self._settings.name}: the first round begins"
        self._event_log.log("started", text, shown=False)

    def wake(self) -> None:
        """Ends `wait`, or the next one; safe in a signal handler and in any thread."""
        os.eventfd_write(self._alarm, 1)

    def wait(self, fds: list[int], timeout: float) -> None:
        """Waits for input, the alarm, or the next check of the watchdog; answers requests meanwhile."""
        control, fds = self._control, [*fds, self._alarm]
        until = min(self.watchdog.next_check, control.next_due if control else inf)
        timeout = min(timeout, max(0.0, until - time.monotonic()))
        if control is None:
            ready(fds, seconds=timeout)
        else:
            ready([*fds, *control.readers], control.writers, timeout)
            control.serve()
        # Cleared before the caller checks for causes, so no wake-up is missed.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._alarm)

    def conclude(self, evaluations: EvaluationLog, summary: dict[str, Any] | None) -> None:
        """Writes the rest of the results, and reports what could not be written; None: no summary."""
        problems, path = [evaluations.close()], self._run_dir / "summary.json"
        try:
            if summary:
                write_atomically(path, summary)
        except OSError as error:
            problems.append(f"{path} cannot be written: {error.strerror}")
        for problem in filter(None, problems):
            self._event_log.lost_results.append(problem)
            self._event_log.log("disk", problem)
        if self._event_log.lost_results:
            files = counted(len(self._event_log.lost_results), "file")
            self._event_log.log("disk", f"{self._run_dir}: {files} of the results could not be written whole")

    def close(self, last_word: str = "") -> None:
        """Closes control socket and event log; `last_word`: how the run ended."""
        if last_word:
            # First: a client that finds no socket reads here how the run ended.
            self._event_log.log("ended", last_word, shown=False)
        if self._control is not None:
            self._control.close()
            self._control = None
        self._event_log.close()

    def _status(self) -> Status:
        now, settings = time.monotonic(), self._settings
        longest, behind = self.stragglers.totals.most_common(MOST_WAITED), Behind()
        return Status(
            name=settings.name,
            machine=self._machine,
            machines=self._machines,
            rounds=settings.rounds,
            seconds=round(now - self._began, 1) if self._began else 0.0,
            nodes=[self._node_status(rank, now, behind) for rank in sorted(self._membership.members)],
            waited=[(rank, peer, seconds) for (rank, peer), seconds in longest],
        )

    def _node_status(self, rank: int, now: float, behind: Behind) -> NodeStatus:
        member, beat = self._membership.members[rank], self._membership.heartbeats.get(rank)
        # A node of another machine is known only from reports; a local one also from its heartbeat.
        if beat is None or not member.is_active:
            is_running = member.state is MemberState.RUNNING
            waiting = self.stragglers.current(now).get(rank)
            waits_for = waiting.peers if waiting and is_running else []
            doing = DOING[Activity.RECEIVE] if waits_for else ""
            seconds = round(now - member.last_report, 1)
            return NodeStatus(
                rank=rank,
                state=member.state,
                round=member.round + is_running,
                doing=doing,
                seconds=seconds,
                waits_for=waits_for,
                loss=member.loss,
                is_here=beat is not None,
            )
        seen = beat.read()
        state = "stuck" if self.watchdog.is_stuck(rank) else member.state
        # The node may have begun it after `now`.
        doing, seconds = self.watchdog.activity_of(rank), max(0.0, round(now - seen.since, 1))
        return NodeStatus(
            rank=rank,
            state=state,
            round=seen.round,
            doing=doing,
            seconds=seconds,
            waits_for=self.watchdog.waits_for(rank, behind),
            loss=member.loss,
        )
