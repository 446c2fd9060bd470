"""Runs as tasks of a Dask cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from decentnode.core.registry import EXECUTORS
from decentnode.options import Positive
from decentnode.results.extra import need
from decentnode.studies.executors.base import Executor, RunTask, run_task


@EXECUTORS.register("dask")
@dataclass
class Dask(Executor):
    """Tasks of a Dask cluster (Rocklin, SciPy 2015), one at a time for each thread of its workers."""

    address: str | None = None
    """That of its scheduler; null: a cluster of its own on this machine."""
    workers: Positive = 1
    """The workers of that cluster of its own."""
    needs: ClassVar[str] = "distributed"

    def submit(self, study: str, tasks: Sequence[RunTask], out: Path) -> Iterator[str]:
        distributed = need("distributed")
        own = {"n_workers": self.workers, "threads_per_worker": 1, "dashboard_address": None}
        options = {"address": self.address} if self.address else own
        with distributed.Client(**options) as client:
            # Another sweep may submit the same run later.
            yield from (
                name
                for _, name in distributed.as_completed(
                    client.map(run_task, tasks, pure=False), with_results=True
                )
            )
