"""Machines that join after the start, or again: one machine of the run admits them, or refuses them alone."""

from collections.abc import Callable
from dataclasses import dataclass

from decentnode.config.settings import FailureSettings
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.messages import Join, Presence, Start
from decentnode.mapping.base import Mapping

MOST_TIMES = 15
"""How often a machine may join after the start: the incarnations of its processes have 8 bits."""


@dataclass(kw_only=True)
class LateJoin:
    """The answers of one machine, while it is the one that answers."""

    machine: int
    mapping: Mapping
    membership: MembershipTable
    rendezvous: Rendezvous
    failures: FailureSettings
    run_seconds: Callable[[], float]
    """Seconds since the start of the run."""
    is_stopping: Callable[[], bool]
    """Whether the run was asked to stop."""
    why_not_taken_back: str
    """Why lost nodes cannot rejoin; empty if they can."""
    _order: int = 0
    """The number of the last late join."""

    def answer(self, join: Join, presences: dict[int, Presence]) -> None:
        """Admits a machine that joins after the start, or refuses it.

        `presences`: the machines that have come so far.
        """
        machine, active = join.machine, self.membership.active
        # Nodes of a silent launcher may still run; absent ranks are never connected to.
        there = active | self.membership.silent(Timeouts.machine_lost)
        others = set(range(len(self.mapping.machines))) - {self.machine, machine}
        absent = sorted(m for m in others if there.isdisjoint(self.mapping.ranks_of(m)))
        late = presences.get(machine, Presence()).joins + 1
        # A number of its own, also if another machine was admitted that has not arrived yet.
        self._order = 1 + max(self._order, *(presence.order for presence in presences.values()))
        start = Start(
            0, absent=absent, late=late, presences={**presences, machine: Presence(late, self._order)},
            addresses={**self.rendezvous.addresses, machine: join.address} if join.address else {},
            seconds=self.run_seconds(), machine=self.machine,
        )  # fmt: skip
        # The same command starts the next run of the job: it waits for the end of this one.
        waits = join.or_resume and self._is_ending
        self.rendezvous.admit(join, start, self._objection(machine, late), waits)

    @property
    def _is_ending(self) -> bool:
        """Whether the run ends before its last round: by a signal, or because a machine was lost."""
        return self.is_stopping() or self.failures.on_loss == "stop" or bool(self.why_not_taken_back)

    def _objection(self, machine: int, late: int) -> str:
        """Returns why a machine cannot take part any more; an empty text if it can."""
        ended = (MemberState.FINISHED, MemberState.STOPPED)
        states = {self.membership.members[rank].state for rank in self.mapping.ranks_of(machine)}
        objections = {
            "the run was asked to stop": self.is_stopping(),
            f"machine {machine} has finished": states.issubset(ended),
            "failures.on_loss: stop ends the run without it": self.failures.on_loss == "stop",
            f"machine {machine} has joined {MOST_TIMES} times, the limit": late > MOST_TIMES,
        }
        return self.why_not_taken_back or next((reason for reason, holds in objections.items() if holds), "")
