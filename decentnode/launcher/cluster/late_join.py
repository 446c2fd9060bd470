"""Machines that join after the start, or again, and nodes restarted on request."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from decentnode.communication.launcher_link.reports import Failed, Report, Restarted
from decentnode.config.consistency import why_not_taken_back
from decentnode.core.text import how_it_ended, ranks_in_words
from decentnode.core.timeouts import Timeouts
from decentnode.errors import RunFailed
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.processes.fork_server import INCARNATIONS, ForkServer
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.messages import Join, RelayedReports, Start
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.experiment import Experiment

RESTART = "restart"
"""The name of the request."""
MOST_RANKS = 8
MOST_TIMES = 15
"""How often a machine may join after the start: the incarnations of its processes have 8 bits."""


@dataclass
class LateJoin:
    """One launcher's part in late joins and restarts."""

    experiment: Experiment
    machine: int
    membership: MembershipTable
    rendezvous: Rendezvous
    identity: RunIdentity
    is_stopping: Callable[[], bool]
    """Whether the run was asked to stop."""
    server: ForkServer | None = None
    """The fork server of this machine; None before the first round."""
    _times: Counter[int] = field(default_factory=Counter)
    """How often each machine has joined after the start; known to machine 0."""
    _incarnations: Counter[int] = field(default_factory=Counter)
    """By position the highest known incarnation of a host process."""

    def begin(self, start: Start, server: ForkServer, signal: int) -> None:
        """Starts the local nodes: with the start signal, or as restarted nodes if the run is in progress."""
        self.server = server
        machine_of = self.experiment.mapping.machine_of
        self.identity.absent = {rank for rank in self.membership.members if machine_of(rank) in start.absent}
        positions = self._positions(self.machine)
        if not start.late:
            os.eventfd_write(signal, len(positions))
        for position in positions if start.late else ():
            self._incarnations[position] = INCARNATIONS * start.late
            # The processes wait for a start signal that never comes here; rejoining ones replace them.
            server.restart(position, INCARNATIONS * start.late)

    def answer(self, join: Join) -> list[Report]:
        """Admits a machine that joins after the start, or refuses it alone.

        Returns the reports about its nodes; empty if it is refused.
        """
        machine, mapping = join.machine, self.experiment.mapping
        # A Join of a launcher that has received the start is a late repetition.
        if self.machine or not self.rendezvous.is_newcomer(machine):
            return []
        active = set(self.membership.active)
        others = [m for m in range(len(mapping.machines)) if m not in (0, machine)]
        # Nodes of a silent launcher may still run; absent ranks are never connected to.
        there = active | self.membership.silent(Timeouts.machine_gone)
        absent = [m for m in others if there.isdisjoint(mapping.ranks_of(m))]
        times = self._times[machine] + 1
        objection = self._objection(machine, times)
        if not self.rendezvous.admit(join, times, absent, objection, seconds=self.identity.seconds):
            return []
        # A refused attempt does not count.
        self._times[machine] = times
        gone = [Failed(r, "its machine was started again") for r in mapping.ranks_of(machine) if r in active]
        back = [Restarted(position, None, INCARNATIONS * times) for position in self._positions(machine)]
        # The other launchers must expect its nodes before the nodes report.
        for other in others:
            self.rendezvous.send(RelayedReports(0, list(back)), other)
        return [*gone, *back]

    def _objection(self, machine: int, times: int) -> str:
        """Why a machine cannot take part any more; empty if it can."""
        ranks = self.experiment.mapping.ranks_of(machine)
        ended = (MemberState.FINISHED, MemberState.STOPPED)
        objections = {
            "the run was asked to stop": self.is_stopping(),
            f"machine {machine} has finished": all(self.membership.members[r].state in ended for r in ranks),
            f"machine {machine} has joined {MOST_TIMES} times, the limit": times > MOST_TIMES,
        }
        scheme = why_not_taken_back(self.experiment.settings.sharing.make(), self.experiment.gradient_sync)
        return scheme or next((reason for reason, holds in objections.items() if holds), "")

    def _positions(self, machine: int) -> list[int]:
        return [i for i, process in enumerate(self.experiment.processes) if process.machine == machine]

    def note(self, report: Restarted) -> dict[int, str]:
        """Records a restarted host process; returns the lines about it, by rank."""
        process = self.experiment.processes[report.process]
        self._incarnations[report.process] = report.attempt
        # From here on new and restarted nodes connect to it.
        self.identity.absent -= set(process.ranks)
        # A multiple is the first process of a late machine, not a restart.
        if report.attempt % INCARNATIONS == 0:
            machine = self.experiment.mapping.describe(process.machine)
            return {} if process.index else {process.ranks[0]: f"{machine} comes after the start"}
        again = "started again"
        if report.status is not None:
            attempts = self.experiment.settings.failures.restart.attempts
            again = f"{how_it_ended(report.status)}; {again} ({report.attempt % INCARNATIONS} of {attempts})"
        return {rank: f"rank {rank}: {again}" for rank in process.ranks}

    def restart(self, argument: str) -> str:
        """Restarts the host process of a rank for `decentnode restart`; raises RunFailed."""
        experiment, nodes = self.experiment, self.experiment.graph.num_nodes
        if not argument.isdecimal() or int(argument) >= nodes:
            raise RunFailed(f"restart: must be a rank, 0..{nodes - 1}, not '{argument[:20]}'")
        rank = int(argument)
        position, machine = experiment.home[rank], experiment.mapping.machine_of(rank)
        # Only its own launcher has the fork server of that process.
        if machine != self.machine:
            where = f"machine {machine} ({experiment.mapping.address(machine)})"
            raise RunFailed(f"rank {rank} is on {where}; run the command there")
        if reason := why_not_taken_back(experiment.settings.sharing.make(), experiment.gradient_sync):
            raise RunFailed(f"rank {rank}: {reason}")
        ranks = experiment.processes[position].ranks
        states = {other: self.membership.members[other].state for other in ranks}
        others = [other for other, state in states.items() if state is not MemberState.LOST]
        if rank in others:
            word = "is" if states[rank] in (MemberState.RUNNING, MemberState.STARTING) else "has"
            raise RunFailed(f"rank {rank} {word} {states[rank]}")
        # A restart replaces the whole process, with all its nodes.
        if others:
            named = ranks_in_words(others, MOST_RANKS)
            raise RunFailed(f"rank {rank} shares its process with {named}, which would have to end for it")
        incarnation = self._incarnations[position] + 1
        if self.server is None or self.is_stopping():
            raise RunFailed("no node is started again before the first round, or when the run is to stop")
        # The next number belongs to the next late join of this machine.
        if incarnation % INCARNATIONS == 0:
            raise RunFailed(f"rank {rank} was started again {INCARNATIONS - 1} times, the limit")
        self.server.restart(position, incarnation)
        return f"{ranks_in_words(ranks, MOST_RANKS)}: started again"
