"""Runs on this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from decentnode.core.registry import EXECUTORS
from decentnode.studies.executors.base import Executor, RunTask, run_task


@EXECUTORS.register("local")
@dataclass
class Local(Executor):
    """This machine: as many runs at a time as it carries, after the fork server of CPython (3.4, 2014)."""

    forks: ClassVar[bool] = True

    def submit(self, study: str, tasks: Sequence[RunTask], out: Path) -> Iterator[str]:
        yield from map(run_task, tasks)
