"""What a launcher answers when it is asked where its run is."""

import time

from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.launcher.monitoring.control_socket import NodeStatus, Status
from decentnode.launcher.monitoring.membership import MembershipTable, MemberState
from decentnode.launcher.monitoring.stragglers import StragglerTracker
from decentnode.launcher.monitoring.watchdog import DOING, Watchdog
from decentnode.node.experiment import Experiment

MOST_WAITED = 10


class StatusBuilder:
    """Puts together what the roster, the lookout and the waits know of every node."""

    def __init__(
        self,
        experiment: Experiment,
        machine: int,
        roster: MembershipTable,
        lookout: Watchdog,
        waits: StragglerTracker,
    ) -> None:
        self._experiment = experiment
        self._machine = machine
        self._roster = roster
        self._lookout = lookout
        self._waits = waits

    def status(self, began: float) -> Status:
        """The whole run; `began`: when the first round did, 0 before that."""
        now = time.monotonic()
        longest = self._waits.totals.most_common(MOST_WAITED)
        return Status(
            name=self._experiment.settings.name,
            machine=self._machine,
            machines=len(self._experiment.mapping.machines),
            rounds=self._experiment.settings.rounds,
            seconds=round(now - began, 1) if began else 0.0,
            nodes=[self._node(rank, now) for rank in sorted(self._roster.members)],
            waited=[(rank, peer, seconds) for (rank, peer), seconds in longest],
        )

    def _node(self, rank: int, now: float) -> NodeStatus:
        member, seen = self._roster.members[rank], self._lookout.sighting(rank)
        told = self._waits.current(now).get(rank)
        state = member.state.value
        if seen is None or member.state not in (MemberState.STARTING, MemberState.RUNNING):
            going_on = member.state is MemberState.RUNNING
            waits_for = told.peers if told and going_on else []
            doing = DOING[Activity.RECEIVE] if waits_for else ""
            seconds = round(now - member.last_report, 1)
            return NodeStatus(rank, state, member.round + going_on, doing, seconds, waits_for, member.loss)
        waits = self._lookout.waits_for(rank)
        if self._lookout.is_stuck(rank):
            state = "stuck"
        doing, seconds = self._lookout.what(rank), round(now - seen.since, 1)
        return NodeStatus(rank, state, seen.round, doing, seconds, waits, member.loss)
