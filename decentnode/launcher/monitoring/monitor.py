"""The launcher's monitoring: records events, answers requests, and finds hung nodes."""

import time
from math import inf
from pathlib import Path
from socket import socket
from typing import Any

from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard
from decentnode.communication.launcher_link.reports import Failed, Report
from decentnode.core.polling import ready
from decentnode.core.streams import log_name
from decentnode.core.text import counted
from decentnode.launcher.memory_estimate import MemoryEstimate
from decentnode.launcher.monitoring.alarm import Alarm
from decentnode.launcher.monitoring.control_socket import ControlServer, NodeStatus, Requests, Status
from decentnode.launcher.monitoring.event_log import EventLog
from decentnode.launcher.monitoring.membership import MembershipTable, MemberState
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.launcher.monitoring.watchdog import DOING, Watchdog
from decentnode.launcher.report.summary import EvaluationLog
from decentnode.node.experiment import Experiment
from decentnode.results.records import write_atomically

MOST_WAITED = 10
FILENO = socket.fileno


class RunMonitor:
    """One machine's monitor; `open` and `begin` start it."""

    def __init__(
        self, experiment: Experiment, machine: int, run_dir: Path, heartbeats: HeartbeatBoard,
        membership: MembershipTable, event_log: EventLog,
    ) -> None:  # fmt: skip
        self.pids: dict[int, int] = {}
        """Process ids of the local host processes that are ready, by position."""
        self.waits = StragglerTracker()
        self.alarm = Alarm()
        """Ends `wait`."""
        own = {i: p.ranks for i, p in enumerate(experiment.processes) if p.machine == machine}
        timeouts = experiment.settings.failures.timeouts
        self.watchdog = Watchdog(heartbeats, membership, own, timeouts, self.pids.get)
        self._event_log = event_log
        self._experiment = experiment
        self._membership = membership
        self._machine = machine
        self._run_dir = run_dir
        self.memory = MemoryEstimate(experiment, machine)
        self._control: ControlServer | None = None
        self._began = 0.0

    def open(self, socket_dir: str, requests: Requests) -> None:
        """Opens the control socket, also for these requests; the run continues without one if that fails."""
        if self.memory.shortage:
            self._event_log.say("memory", self.memory.shortage)
        # Answered from what the launcher knows, so a request never delays a node.
        requests = {"status": lambda _: self._status(), **requests}
        try:
            self._control = ControlServer(self._run_dir, socket_dir, self._machine, requests)
        except OSError as error:
            self._event_log.say("disk", f"{self._run_dir}: its status cannot be asked for: {error.strerror}")

    def begin(self, began: float) -> None:
        """Records the start signal."""
        self._began = began
        self._event_log.record("started", f"{self._experiment.settings.name}: the first round begins")

    def wait(self, fds: list[int], timeout: float) -> None:
        """Waits for input, the alarm, or the next check of the watchdog; answers requests meanwhile."""
        control, fds = self._control, [*fds, self.alarm.fd]
        until = min(self.watchdog.next_look if self._began else inf, control.next_due if control else inf)
        timeout = min(timeout, max(0.0, until - time.monotonic()))
        if control is None:
            ready(fds, seconds=timeout)
        else:
            ready([*fds, *map(FILENO, control.readers)], map(FILENO, control.writers), timeout)
            control.serve()
        # Cleared before the caller checks for causes, so no ring is missed.
        self.alarm.clear()

    def look(self) -> list[Report]:
        """New reports of the watchdog."""
        return self.watchdog.look(time.monotonic()) if self._began else []

    def tell_loss(self, rank: int) -> None:
        """Records that a node is lost, and shows it unless the run was asked to stop."""
        seen, member = self.watchdog.sighting(rank), self._membership.members[rank]
        where = "" if seen else f" on machine {self._experiment.mapping.machine_of(rank)}"
        log = f"; its log: {self.log(rank)}" if seen else ""
        text = f"rank {rank}{where} is lost: {member.error.removeprefix(f'rank {rank}, ')}{log}"
        round = max(seen.round if seen else member.round, 0)
        self._event_log.say_unless_stopping("node_lost", text, rank, round)

    def tell_waits(self) -> None:
        """Shows stragglers that others have waited for long enough.

        Call it after all reports of a check, because a node that waits is no straggler.
        """
        for delay in () if self._event_log.is_stopping() else self.waits.news(time.monotonic()):
            self._event_log.say("waiting", delay.text, delay.rank, delay.round, delay.peer)

    def log(self, rank: int) -> Path:
        """The log of a node's process."""
        process = self._experiment.processes[self._experiment.home[rank]]
        return self._run_dir / log_name(process.ranks[0])

    def verdicts(self, position: int) -> list[Failed]:
        """Reports about the nodes of a process that hangs and is killed now."""
        ranks = set(self._experiment.processes[position].ranks) & set(self._membership.active)
        now = time.monotonic()
        why = {rank: self.watchdog.doing(rank, now) for rank in sorted(ranks)}
        return [Failed(rank, f"hung ({doing}) and was killed") for rank, doing in why.items()]

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
            self._event_log.say("disk", problem)
        if self._event_log.lost_results:
            files = counted(len(self._event_log.lost_results), "file")
            self._event_log.say("disk", f"{self._run_dir}: {files} of the results could not be written whole")

    def close(self, last_word: str = "") -> None:
        """Closes control socket and event log; `last_word`: how the run ended."""
        if last_word:
            # First: a client that finds no socket reads here how the run ended.
            self._event_log.record("ended", last_word)
        if self._control is not None:
            self._control.close()
            self._control = None
        self._event_log.close()

    def _status(self) -> Status:
        now, settings = time.monotonic(), self._experiment.settings
        longest = self.waits.totals.most_common(MOST_WAITED)
        return Status(
            name=settings.name,
            machine=self._machine,
            machines=len(self._experiment.mapping.machines),
            rounds=settings.rounds,
            seconds=round(now - self._began, 1) if self._began else 0.0,
            nodes=[self._node_status(rank, now) for rank in sorted(self._membership.members)],
            waited=[(rank, peer, seconds) for (rank, peer), seconds in longest],
        )

    def _node_status(self, rank: int, now: float) -> NodeStatus:
        member, seen = self._membership.members[rank], self.watchdog.sighting(rank)
        # A node of another machine is known only from reports; a local one also from its heartbeat.
        if seen is None or not member.is_active:
            going_on = member.state is MemberState.RUNNING
            told = self.waits.current(now).get(rank)
            waits_for = told.peers if told and going_on else []
            doing = DOING[Activity.RECEIVE] if waits_for else ""
            seconds = round(now - member.last_report, 1)
            return NodeStatus(
                rank, member.state, member.round + going_on, doing, seconds, waits_for, member.loss
            )
        state = "stuck" if self.watchdog.is_stuck(rank) else member.state
        # The node may have begun it after `now`.
        doing, seconds = self.watchdog.what(rank), max(0.0, round(now - seen.since, 1))
        return NodeStatus(rank, state, seen.round, doing, seconds, self.watchdog.waits_for(rank), member.loss)
