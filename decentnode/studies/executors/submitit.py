"""Runs as jobs of submitit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from decentnode.core.registry import EXECUTORS
from decentnode.results.extra import need
from decentnode.studies.executors.base import Executor, RunTask, run_task

FOLDER = "submitit"


@EXECUTORS.register("submitit")
@dataclass
class Submitit(Executor):
    """Jobs of submitit (Facebook Research, 2020): Slurm where there is one, otherwise processes here."""

    cluster: str | None = None
    """`slurm`, `local` or `debug`; null: what submitit finds."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameters of submitit, such as `timeout_min`, `slurm_partition`."""
    needs: ClassVar[str] = "submitit"

    def submit(self, study: str, tasks: Sequence[RunTask], out: Path) -> Iterator[str]:
        submitit = need("submitit")
        executor = submitit.AutoExecutor(folder=out / FOLDER, cluster=self.cluster)
        most = max(task.processes for task in tasks)
        executor.update_parameters(**{"name": study, "cpus_per_task": most} | self.parameters)
        jobs = executor.map_array(run_task, tasks)
        try:
            yield from (job.result() for job in submitit.helpers.as_completed(jobs))
        finally:
            for job in jobs:
                if not job.done():
                    job.cancel()
