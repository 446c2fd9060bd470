"""A launcher's answer to a status request."""

import time

from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.launcher.monitoring.control_socket import NodeStatus, Status
from decentnode.launcher.monitoring.membership import MembershipTable, MemberState
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.launcher.monitoring.watchdog import DOING, Watchdog
from decentnode.node.experiment import Experiment

MOST_WAITED = 10


class StatusBuilder:
    """Builds the status of every node from membership table, watchdog and straggler tracker."""

    def __init__(
        self,
        experiment: Experiment,
        machine: int,
        membership: MembershipTable,
        watchdog: Watchdog,
        waits: StragglerTracker,
    ) -> None:
        self._experiment = experiment
        self._machine = machine
        self._membership = membership
        self._watchdog = watchdog
        self._waits = waits

    def status(self, began: float) -> Status:
        """The status of the whole run; `began`: when the first round started, 0 before that."""
        now = time.monotonic()
        longest = self._waits.totals.most_common(MOST_WAITED)
        return Status(
            name=self._experiment.settings.name,
            machine=self._machine,
            machines=len(self._experiment.mapping.machines),
            rounds=self._experiment.settings.rounds,
            seconds=round(now - began, 1) if began else 0.0,
            nodes=[self._node(rank, now) for rank in sorted(self._membership.members)],
            waited=[(rank, peer, seconds) for (rank, peer), seconds in longest],
        )

    def _node(self, rank: int, now: float) -> NodeStatus:
        member, seen = self._membership.members[rank], self._watchdog.sighting(rank)
        told = self._waits.current(now).get(rank)
        state = member.state.value
        # A node of another machine is known only from reports; a local one also from its heartbeat.
        if seen is None or member.state not in (MemberState.STARTING, MemberState.RUNNING):
            going_on = member.state is MemberState.RUNNING
            waits_for = told.peers if told and going_on else []
            doing = DOING[Activity.RECEIVE] if waits_for else ""
            seconds = round(now - member.last_report, 1)
            return NodeStatus(rank, state, member.round + going_on, doing, seconds, waits_for, member.loss)
        waits = self._watchdog.waits_for(rank)
        if self._watchdog.is_stuck(rank):
            state = "stuck"
        doing, seconds = self._watchdog.what(rank), round(now - seen.since, 1)
        return NodeStatus(rank, state, seen.round, doing, seconds, waits, member.loss)
