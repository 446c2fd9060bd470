"""Host processes that are started again: on request, after a failure, or on a machine that joins late."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decentnode.communication.base import HostProcess
from decentnode.communication.launcher_link.reports import Report, Restarted
from decentnode.core.text import how_it_ended, ranks_in_words
from decentnode.errors import RunFailed
from decentnode.launcher.processes.fork_server import INCARNATIONS, ProcessServer, restarts_of
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.messages import Start
from decentnode.mapping.base import Mapping
from decentnode.node.checkpoint.node_checkpoints import RunIdentity

RESTART = "restart"
"""The name of the request."""
MOST_RANKS = 8


@dataclass(kw_only=True)
class Restarts:
    """The incarnations of all host processes, as one launcher knows them."""

    machine: int
    mapping: Mapping
    processes: Sequence[HostProcess]
    membership: MembershipTable
    event_log: EventLog
    identity: RunIdentity
    attempts: int
    """How often a process is started again by itself (failures.restart.attempts)."""
    why_not_taken_back: str
    """Why lost nodes cannot rejoin; empty if they can."""
    is_stopping: Callable[[], bool]
    """Whether the run was asked to stop."""
    server: ProcessServer | None = None
    """The fork server of this machine; None before the first round."""
    _incarnations: Counter[int] = field(default_factory=Counter)
    """By position the highest known incarnation of a host process."""

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for processes that are started again, on any machine."""
        dispatcher.register(Restarted, self._note)

    def begin(self, start: Start, server: ProcessServer) -> None:
        """Records who is absent; on a machine that joins late, starts its nodes as restarted ones."""
        self.server = server
        absent = (rank for machine in start.absent for rank in self.mapping.ranks_of(machine))
        self.identity.absent = set(absent)
        positions = [i for i, process in enumerate(self.processes) if process.machine == self.machine]
        for position in positions if start.late else ():
            self._incarnations[position] = INCARNATIONS * start.late
            # The processes wait for a start signal that never comes here; rejoining ones replace them.
            server.restart(position, INCARNATIONS * start.late)
            for rank in self.processes[position].ranks:
                # As the others count it, which have a report of each time.
                self.membership.members[rank].restarts = start.late

    def restart(self, argument: str) -> str:
        """Restarts the host process of a rank for `decentnode restart`; raises RunFailed."""
        nodes = len(self.membership.members)
        if not argument.isdecimal() or int(argument) >= nodes:
            raise RunFailed(f"restart: must be a rank, 0..{nodes - 1}, not '{argument[:20]}'")
        rank = int(argument)
        position = next(i for i, process in enumerate(self.processes) if rank in process.ranks)
        machine = self.mapping.machine_of(rank)
        # Only its own launcher has the fork server of that process.
        if machine != self.machine:
            where = f"machine {machine} ({self.mapping.address(machine)})"
            raise RunFailed(f"rank {rank} is on {where}; run the command there")
        if self.why_not_taken_back:
            raise RunFailed(f"rank {rank}: {self.why_not_taken_back}")
        ranks = self.processes[position].ranks
        states = {other: self.membership.members[other].state for other in ranks}
        others = [other for other, state in states.items() if state is not MemberState.LOST]
        if rank in others:
            word = "is" if states[rank].is_active else "has"
            raise RunFailed(f"rank {rank} {word} {states[rank]}")
        # A restart replaces the whole process, with all its nodes.
        if others:
            named = ranks_in_words(others, MOST_RANKS)
            raise RunFailed(f"rank {rank} shares its process with {named}, which would have to end for it")
        incarnation = self._incarnations[position] + 1
        if self.server is None or self.is_stopping():
            raise RunFailed("no node is started again before the first round, or when the run is to stop")
        # The next number belongs to the next late join of this machine.
        if restarts_of(incarnation) == 0:
            raise RunFailed(f"rank {rank} was started again {INCARNATIONS - 1} times, the limit")
        self.server.restart(position, incarnation)
        return f"{ranks_in_words(ranks, MOST_RANKS)}: started again"

    def _note(self, report: Restarted) -> None:
        process = self.processes[report.process]
        self._incarnations[report.process] = report.attempt
        # From here on new and restarted nodes connect to it.
        self.identity.absent -= set(process.ranks)
        attempt = restarts_of(report.attempt)
        # 0: the first process of a late machine.
        if attempt == 0:
            if process.index == 0:
                text = f"{self.mapping.describe(process.machine)} comes after the start"
                self.event_log.log("restarted", text, process.ranks[0])
            return
        again = "started again"
        if report.status is not None:
            again = f"{how_it_ended(report.status)}; {again} ({attempt} of {self.attempts})"
        for rank in process.ranks:
            self.event_log.log("restarted", f"rank {rank}: {again}", rank)
