"""Runs as tasks of a Ray cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from decentnode.core.registry import EXECUTORS
from decentnode.core.text import first_line
from decentnode.errors import BadInput
from decentnode.results.extra import need
from decentnode.studies.executors.base import Executor, RunTask, run_task


@EXECUTORS.register("ray")
@dataclass
class Ray(Executor):
    """Tasks of a Ray cluster (Moritz et al., OSDI 2018); a task whose worker dies is repeated."""

    address: str | None = None
    """That of a cluster, or `auto`; null: RAY_ADDRESS, or else a cluster that was started on this machine, or
    else one of its own; `local`: one of its own."""
    needs: ClassVar[str] = "ray"

    def submit(self, study: str, tasks: Sequence[RunTask], out: Path) -> Iterator[str]:
        ray = need("ray")
        try:
            ray.init(
                address=self.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
            )
        except ConnectionError as error:
            # Without an address Ray looks for a cluster that was started on this machine, which may be gone.
            raise BadInput(
                f"on: ray: {first_line(error)}; start a cluster, or set address: local for one of its own"
            ) from error
        try:
            # A task that asks for more processors than any machine has would wait for ever.
            most = max(node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"])
            function = ray.remote(max_retries=-1)(run_task)
            waiting = [function.options(num_cpus=min(task.processes, most)).remote(task) for task in tasks]
            while waiting:
                ended, waiting = ray.wait(waiting)
                yield from ray.get(ended)
        finally:
            ray.shutdown()
