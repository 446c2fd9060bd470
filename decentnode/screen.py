"""What a person sees of a run: plain lines, one per evaluation and event."""

from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from decentnode.experiment import Experiment
from decentnode.membership import Roster
from decentnode.results import EvaluationRow

LOG_LINES = 30


class Screen:
    """Plain lines; where a terminal is there, `live_view.LiveScreen` takes its place."""

    def __init__(self, output: TextIO) -> None:
        self.output = output

    def began(self, experiment: Experiment, run_dir: Path, startup: float) -> None:
        """The first round has begun, `startup` seconds after the command."""
        settings = experiment.settings
        self.note(
            f"{settings.name}: {experiment.graph.num_nodes} nodes in {len(experiment.processes)} processes, "
            f"{experiment.layout.numel:,} parameters, {settings.rounds} rounds; started in {startup:.1f} s"
        )

    def progress(self, roster: Roster) -> None:
        """Called about ten times a second while the nodes run."""

    def evaluated(self, row: EvaluationRow) -> None:
        """All nodes were tested after a round."""
        accuracy = list(row.accuracy.values())
        parts = [
            f"round {row.round + 1}",
            f"accuracy {100 * fmean(accuracy):.2f} % ({100 * min(accuracy):.2f}-{100 * max(accuracy):.2f})",
            f"loss {fmean(row.test_loss.values()):.4f}",
            f"{sum(row.bytes_sent.values()) / 1e9:.3f} GB sent",
            f"{row.seconds:.1f} s",
        ]
        if row.consensus_distance is not None:
            parts.insert(3, f"consensus distance {row.consensus_distance:.4f}")
        if row.average_model_accuracy is not None:
            parts.insert(2, f"average model {100 * row.average_model_accuracy:.2f} %")
        self.note(", ".join(parts))

    def note(self, text: str) -> None:
        """One line about something that happened."""
        print(text, file=self.output, flush=True)

    def show_log(self, log: Path) -> None:
        """The end of a lost node's log, if it says anything."""
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
        for line in lines:
            self.note(f"    {line}")

    def ended(self, summary: dict[str, Any], run_dir: Path) -> None:
        """The run is over; `summary` is what summary.json holds."""
        for name, value in summary.items():
            self.note(f"{name}: {value}")
        self.note(f"results: {run_dir}")

    def close(self) -> None:
        """Gives the terminal back as it was."""
