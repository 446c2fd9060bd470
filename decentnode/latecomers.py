"""Nodes that take part again because somebody asks for it, and the command that asks."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from decentnode.control import Request, ask
from decentnode.cross_checks import why_not_taken_back
from decentnode.errors import BadInput, DecentnodeError, RunFailed
from decentnode.experiment import Experiment
from decentnode.fork_server import INCARNATIONS, ForkServer
from decentnode.membership import Roster, State, how_it_ended
from decentnode.reports import Restarted
from decentnode.status import live_of
from decentnode.wording import ranks_in_words

RESTART = "restart"
"""The name of the request."""
MOST_RANKS = 8


class Latecomers:
    """One machine's launcher's part in it."""

    def __init__(
        self, experiment: Experiment, machine: int, roster: Roster, is_stopping: Callable[[], bool]
    ) -> None:
        """`is_stopping`: whether the run was asked to stop."""
        self.server: ForkServer | None = None
        """None before the first round."""
        self._experiment = experiment
        self._machine = machine
        self._roster = roster
        self._is_stopping = is_stopping
        self._incarnations: dict[int, int] = {}
        """By position the newest that is known of a host process, where that is not 0."""

    def note(self, report: Restarted) -> dict[int, str]:
        """Learns that a host process was started again; what to say of it, by rank."""
        self._incarnations[report.process] = report.attempt
        again = "started again"
        if report.status is not None:
            attempts = self._experiment.settings.failures.restart.attempts
            again = f"{how_it_ended(report.status)}; {again} ({report.attempt % INCARNATIONS} of {attempts})"
        ranks = self._experiment.processes[report.process].ranks
        return {rank: f"rank {rank}: {again}" for rank in ranks}

    def restart(self, argument: str) -> str:
        """Starts the host process of a rank again, as `decentnode restart` asks; raises RunFailed."""
        position = self._position(argument)
        self._refuse_living(int(argument), position)
        incarnation = self._incarnations.get(position, 0) + 1
        if self.server is None or self._is_stopping():
            raise RunFailed("no node is started again before the first round, or when the run is to stop")
        if incarnation % INCARNATIONS == 0:
            raise RunFailed(f"rank {argument} was started again {INCARNATIONS - 1} times, which is the most")
        self.server.start_again(position, incarnation)
        ranks = self._experiment.processes[position].ranks
        return f"{ranks_in_words(ranks, MOST_RANKS)}: started again"

    def _position(self, argument: str) -> int:
        """Where the host process of the rank stands; raises RunFailed when none here can come back."""
        experiment, nodes = self._experiment, self._experiment.graph.num_nodes
        if not argument.isdecimal() or int(argument) >= nodes:
            raise RunFailed(f"restart: must be a rank, 0..{nodes - 1}, not '{argument[:20]}'")
        machine = experiment.mapping.machine_of(int(argument))
        if machine != self._machine:
            where = f"machine {machine} ({experiment.mapping.address(machine)})"
            raise RunFailed(f"rank {argument} is on {where}; ask there")
        if reason := why_not_taken_back(experiment.settings.sharing.make()):
            raise RunFailed(f"rank {argument}: {reason}")
        return experiment.home[int(argument)]

    def _refuse_living(self, rank: int, position: int) -> None:
        members = self._roster.members
        if members[rank].state is not State.LOST:
            found = members[rank].state
            word = "is" if found in (State.RUNNING, State.STARTING) else "has"
            raise RunFailed(f"rank {rank} {word} {found}")
        ranks = self._experiment.processes[position].ranks
        others = [other for other in ranks if members[other].state is not State.LOST]
        if others:
            named = ranks_in_words(others, MOST_RANKS)
            raise RunFailed(f"rank {rank} shares its process with {named}, which would have to end for it")


def request_restart(run_dir: Path, rank: int) -> str:
    """What the launcher of a run says to `decentnode restart`; raises BadInput where it says no."""
    live = live_of(run_dir)
    if live is None:
        raise BadInput(f"{run_dir}: no launcher answers here; the run has not begun, or has ended")
    try:
        return msgspec.json.decode(ask(live.control, Request(RESTART, str(rank))), type=str)
    except OSError:
        raise BadInput(f"{run_dir}: its launcher (process {live.pid}) is gone; start it again") from None
    except DecentnodeError as error:
        raise BadInput(f"{run_dir}: {error}") from None
