"""The console output of a run: a line for each evaluation and event, and a table at the end."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, TextIO

from decentnode.core.polling import ready
from decentnode.core.streams import silence
from decentnode.core.text import counted, decimal, ratio, readable_bytes, readable_seconds
from decentnode.core.timeouts import Timeouts
from decentnode.errors import ExitCode
from decentnode.formats.metrics import CLASSIFICATION, LOSS, Metric, logged_metrics
from decentnode.formats.reader import EvaluationRow
from decentnode.launcher.report.final_lines import closing_lines, headline
from decentnode.launcher.report.summary import spread
from decentnode.launcher.state.membership import MembershipTable
from decentnode.node.experiment import Experiment

LOG_LINES, MOST_LETTERS = 30, 1000
NATIVE_FRAME = re.compile(r"frame #\d+: ")
HEADING_EVERY, MOST_MORE = 20, 2
"""Evaluations between two headings, so that one is always visible, and the most further metrics in a line."""
NAME_WIDTH = 18
"""The width of the names in the table at the end; a longer name widens it."""
STYLES = {ExitCode.OK: "bold green", ExitCode.NODES_LOST: "bold yellow"}


class LiveConsole:
    """Plain lines; on a terminal `live_view.LiveScreen` replaces it."""

    interval = float("inf")
    """The longest time in seconds between two calls of `progress`."""

    def __init__(self, output: TextIO) -> None:
        self.output = output
        self._evaluations = 0
        self._is_read = True
        self._metrics: Sequence[Metric] = CLASSIFICATION
        self._more_metrics: Sequence[Metric] = ()
        """Metrics that the configuration lists, beside the headline, as far as there is room."""
        self._is_of_scripts = False

    def opened(self, run_dir: Path) -> None:
        """Takes the directory of the run, before its processes start."""

    def began(self, experiment: Experiment, startup: float, before: float = 0.0) -> None:
        """Shows the start of the first round, `startup` seconds after the command.

        `before`: seconds that a resumed run has taken before.
        """
        settings, self._metrics = experiment.settings, experiment.plan.metrics
        self._is_of_scripts = settings.is_of_scripts
        self._more_metrics = experiment.plan.shown[1 : 1 + MOST_MORE]
        nodes = counted(experiment.graph.num_nodes, "node")
        hosts = counted(len(experiment.processes), "process", "processes")
        if experiment.execution.workers:
            hosts += f" with {counted(experiment.execution.workers, 'worker')}"
        size = experiment.layout.size
        what = ", ".join(filter(None, [f"{nodes} in {hosts}", size, settings.rounds_text]))
        self.line(f"{settings.name}: {what}; started in {startup:.1f} s")
        if (sample := experiment.plan.last_ranks) is not None and settings.evaluation.happens(
            settings.rounds
        ):
            self.line(f"evaluation: of {len(sample)} of the nodes, drawn by the seed (evaluation.nodes: all)")

    def progress(self, membership: MembershipTable) -> None:
        """Shows how far the nodes are; called after their reports, and at every `interval`."""

    def evaluated(self, row: EvaluationRow) -> None:
        """Shows an evaluation of all nodes after a round."""
        if self._is_of_scripts and (logged := logged_metrics(row.metrics)) != self._metrics:
            self._metrics, self._evaluations = logged, 0
        if self._evaluations % HEADING_EVERY == 0:
            self.line(heading(self._metrics, row.wall_seconds is not None, self._more_metrics), "bold")
        self._evaluations += 1
        self.line(evaluation_line(row, self._metrics, self._more_metrics))

    def show_log(self, log: Path) -> None:
        """Shows the end of a lost node's log, without the stacks of torch's own code in C++."""
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        lines = [line for line in lines if not NATIVE_FRAME.match(line)]
        for line in lines[-LOG_LINES:]:
            self.line(f"    {line[:MOST_LETTERS]}", "dim")

    def ended(
        self, summary: dict[str, Any], run_dir: Path, code: ExitCode, more: Sequence[tuple[str, str]] = (),
        repetition: str = "",
    ) -> None:  # fmt: skip
        """Shows the result; `summary` is the content of summary.json; the rest as for `closing_lines`."""
        self.close()
        self.line("")
        self.line(headline(summary, code), STYLES.get(code, "bold red"))
        lines = [*closing_lines(summary, code, run_dir, more, repetition)]
        width = max(NAME_WIDTH, *(len(name) for name, _ in lines))
        for name, value in lines:
            self.line(f"  {name:<{width}} {value}")

    def close(self) -> None:
        """Restores the terminal; may be called twice."""

    def line(self, text: str, style: str = "") -> None:
        """Shows a line, or drops it if the output is blocked; `style` is for screens that support one."""
        with self.dropping():
            # After a dropped line later ones do not wait until the output accepts text again.
            self._is_read = self.has_room(Timeouts.console_line if self._is_read else 0.0)
            if self._is_read:
                self._show(text, style)

    def has_room(self, seconds: float) -> bool:
        """Whether the output accepts text within that many seconds; otherwise a write could block
        for ever.
        """
        try:
            fd = self.output.fileno()
        except UnsupportedOperation:  # text in memory
            return True
        return bool(ready([], [fd], seconds))

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Drops output after an error: a closed terminal or pipe does not end the run."""
        try:
            yield
        except OSError:
            silence(self.output)
            self.output = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the run

    def _show(self, text: str, style: str) -> None:
        print(text, file=self.output, flush=True)


def heading(
    metrics: Sequence[Metric], is_simulated: bool = False, more_metrics: Sequence[Metric] = ()
) -> str:
    """Returns the names above the columns of `evaluation_line`."""
    first = f"{metrics[0].name}{metrics[0].unit}"
    means = "".join(f" {metric.name + metric.unit:>7}" for metric in more_metrics)
    loss = "    loss" if LOSS in metrics[1:] else ""
    time = "    virtual      wall  ratio" if is_simulated else "       time"
    return f" round {first:>11}  lowest highest average{means}{loss} distance     sent {time}"


def evaluation_line(
    row: EvaluationRow, metrics: Sequence[Metric], more_metrics: Sequence[Metric] = ()
) -> str:
    """Returns columns of one evaluation: the nodes' headline metric, the mean of their loss, the cost.

    `more_metrics`: those of which there is the mean, too.
    """
    first, *others = metrics
    scores, loss = (spread(row.metrics.get(name, {})) or {} for name in (first.name, LOSS.name))
    means = [
        (metric, (spread(row.metrics.get(metric.name, {})) or {}).get("mean")) for metric in more_metrics
    ]
    wall = row.wall_seconds
    columns = (
        (6, str(row.round + 1)),
        (max(11, len(first.name + first.unit)), first.number(scores.get("mean"))),
        (7, first.number(scores.get("min"))),
        (7, first.number(scores.get("max"))),
        (7, first.number(row.of_average(first.name))),
        *((max(7, len(metric.name + metric.unit)), metric.number(mean)) for metric, mean in means),
        *([(7, decimal(loss.get("mean")))] if LOSS in others else []),
        (8, decimal(row.consensus_distance)),
        (8, readable_bytes(sum(row.bytes_sent.values()))),
        (11, readable_seconds(row.seconds)),
        *([] if wall is None else [(9, readable_seconds(wall)), (6, ratio(row.seconds, wall))]),
    )
    # A value wider than its column shifts the rest of its line, and never touches the next one.
    return " ".join(f"{text:>{width}}" for width, text in columns)
