"""One run as a study sees it: settings, state, curves of the headline metric, a tidy table."""

import fcntl
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from decentnode.errors import UNDECODABLE, BadInput
from decentnode.results.extra import need
from decentnode.results.metrics import Metric
from decentnode.results.reader import (
    NOT_OURS,
    SCHEMA,
    EvaluationRow,
    read_evaluations,
    read_metrics,
    read_object,
)
from decentnode.results.records import write_atomically
from decentnode.results.tidy import cells, columns

if TYPE_CHECKING:
    from pandas import DataFrame

RUNNING, FINISHED, INCOMPLETE = "running", "finished", "incomplete"
ENTRY = "study.json"
"""The file in a run's directory where a sweep records the run, once it has ended."""


class RunEntry(msgspec.Struct):
    """The content of a run's `study.json`: written at its first round, and with its times after its end."""

    study: str
    variant: str
    axes: Mapping[str, str]
    """The label of the variant on each axis."""
    seed: int
    alone: bool = False
    """Whether no other run of the sweep had the machine meanwhile; otherwise its seconds mean little."""
    wall_seconds: float | None = None
    """Seconds of the whole process, with start and end; None before it has ended."""
    cpu_seconds: float | None = None
    """Processor time of all its processes; None before the end."""
    exit_code: int | None = None
    """The exit code of the run; None before the end."""

    def save(self, run_dir: Path) -> None:
        """Writes the file; raises OSError."""
        write_atomically(run_dir / ENTRY, {"schema": SCHEMA, **msgspec.to_builtins(self)})


def read_entry(run_dir: Path) -> RunEntry | None:
    """The entry of a run; None where there is none, or it cannot be read."""
    try:
        return msgspec.json.decode((run_dir / ENTRY).read_bytes(), type=RunEntry)
    except (OSError, *UNDECODABLE):
        return None


class Run:
    """A run, from the files in its directory; each is read when something first needs it.

        frame = Run("runs/quickstart").to_frame()

    The properties raise BadInput for files that decentnode has not written.
    """

    def __init__(self, directory: str | Path) -> None:
        """Raises BadInput if that is not the directory of a run."""
        self.directory = Path(directory)
        if not (self.directory / "config.yaml").exists():
            raise BadInput(f"{self.directory}: not the directory of a run (it has no config.yaml)")

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

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
        path = self.directory / "run.json"
        return str(read_object(path).get("run_id", "")) if path.exists() else ""

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

    @cached_property
    def entry(self) -> RunEntry | None:
        """The entry that a sweep has recorded of it; None for a run of its own."""
        return read_entry(self.directory)

    @property
    def state(self) -> str:
        """The state: `finished` (all nodes did all rounds), `running`, or `incomplete`."""
        ended = self.summary
        if ended and ended.get("finished_nodes") == ended.get("nodes"):
            return FINISHED
        return RUNNING if self._is_locked else INCOMPLETE

    @property
    def _is_locked(self) -> bool:
        """Whether a process of the run lives: each of them shares a lock of its directory."""
        try:
            with (self.directory / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def curve(self, metric: Metric | None = None) -> list[float]:
        """The mean over nodes after each evaluation, as people read it; nan if one is not finite."""
        metric = metric or self.headline
        columns = (row.values(metric.name) for row in self.rows)
        return [
            metric.scale * fmean(float("nan") if value is None else value for value in column)
            for column in columns
        ]

    @property
    def best(self) -> float:
        """The headline metric where it is best, as people read it; nan where no evaluation is finite.

        With validation samples: where the same metric is best on those.
        """
        judged = self.judged_by
        pairs = [*zip(self.curve(judged), self.curve(), strict=True)]
        # Of equal ones the first evaluation counts.
        known = {value: shown for value, shown in reversed(pairs) if isfinite(value)}
        return known[judged.best([*known])] if known else nan

    @property
    def judged_by(self) -> Metric:
        """The metric to choose by: the headline metric, on validation samples where there are some."""
        wanted = self.headline.of_validation
        return wanted if wanted in self.metrics else self.headline

    @property
    def rounds(self) -> list[float]:
        """The rounds that were evaluated, counted from 1."""
        return [row.round + 1 for row in self.rows]

    @property
    def bytes_per_node(self) -> list[float]:
        """Bytes that a node has sent on average, at each evaluation."""
        return [fmean(row.bytes_sent.values()) for row in self.rows]

    @property
    def seconds(self) -> list[float]:
        """Seconds since the start of the run, at each evaluation."""
        return [row.seconds for row in self.rows]

    def to_frame(self) -> "DataFrame":
        """Returns one row for each rank and evaluation, with a column for each metric; needs pandas.

        Columns: run, seed, rank, round (from 1), seconds, bytes_sent, train_loss, consensus_distance and the
        metrics in the units of the files (accuracy: 0 to 1).
        """
        rows = [line for row in self.rows for line in cells(self.name, self.seed, self.metrics, row=row)]
        return need("pandas").DataFrame(rows, columns=columns(self.metrics))
