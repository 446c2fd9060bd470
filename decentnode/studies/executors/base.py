"""The base of all executors, and what they get: runs as commands that may be repeated."""

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import nan
from pathlib import Path
from typing import ClassVar

from decentnode.core.process_setup import die_with
from decentnode.core.registry import name_of
from decentnode.errors import BadInput


@dataclass(frozen=True)
class RunTask:
    """A run as a command that may be repeated: it starts the run, continues it, or finds it done.

    The state of the run is in its directory. Two commands of one run never run it at the same time.
    """

    name: str
    command: Sequence[str]
    folder: Path
    """The folder that it starts in."""
    log: Path
    """The file for its output, where the executor keeps none of its own."""
    processes: int = 1
    memory_bytes: float = nan
    """A forecast for one machine; nan where unknown."""
    machines: int = 1
    """The number of machines; the command starts on each of them."""
    hosts: Sequence[str] = ()
    """The names of these machines, where the configuration lists them."""


class Executor(ABC):
    """Starts the runs of a study. A subclass is a dataclass: its fields are options in YAML.

    Its library is imported in `submit`.
    """

    needs: ClassVar[str] = ""
    """The package that it imports; empty: none."""
    forks: ClassVar[bool] = False
    """Whether the sweep forks the runs itself, which saves each the start of a command."""
    several_machines: ClassVar[bool] = False
    """Whether it can start a run on several machines."""

    @property
    def is_exclusive(self) -> bool:
        """Whether a run has its machine alone, so that its seconds compare with those of other runs."""
        return False

    def check(self) -> None:
        """Raises BadInput, with the remedy, where this executor cannot work."""
        if self.needs and find_spec(self.needs) is None:
            raise BadInput(f"on: {name_of(self)} needs a package; run: pip install {self.needs}")

    @abstractmethod
    def submit(self, study: str, tasks: Sequence[RunTask], out: Path) -> Iterator[str]:
        """Starts the tasks, and yields the name of each that has ended, well or not.

        May return before all have: `queued` then has the others. `out`: the directory of the study.
        """

    def queued(self, out: Path) -> Collection[str]:
        """Returns the names of runs that were submitted, by whatever sweep, and have not ended."""
        return ()


def run_task(task: RunTask) -> str:
    """Runs a task in this process's place on its machine, with which it ends; returns its name."""
    with task.log.open("a") as log:
        subprocess.run(
            task.command, cwd=task.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=partial(die_with, os.getpid()), check=False,
        )  # fmt: skip
    return task.name
