"""The launcher's watch over its nodes: what happens is kept, who asks is answered, who hangs is found."""

import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from socket import socket
from typing import Any

from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Failed, Report, Restarted, Stuck, Waiting
from decentnode.core.polling import ready
from decentnode.core.streams import log_name
from decentnode.core.text import counted
from decentnode.launcher.memory_estimate import MemoryEstimate
from decentnode.launcher.monitoring.alarm import Alarm
from decentnode.launcher.monitoring.control_socket import ControlServer
from decentnode.launcher.monitoring.event_log import EventLog
from decentnode.launcher.monitoring.membership import MembershipTable
from decentnode.launcher.monitoring.status import StatusBuilder
from decentnode.launcher.monitoring.watchdog import Watchdog
from decentnode.launcher.report.summary import EvaluationLog
from decentnode.node.experiment import Experiment
from decentnode.results.records import write_atomically

EVENTS = "events.jsonl"
FILENO = socket.fileno


class RunMonitor:
    """One machine's; nothing is opened and nothing is looked at before it is asked to."""

    def __init__(
        self, experiment: Experiment, machine: int, run_dir: Path, heartbeats: HeartbeatBoard,
        membership: MembershipTable, pid_of: Callable[[int], int | None], show: Callable[[str], object],
    ) -> None:  # fmt: skip
        """`pid_of` gives a host process's number by its position; `show` gets lines for the screen."""
        self.event_log = EventLog(run_dir / EVENTS, show)
        self.alarm = Alarm()
        """Ends the waiting."""
        own = {i: p.ranks for i, p in enumerate(experiment.processes) if p.machine == machine}
        settings, graph = experiment.settings, experiment.graph.graph
        self.watchdog = Watchdog(
            graph, heartbeats, membership, own, settings.failures.timeouts, pid_of, settings.overlap
        )
        self._experiment = experiment
        self._membership = membership
        self._machine = machine
        self._run_dir = run_dir
        self._memory = MemoryEstimate(experiment, machine)
        self._status_builder = StatusBuilder(
            experiment, machine, membership, self.watchdog, self.event_log.waits
        )
        self._control: ControlServer | None = None
        self._began = 0.0

    def open(self, socket_dir: str) -> None:
        """Lets others ask from here on; a run that cannot be asked is a run all the same."""
        if self._memory.shortage:
            self.event_log.say("memory", self._memory.shortage)
        requests = {"status": lambda _: self._status_builder.status(self._began)}
        try:
            self._control = ControlServer(self._run_dir, socket_dir, self._machine, requests)
        except OSError as error:
            self.event_log.say("disk", f"{self._run_dir}: its status cannot be asked for: {error.strerror}")

    def add_request(self, name: str, answer: Callable[[str], Any]) -> None:
        """Has the control socket answer one more kind of question."""
        if self._control is not None:
            self._control.requests[name] = answer

    def begin(self, began: float) -> None:
        """The nodes have been given the start."""
        self._began = began
        self.event_log.record("started", f"{self._experiment.settings.name}: the first round begins")

    def wait(self, fds: list[int], timeout: float) -> None:
        """Waits for input of these, or for the alarm, until the next look; answers whoever asks meanwhile."""
        control, fds = self._control, [*fds, self.alarm.fd]
        until = min(self.watchdog.next_look if self._began else inf, control.next_due if control else inf)
        timeout = min(timeout, max(0.0, until - time.monotonic()))
        if control is None:
            ready(fds, seconds=timeout)
        else:
            ready([*fds, *map(FILENO, control.readers)], map(FILENO, control.writers), timeout)
            control.serve()
        self.alarm.clear()

    def complete(self, reports: Iterable[Report]) -> list[Report]:
        """The reports of the nodes, explained where memory has run out, and what is seen from outside."""
        explained = [more for report in reports for more in self._memory.explain(report)]
        return [*explained, *(self.watchdog.look(time.monotonic()) if self._began else ())]

    def take(self, report: Report, stopping: bool) -> None:
        """Keeps and shows what a report of any machine tells; `stopping`: somebody wants the run to end."""
        self.event_log.quiet = stopping
        self.event_log.take(report)
        if not isinstance(report, Stuck | Waiting):
            self.watchdog.look_soon()
        if isinstance(report, Restarted):
            self.watchdog.begin_anew(report.process)

    def tell_waits(self, stopping: bool) -> None:
        """Says who holds others up; once all waits of a look are in: who waits itself is no cause."""
        if not stopping:
            self.event_log.tell_waits()

    def lost(self, rank: int, stopping: bool) -> None:
        """Keeps that a node is lost, and shows it unless somebody wants the run to end."""
        seen, member = self.watchdog.sighting(rank), self._membership.members[rank]
        where = "" if seen else f" on machine {self._experiment.mapping.machine_of(rank)}"
        log = f"; its log: {self.log(rank)}" if seen else ""
        text = f"rank {rank}{where} is lost: {member.error.removeprefix(f'rank {rank}, ')}{log}"
        round = max(seen.round if seen else member.round, 0)
        (self.event_log.record if stopping else self.event_log.say)("node_lost", text, rank, round)

    def log(self, rank: int) -> Path:
        """Where the process of a node writes what it prints."""
        process = next(p for p in self._experiment.processes if rank in p.ranks)
        return self._run_dir / log_name(process.ranks[0])

    def hung(self) -> dict[int, list[Failed]]:
        """What is to be said of processes that are to be killed now."""
        return {position: self._verdicts(position) for position in self.watchdog.hung()}

    def _verdicts(self, position: int) -> list[Failed]:
        ranks = set(self._experiment.processes[position].ranks) & set(self._membership.active)
        now = time.monotonic()
        why = {rank: self.watchdog.doing(rank, now) for rank in sorted(ranks)}
        return [Failed(rank, f"hung ({doing}) and was ended") for rank, doing in why.items()]

    def conclude(self, evaluations: EvaluationLog, summary: dict[str, Any] | None) -> None:
        """Writes what is left of the results, and says what could not be written; None: no summary."""
        for problem in filter(None, [evaluations.close(), self._save(summary) if summary else ""]):
            self.event_log.lost_results.append(problem)
            self.event_log.say("disk", problem)
        if self.results_are_lost:
            files = counted(len(self.event_log.lost_results), "file")
            self.event_log.say("disk", f"{self._run_dir}: {files} of the results could not be written whole")

    def close(self, last_word: str = "") -> None:
        """Takes no more questions and keeps no more events; `last_word`: how the run ended."""
        if last_word:
            # First: who finds nobody to ask reads here how it ended.
            self.event_log.record("ended", last_word)
        if self._control is not None:
            self._control.close()
            self._control = None
        self.event_log.close()

    @property
    def results_are_lost(self) -> bool:
        """Whether something of the results could not be written in the end."""
        return bool(self.event_log.lost_results)

    def _save(self, summary: dict[str, Any]) -> str:
        path = self._run_dir / "summary.json"
        try:
            write_atomically(path, summary)
        except OSError as error:
            return f"{path} cannot be written: {error.strerror}"
        return ""
