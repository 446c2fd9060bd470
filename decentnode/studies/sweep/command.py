"""`decentnode sweep`: from the study's file to the exit code."""

import gc
import importlib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.config.type_check import unknown
from decentnode.core.process_setup import check_kernel
from decentnode.core.streams import print_line, print_lines
from decentnode.errors import BadInput, ExitCode
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.node.late_imports import import_compiler, import_for_nodes
from decentnode.node.plugin_sources import package_digest
from decentnode.studies.expansion import PlannedRun, planned_runs
from decentnode.studies.study_file import PlannedStudy, read_study
from decentnode.studies.sweep import slurm
from decentnode.studies.sweep.directories import RunDirectory, RunStatus, open_study, refuse_changes
from decentnode.studies.sweep.forecast import forecasts
from decentnode.studies.sweep.plan import SweepPlan
from decentnode.studies.sweep.screen import sweep_screen_for
from decentnode.studies.sweep.sweep import Sweep

_PART = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")


@dataclass(frozen=True)
class SweepRequest:
    """What is asked for on the command line, or from Python."""

    source: ConfigSource
    overrides: Sequence[Override] = ()
    accepts_other_code: bool = False
    only: Sequence[str] = ()
    """Names of runs; empty: all."""
    part: str = ""
    """`i/n`: every n-th run, from the i-th on."""

    @property
    def command(self) -> str:
        """Returns this command for a shell, without what selects runs; values from Python have none."""
        words = [override for override in self.overrides if isinstance(override, str)]
        if callable(self.source) or len(words) < len(self.overrides):
            return "the same call of decentnode.sweep"
        accept = ["--accept-code-change"] if self.accepts_other_code else []
        return shlex.join(["decentnode", "sweep", str(self.source), *words, *accept])

    def select(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The runs that are asked for; raises BadInput."""
        known = [run.name for run in runs]
        for name in self.only:
            if name not in known:
                raise BadInput(f"--only {name}: {unknown('run', name, known[:10])}")
        chosen = [run for run in runs if not self.only or run.name in self.only]
        if not self.part:
            return chosen
        match = _PART.fullmatch(self.part)
        if match is None or int(match[1]) > int(match[2]):
            raise BadInput(f"--part {self.part}: must be i/n, such as 1/4 on the first of four machines")
        return chosen[int(match[1]) - 1 :: int(match[2])]


def sweep(request: SweepRequest) -> ExitCode:
    """Runs what is missing; returns the exit code. Raises BadInput before anything starts."""
    study, directories, statuses = _inspect(request)
    is_part = bool(request.only or request.part)
    lock = open_study(study, is_part)
    datasets = DatasetCache()
    plan = _plan(study, directories, statuses, datasets=datasets)
    print_lines(plan.lines())
    check_kernel()
    if not plan.waiting:
        print_line(f"{study.name}: nothing to do (exit code 0)\n  results   {study.out}")
        return ExitCode.OK
    _warm_up(plan)
    try:
        screen = sweep_screen_for(sys.stdout)
        ours = {directory.path for directory in directories}
        others = (
            [run.directory for run in planned_runs(study) if run.directory not in ours] if is_part else ()
        )
        return Sweep(plan, datasets, screen, command=request.command, others=others).run()
    finally:
        lock.release()


def show_plan(request: SweepRequest) -> None:
    """Prints the plan; starts and writes nothing."""
    study, directories, statuses = _inspect(request)
    print_lines(_plan(study, directories, statuses, datasets=DatasetCache()).lines())


def cluster_job(request: SweepRequest, submits: bool) -> None:
    """Prints, or submits, a SLURM array with a task for each run that is not done."""
    study, directories, statuses = _inspect(request)
    planned = [directory.planned for directory in directories]
    waiting = [run for run in planned if statuses[run.name] is not RunStatus.DONE]
    if not waiting:
        raise BadInput(f"{study.name}: all runs are done, so there is nothing to submit")
    # Before the tasks, which start at the same time.
    open_study(study, is_part=True).release()
    script = slurm.script(study, waiting, request.command)
    if submits:
        print_line(slurm.submit(script))
    else:
        print_lines(script.splitlines())


def _warm_up(plan: SweepPlan) -> None:
    """Does once what each run would do again: late imports, and the hash of this package's sources."""
    for run in plan.waiting:
        import_for_nodes(run.planned.settings)
        if run.planned.settings.has_foreign_plugins:
            # What these import is known only after the dry round, which each run makes for itself.
            import_compiler()
    # The first partition imports it.
    importlib.import_module("numpy.ma")
    package_digest()
    # A collection in a fork would write to, and so copy, every page that it shares with this process.
    gc.collect()
    gc.freeze()


def _inspect(request: SweepRequest) -> tuple[PlannedStudy, list[RunDirectory], dict[str, RunStatus]]:
    """The runs that are asked for, and what there is of each; raises BadInput."""
    # Other threads would not survive the forks.
    torch.set_num_threads(1)
    study = read_study(request.source, request.overrides)
    directories = [RunDirectory(run) for run in request.select(planned_runs(study))]
    statuses = {directory.planned.name: directory.status for directory in directories}
    done = [directory for directory in directories if statuses[directory.planned.name] is RunStatus.DONE]
    refuse_changes(done, request.accepts_other_code)
    return study, directories, statuses


def _plan(
    study: PlannedStudy, directories: Sequence[RunDirectory], statuses: dict[str, RunStatus],
    datasets: DatasetCache,
) -> SweepPlan:  # fmt: skip
    planned = [directory.planned for directory in directories]
    waiting = [run for run in planned if statuses[run.name] is not RunStatus.DONE]
    # The last of each name stays: the runs of a variant differ in the seed alone.
    first = {run.variant.name: run for run in reversed(waiting)}
    by_variant = forecasts(list(first.values())[::-1], datasets) if first else {}
    return SweepPlan(study, directories, statuses, forecasts=by_variant)
