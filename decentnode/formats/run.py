"""What the files of a run say of it; each is read when something first needs it."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from decentnode.errors import BadInput
from decentnode.formats.lease import lease_of
from decentnode.formats.metrics import Metric
from decentnode.formats.reader import (
    NOT_OURS,
    EvaluationRow,
    StrPath,
    check_run,
    is_simulated,
    machine_parts,
    read_evaluations,
    read_metrics,
    read_object,
)

RUNNING, FINISHED, INCOMPLETE = "running", "finished", "incomplete"


class RunFiles:
    """The directory of a run.

    It remembers what it has read; a new one shows what a run in progress has written since. The properties
    raise BadInput for files that decentnode has not written.
    """

    def __init__(self, directory: StrPath) -> None:
        """Raises BadInput if that is not the directory of a run."""
        self.directory = run_directory(directory)

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    def name(self) -> str:
        """The name from the configuration."""
        return str(self.settings.get("name"))

    @property
    def seed(self) -> int:
        """The seed from the configuration."""
        return int(self.settings.get("seed", 0))

    @property
    def run_id(self) -> str:
        """The identifier of 16 hexadecimal digits, kept by a resume; empty before the start."""
        return self._begun("run_id")

    @property
    def tests_hash(self) -> str:
        """The hash of its test samples; empty before the start."""
        return self._begun("tests")

    def _begun(self, key: str) -> str:
        path = self.directory / "run.json"
        return str(read_object(path).get(key, "")) if path.exists() else ""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration with every default filled in."""
        path = self.directory / "config.yaml"
        try:
            content = yaml.safe_load(path.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise BadInput(f"{path}: {NOT_OURS}: {str(error).splitlines()[0]}") from error
        if not isinstance(content, dict):
            raise BadInput(f"{path}: {NOT_OURS}: it is no mapping")
        return content

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`; empty before the end of the run."""
        path = self.directory / "summary.json"
        return read_object(path) if path.exists() else {}

    @property
    def is_simulated(self) -> bool:
        """Whether its seconds are virtual."""
        return is_simulated(self.summary, self.settings)

    @property
    def model_hash(self) -> str:
        """The hash of all final models, equal for runs with equal models; empty before the end."""
        return str(self.summary.get("model_hash") or "")

    @cached_property
    def rows(self) -> list[EvaluationRow]:
        """The evaluations so far, by round."""
        path = self.directory / "evaluations.jsonl"
        return read_evaluations(path) if path.exists() else []

    @cached_property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of the evaluations; the first is the headline metric."""
        return read_metrics(self.directory)

    @property
    def headline(self) -> Metric:
        """The metric that the run is judged by."""
        return self.metrics[0]

    @property
    def state(self) -> str:
        """The state: `finished` (all nodes did all rounds), `running`, or `incomplete`."""
        # A run in progress had no summary when this one was first read.
        ended = self.summary or RunFiles(self.directory).summary
        if ended and ended.get("finished_nodes") == ended.get("nodes"):
            return FINISHED
        return RUNNING if lease_of(self.directory) else INCOMPLETE


def run_directory(directory: StrPath, more: str = "") -> Path:
    """Returns the directory of a run; raises BadInput for another one, which `more` says more about.

    Where machines share it, that is the part of the first one that is in progress, or else of the one that
    knows of most nodes how they ended.
    """
    parts = [RunFiles(part) for part in machine_parts(directory)]
    if not parts:
        check_run(directory, more)
        return Path(directory)
    running = next((run for run in parts if run.state == RUNNING), None)
    return (running or max(parts, key=lambda run: int(run.summary.get("finished_nodes") or 0))).directory
