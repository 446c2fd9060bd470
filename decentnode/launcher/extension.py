"""What layers around the core add to a run beside its nodes: classes, registered for the hook `run`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from decentnode.errors import explained
from decentnode.formats.reader import EvaluationRow
from decentnode.launcher.state.run_directory import RunLock
from decentnode.node.experiment import Experiment

LogEvent = Callable[[str, str], object]
"""Records and shows an event, of a kind and with a text."""


@dataclass
class RunExtension:
    """Works beside the nodes of one machine, as writers and attacks do; this one does nothing.

    The launcher calls the methods in the order below, `after_round`, `check` and `is_busy` repeatedly. What
    fails is an event, and never ends the run.
    """

    experiment: Experiment
    machine: int
    run_dir: Path
    run_lock: RunLock
    log_event: LogEvent
    of_coordinator: ClassVar[bool] = False
    """Whether it sees rounds on one machine alone: the one that decides for all."""

    def __post_init__(self) -> None:
        """Checks what it needs; raises BadInput."""

    def start(self) -> None:
        """Forks its processes; raises StartError. No thread may run yet."""

    def begin(self) -> None:
        """Begins: `run.json` is written, and `evaluations.jsonl` has what it keeps of an earlier start."""

    def after_round(self, row: EvaluationRow) -> bool:
        """Takes notice of a row of `evaluations.jsonl`; returns whether the run is to end."""
        return False

    def check(self) -> None:
        """Reports in one line each process that has ended before its time."""

    def nodes_ended(self) -> None:
        """Does the rest: all nodes have ended."""

    def is_busy(self, seconds: float = 0.0) -> bool:
        """Whether the summary has to wait for it; waits so long for its end."""
        return False

    def summary(self) -> dict[str, Any]:
        """Returns what it adds to the summary, and ends what is still busy with that."""
        return {}

    def finish(self, is_urgent: Callable[[], bool]) -> None:
        """Waits until all is done, at most for a limit, or until it is urgent; `summary.json` is complete."""

    def close(self) -> None:
        """Ends all its processes at once; may be called twice."""

    def closing_lines(self) -> Iterator[tuple[str, str]]:
        """Yields lines for the table at the end, as name and value: some evaluation has been written."""
        yield from ()


class UserFunctions(RunExtension):
    """Calls the functions of `after_round`."""

    of_coordinator = True

    def __post_init__(self) -> None:
        self._functions = [*self.experiment.settings.after_round]

    def after_round(self, row: EvaluationRow) -> bool:
        means = {name: fmean(known) for name in row.metrics if (known := _known(row.values(name)))}
        if known := _known(row.values("train_loss")):
            means["train_loss"] = fmean(known)
        if row.consensus_distance is not None:
            means["consensus_distance"] = row.consensus_distance
        ends = False
        for plugin in [*self._functions]:
            try:
                ends = bool(plugin.cls(row.round, dict(means), **plugin.options)) or ends
            except Exception as error:  # whatever a function of the user's raises
                self._functions.remove(plugin)
                text = f"{plugin.name} is not called again: {explained(error)}"
                self.log_event("after_round", text)
        return ends


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
