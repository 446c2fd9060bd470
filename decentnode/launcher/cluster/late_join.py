"""Machines that join after the start, or again: machine 0 admits them, or refuses them alone."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decentnode.communication.base import HostProcess
from decentnode.communication.launcher_link.reports import Failed, Report, Restarted
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.processes.fork_server import INCARNATIONS
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.messages import Join, RelayedReports
from decentnode.mapping.base import Mapping

MOST_TIMES = 15
"""How often a machine may join after the start: the incarnations of its processes have 8 bits."""


@dataclass(kw_only=True)
class LateJoin:
    """The answers of machine 0; another machine has none."""

    machine: int
    mapping: Mapping
    processes: Sequence[HostProcess]
    membership: MembershipTable
    rendezvous: Rendezvous
    run_seconds: Callable[[], float]
    """Seconds since the start of the run."""
    is_stopping: Callable[[], bool]
    """Whether the run was asked to stop."""
    why_not_taken_back: str
    """Why lost nodes cannot rejoin; empty if they can."""
    _times: Counter[int] = field(default_factory=Counter)
    """How often each machine has joined after the start."""

    def answer(self, join: Join) -> list[Report]:
        """Admits a machine that joins after the start, or refuses it.

        Returns the reports about its nodes; empty if it is refused.
        """
        machine, mapping = join.machine, self.mapping
        # A Join of a launcher that has received the start is a late repetition.
        if self.machine or not self.rendezvous.is_newcomer(machine):
            return []
        active = self.membership.active
        others = [m for m in range(len(mapping.machines)) if m not in (0, machine)]
        # Nodes of a silent launcher may still run; absent ranks are never connected to.
        there = active | self.membership.silent(Timeouts.machine_lost)
        absent = [m for m in others if there.isdisjoint(mapping.ranks_of(m))]
        times = self._times[machine] + 1
        objection = self._objection(machine, times)
        if not self.rendezvous.admit(join, times, absent, objection, seconds=self.run_seconds()):
            return []
        # A refused attempt does not count.
        self._times[machine] = times
        lost = [Failed(r, "its machine was started again") for r in mapping.ranks_of(machine) if r in active]
        positions = [i for i, process in enumerate(self.processes) if process.machine == machine]
        back = [Restarted(position, None, INCARNATIONS * times) for position in positions]
        # The other launchers must expect its nodes before the nodes report.
        for other in others:
            self.rendezvous.send(RelayedReports(0, list(back)), other)
        return [*lost, *back]

    def _objection(self, machine: int, times: int) -> str:
        """Returns why a machine cannot take part any more; an empty text if it can."""
        ended = (MemberState.FINISHED, MemberState.STOPPED)
        states = {self.membership.members[rank].state for rank in self.mapping.ranks_of(machine)}
        objections = {
            "the run was asked to stop": self.is_stopping(),
            f"machine {machine} has finished": states.issubset(ended),
            f"machine {machine} has joined {MOST_TIMES} times, the limit": times > MOST_TIMES,
        }
        return self.why_not_taken_back or next((reason for reason, holds in objections.items() if holds), "")
