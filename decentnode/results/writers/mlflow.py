"""Runs of MLflow."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decentnode.core.registry import WRITERS
from decentnode.formats.reader import EvaluationRow
from decentnode.formats.run import FINISHED
from decentnode.results.extra import need
from decentnode.results.run import Run
from decentnode.results.writers.base import Writer, hyperparameters, is_whole, scalars, start_of

RUN_ID = "decentnode.run_id"
"""The tag by which a resumed run finds its run of MLflow."""
MOST_TEXT = 500
"""Characters of a parameter; servers of MLflow 2 refuse more."""
MOST_PARAMETERS = 100
MOST_METRICS = 1000
"""The most that MLflow takes in one call."""


@WRITERS.register("mlflow")
@dataclass(kw_only=True)
class MlflowWriter(Writer):
    """A run of MLflow, found again by a tag with the run id of decentnode (Zaharia et al., 2018).

    A resumed run continues it. Rounds that it has already are not sent again, even where the run itself
    repeats them.
    """

    needs = ("mlflow", "mlflow")

    experiment: str = "decentnode"
    """The experiment that has the run; it is made if there is none."""
    tracking_uri: str | None = None
    """A server, or a database as `sqlite:////home/you/mlflow.db`; null: that of MLFLOW_TRACKING_URI."""
    per_rank: bool = False
    """Whether each node has curves of its own."""
    _run: Run = field(init=False, repr=False)
    _client: Any = field(init=False, repr=False)
    _id: str = field(init=False, repr=False)
    _steps: set[int] = field(init=False, repr=False)
    """The rounds, from 1, that the run has from earlier starts."""

    def begin(self, run: Run, rows: Sequence[EvaluationRow]) -> None:
        self._run, mlflow = run, need("mlflow", "mlflow")
        # After the import, which sets it: the screen has the launcher's live view.
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        self._id = self._earlier_run() or self._made()
        self._steps = {metric.step for metric in self._client.get_metric_history(self._id, "seconds")}
        for row in rows:
            self.row(row)

    def row(self, row: EvaluationRow) -> None:
        if row.round + 1 in self._steps:
            return
        entities = need("mlflow.entities", "mlflow")
        elapsed = row.seconds if row.wall_seconds is None else row.wall_seconds
        milliseconds = int(1000 * (start_of(self._run) + elapsed))
        values = scalars(row, self._run.metrics, self.per_rank).items()
        metrics = [entities.Metric(key, value, milliseconds, row.round + 1) for key, value in values]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + MOST_METRICS])

    def close(self, summary: Mapping[str, Any]) -> None:
        if not summary:
            self._client.set_terminated(self._id, "KILLED")
            return
        self._client.set_tag(self._id, "decentnode.model_hash", str(summary.get("model_hash")))
        self._client.set_terminated(self._id, FINISHED.upper() if is_whole(summary) else "FAILED")

    @property
    def _experiment_id(self) -> str:
        known = self._client.get_experiment_by_name(self.experiment)
        return str(known.experiment_id if known else self._client.create_experiment(self.experiment))

    def _earlier_run(self) -> str:
        """The run of an earlier start, marked as running; empty if there is none."""
        wanted = f"tags.`{RUN_ID}` = '{self._run.run_id}'"
        runs = self._client.search_runs([self._experiment_id], wanted)
        if not runs:
            return ""
        run_id = str(runs[0].info.run_id)
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _made(self) -> str:
        entities, tags = need("mlflow.entities", "mlflow"), {RUN_ID: self._run.run_id}
        made = self._client.create_run(self._experiment_id, run_name=self._run.name, tags=tags).info.run_id
        settings = hyperparameters(self._run.settings)
        params = [entities.Param(key, value[:MOST_TEXT]) for key, value in settings]
        for first in range(0, len(params), MOST_PARAMETERS):
            self._client.log_batch(made, params=params[first : first + MOST_PARAMETERS])
        return str(made)
