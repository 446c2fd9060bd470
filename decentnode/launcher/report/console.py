"""What a person sees of a run: a line for each evaluation and event, and a table at the end."""

import contextlib
import os
from collections.abc import Iterator
from io import UnsupportedOperation
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from decentnode.core.polling import ready
from decentnode.core.streams import silence
from decentnode.core.text import counted, decimal, percent, readable_bytes, readable_seconds
from decentnode.core.timeouts import Timeouts
from decentnode.errors import ExitCode
from decentnode.launcher.monitoring.membership import MembershipTable
from decentnode.launcher.report.final_lines import closing_lines, headline
from decentnode.node.experiment import Experiment
from decentnode.results.plot_process import Pictures
from decentnode.results.reader import EvaluationRow

LOG_LINES, MOST_LETTERS = 30, 1000
HEADING = " round  accuracy %  lowest highest average    loss distance     sent        time"
HEADING_EVERY = 20
"""Evaluations between two headings, so that one is always in sight."""
STYLES = {ExitCode.OK: "bold green", ExitCode.NODES_LOST: "bold yellow"}


class LiveConsole:
    """Plain lines; where a terminal is there, `live_view.LiveScreen` takes its place."""

    interval = float("inf")
    """Seconds after which it is to be told of the progress again, at most."""

    def __init__(self, output: TextIO) -> None:
        self.output = output
        self._evaluations = 0
        self._is_read = True

    def began(self, experiment: Experiment, run_dir: Path, startup: float) -> None:
        """The first round has begun, `startup` seconds after the command."""
        settings = experiment.settings
        nodes, rounds = counted(experiment.graph.num_nodes, "node"), counted(settings.rounds, "round")
        hosts = counted(len(experiment.processes), "process", "processes")
        size = f"{experiment.layout.numel:,} parameters"
        self.note(f"{settings.name}: {nodes} in {hosts}, {size}, {rounds}; started in {startup:.1f} s")

    def progress(self, membership: MembershipTable) -> None:
        """Called when nodes have reported something, and at every `interval`."""

    def evaluated(self, row: EvaluationRow) -> None:
        """All nodes were tested after a round."""
        if self._evaluations % HEADING_EVERY == 0:
            self.line(HEADING, "bold")
        self._evaluations += 1
        self.line(evaluation_line(row))

    def note(self, text: str) -> None:
        """One line about something that happened."""
        self.line(text)

    def show_log(self, log: Path) -> None:
        """The end of a lost node's log, if it says anything."""
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
        for line in lines:
            self.line(f"    {line[:MOST_LETTERS]}", "dim")

    def ended(self, summary: dict[str, Any], run_dir: Path, pictures: Pictures, code: ExitCode) -> None:
        """The run is over; `summary` is what summary.json holds."""
        self.close()
        self.line("")
        self.line(headline(summary, code), STYLES.get(code, "bold red"))
        for name, value in closing_lines(summary, code, run_dir, pictures):
            self.line(f"  {name:<19}{value}")

    def close(self) -> None:
        """Gives the terminal back as it was; may be called twice."""

    def line(self, text: str, style: str = "") -> None:
        """Shows a line, which is dropped when nobody reads; `style` is for screens that have one."""
        with self.dropping():
            self._is_read = self.has_room(Timeouts.console_line if self._is_read else 0.0)
            if self._is_read:
                self._show(text, style)

    def has_room(self, seconds: float) -> bool:
        """Whether something can be shown within so many seconds; else who shows it would wait for ever."""
        try:
            fd = self.output.fileno()
        except UnsupportedOperation:  # text in memory
            return True
        return bool(ready([], [fd], seconds))

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Drops what cannot be shown: a reader or a terminal that is gone does not end the run."""
        try:
            yield
        except OSError:
            silence(self.output)
            self.output = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the run

    def _show(self, text: str, style: str) -> None:
        print(text, file=self.output, flush=True)


def evaluation_line(row: EvaluationRow) -> str:
    """The figures below HEADING."""
    accuracy, losses = list(row.accuracy.values()), list(row.test_loss.values())
    loss = fmean(value for value in losses if value is not None) if None not in losses else None
    columns = (
        (6, str(row.round + 1)),
        (11, percent(fmean(accuracy))),
        (7, percent(min(accuracy))),
        (7, percent(max(accuracy))),
        (7, percent(row.average_model_accuracy)),
        (7, decimal(loss)),
        (8, decimal(row.consensus_distance)),
        (8, readable_bytes(sum(row.bytes_sent.values()))),
        (11, readable_seconds(row.seconds)),
    )
    # A figure that is wider than its column moves the rest of its line; it never touches its neighbor.
    return " ".join(f"{text:>{width}}" for width, text in columns)
