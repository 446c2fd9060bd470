"""What one launcher makes of the others: which of their reports count, and who has fallen silent.

A launcher speaks for the nodes of its own machine alone. Only machine 0 passes on what became of others, and
nobody is told of its own nodes by another. What a listed machine may still say of its nodes is anything.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite

from msgspec.structs import astuple

from decentnode.communication.launcher_link.reports import Exited, Failed, Report, Restarted
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.messages import (
    CheckpointsCommitted,
    HighestRound,
    Join,
    LastRound,
    MeanVector,
    Note,
    PartialDistance,
    PartialSum,
    RelayedReports,
    VectorAck,
)
from decentnode.launcher.monitoring.membership import MembershipTable, MemberState
from decentnode.node.experiment import Experiment

RELAY_INTERVAL = 2.0
"""Seconds between two relays of a launcher; one without reports says that it is alive."""
IDENTITY = "identity"
RANGE = "range"
"""Why a report does not count: it is about another machine's nodes, or about what the run does not have."""

NOBODY = -1
"""Whom reports are about that are meant for the own launcher, as `Ready`: its process ids get signals."""


class RemoteMachines:
    """The other machines of a run, as one launcher hears them."""

    def __init__(
        self, experiment: Experiment, machine: int, membership: MembershipTable,
        last_heard: Mapping[int, float], say: Callable[[str, str], object],
    ) -> None:  # fmt: skip
        """`say` gets events, their kind and text; `last_heard` is kept up to date by somebody else."""
        self.present = set(range(len(experiment.mapping.machines)))
        """Those that are here, this one among them."""
        self.refused: Counter[str] = Counter()
        """Reports that did not count, by reason."""
        self._machine = machine
        self._mapping = experiment.mapping
        self._membership = membership
        self._last_heard = last_heard
        self._last_relay = 0.0
        self._nodes = experiment.graph.num_nodes
        self._sum_bytes = 8 * experiment.layout.numel
        self._rounds = experiment.settings.rounds
        self._machine_of = [experiment.mapping.machine_of(rank) for rank in range(self._nodes)]
        self._carriers = [process.machine for process in experiment.processes]
        self._say = say
        self._told: set[int] = set()

    def reports(self, relay: RelayedReports) -> list[Report]:
        """Those that count; the rest is counted in `refused`."""
        believed = []
        for report in relay.reports:
            reason = self._objection(report, relay.machine)
            if reason:
                self._refuse(relay.machine, reason)
            else:
                believed.append(report)
        return believed

    def forget_silent(self, now: float) -> list[Failed]:
        """On machine 0, takes out who has ended or is silent; returns what is lost by that."""
        lost = []
        for machine in sorted(self.present - {0}) if self._machine == 0 else ():
            active = self._active(machine)
            if not active or now - self._last_heard[machine] > Timeouts.machine_silent:
                self.present.discard(machine)
                self._membership.silence(active)
                lost += [
                    Failed(rank, f"no message from machine {machine} for {Timeouts.machine_silent:.0f} s")
                    for rank in active
                ]
        return lost

    def heard_again(self, notes: Iterable[Note]) -> list[int]:
        """Who was given up, speaks in these, and has nodes to be counted again: such as had only been silent.

        A launcher that only asks to join has none of these nodes: it was started anew.
        """
        speaking = {getattr(note, "machine", 0) for note in notes if not isinstance(note, Join)}
        back = []
        for machine in sorted(speaking - self.present):
            if self._membership.hear_again(self._mapping.ranks_of(machine)):
                self._say("machine_back", f"machine {machine} reconnected; its nodes are active again")
            if self._active(machine):
                back.append(machine)
        return back

    @property
    def pause(self) -> float:
        """Seconds until the next relay is due, or a machine counts as silent; for one machine infinite."""
        if len(self._mapping.machines) == 1:
            return inf
        now = time.monotonic()
        silent = [
            limit
            for m in self._counterparts
            if (limit := self._last_heard[m] + Timeouts.machine_silent) > now
        ]
        return max(0.0, min([self._last_relay + RELAY_INTERVAL, *silent]) - now)

    def is_relay_due(self, has_reports: bool, now: float) -> bool:
        """Whether this launcher has something to relay, or has relayed nothing for long enough."""
        is_due = has_reports or now - self._last_relay >= RELAY_INTERVAL
        self._last_relay = now if is_due else self._last_relay
        return is_due

    @property
    def gone(self) -> list[int]:
        """Ranks that need no checkpoint kept: lost, and not merely unheard for a while."""
        return sorted(
            set(self._membership.ranks(MemberState.LOST)) - self._membership.silent(Timeouts.machine_gone)
        )

    def is_left_alone(self, seconds: float = Timeouts.machine_silent) -> bool:
        """Whether machine 0 has ended, or has not been heard for so long."""
        return self._machine != 0 and time.monotonic() - self._last_heard[0] > seconds

    @property
    def listening(self) -> list[int]:
        """Whom this launcher talks to, and hears: what it tells others waits in memory, at a vector each.

        Also those whose nodes have all finished: they still observe the last round.
        """
        now = time.monotonic()
        return [m for m in self._counterparts if now - self._last_heard[m] <= Timeouts.machine_silent]

    @property
    def _counterparts(self) -> list[int]:
        return [0] if self._machine else [*self._last_heard][1:]

    @property
    def observing(self) -> set[int]:
        """Machines that may show models: their launchers are heard, and not all of their nodes are lost."""
        members = self._membership.members
        can_show = {
            machine
            for machine in self.listening
            if any(members[rank].state is not MemberState.LOST for rank in self._mapping.ranks_of(machine))
        }
        return can_show | {self._machine}

    def _active(self, machine: int) -> list[int]:
        return sorted(set(self._membership.active) & set(self._mapping.ranks_of(machine)))

    def admits(self, note: Note) -> bool:
        """Whether it can be used; what is of rounds or sizes that this run does not have is counted."""
        machine = getattr(note, "machine", 0)
        match note:
            case VectorAck():
                fits = 0 <= note.round < self._rounds
            case HighestRound() | LastRound():
                fits = -1 <= note.round < self._rounds
            case CheckpointsCommitted():
                fits = -1 <= note.round < self._rounds and -1 <= note.kept < self._rounds
            case PartialSum() | PartialDistance():
                fits = 0 <= note.round < self._rounds
                fits = fits and 0 <= note.count <= len(self._mapping.ranks_of(machine))
                if isinstance(note, PartialSum):
                    fits = fits and len(note.content) == (self._sum_bytes if note.count else 0)
            case MeanVector():
                fits = 0 <= note.round < self._rounds and len(note.content) == self._sum_bytes
            case _:
                fits = True
        if not fits:
            self._refuse(machine, RANGE)
        return fits

    def _objection(self, report: Report, machine: int) -> str:
        """Why a report does not count that comes from this machine; empty when it does."""
        if isinstance(report, Restarted | Exited):
            about, carriers = report.process, self._carriers
        else:
            about, carriers = getattr(report, "rank", NOBODY), self._machine_of
        if not 0 <= about < len(carriers) or not self._speaks_for(machine, carriers[about]):
            return IDENTITY
        peers = [*getattr(report, "peers", ()), getattr(report, "peer", 0)]
        is_known = all(0 <= peer < self._nodes for peer in peers)
        is_due = -1 <= getattr(report, "round", 0) <= self._rounds
        is_possible = 0 <= getattr(report, "rounds", 0) <= self._rounds
        is_finite = all(isfinite(told) for told in astuple(report) if isinstance(told, float))
        return "" if is_known and is_due and is_possible and is_finite else RANGE

    def _speaks_for(self, machine: int, other: int) -> bool:
        return other != self._machine if machine == 0 else other == machine

    def _refuse(self, machine: int, reason: str) -> None:
        self.refused[reason] += 1
        if machine not in self._told:
            self._told.add(machine)
            about = "nodes of other machines" if reason == IDENTITY else "what the run does not have"
            self._say("refused", f"ignored reports from machine {machine} about {about}")
