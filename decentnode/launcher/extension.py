"""What layers around the core add to a run beside its nodes: classes, registered for the hook `run`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentnode.launcher.state.run_directory import RunLock
from decentnode.node.experiment import Experiment

LogEvent = Callable[[str, str], object]
"""Records and shows an event, of a kind and with a text."""


@dataclass
class RunExtension:
    """Works beside the nodes of one machine, as writers and attacks do; this one does nothing.

    The launcher calls the methods in the order below, `more_rows`, `check` and `is_busy` repeatedly. What
    fails is an event, and never ends the run.
    """

    experiment: Experiment
    machine: int
    run_dir: Path
    run_lock: RunLock
    log_event: LogEvent

    def __post_init__(self) -> None:
        """Checks what it needs; raises BadInput."""

    def start(self) -> None:
        """Forks its processes; raises StartError. No thread may run yet."""

    def begin(self) -> None:
        """Begins: `run.json` is written, and `evaluations.jsonl` has what it keeps of an earlier start."""

    def more_rows(self) -> None:
        """Takes notice of further rows in `evaluations.jsonl`."""

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
