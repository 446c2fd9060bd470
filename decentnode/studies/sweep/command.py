"""`decentnode sweep`: from the study's file to the exit code."""

import gc
import importlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import msgspec
import torch

from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.config.type_check import unknown
from decentnode.core.clock import boot
from decentnode.core.process_setup import check_kernel
from decentnode.core.streams import print_line, print_lines
from decentnode.core.text import counted
from decentnode.errors import BadInput, ExitCode
from decentnode.launcher.dataset_cache import DatasetCache
from decentnode.launcher.start import run_here
from decentnode.mapping.job import find_job
from decentnode.node.late_imports import import_compiler, import_for_nodes
from decentnode.node.plugin_sources import package_digest
from decentnode.results.run import RunEntry, read_entry
from decentnode.results.study import STUDY_FILE
from decentnode.studies.executors.base import Executor, RunTask
from decentnode.studies.executors.slurm import Slurm
from decentnode.studies.expansion import PlannedRun, planned_runs, run_name
from decentnode.studies.study_file import PlannedStudy, read_study
from decentnode.studies.sweep.directories import RunDirectory, RunStatus, open_study, refuse_changes
from decentnode.studies.sweep.forecast import forecasts
from decentnode.studies.sweep.plan import SweepPlan
from decentnode.studies.sweep.screen import sweep_screen_for
from decentnode.studies.sweep.sweep import Sweep

OF_SWEEP = ("on=", "on.", "out=")
"""The beginnings of overrides that the command of a run has in a form of its own."""


@dataclass(frozen=True)
class SweepRequest:
    """What is asked for on the command line, or from Python."""

    source: ConfigSource
    overrides: Sequence[Override] = ()
    accepts_other_code: bool = False
    only: Sequence[str] = ()
    """Names of runs; empty: all."""
    is_shared: bool = False
    """Whether other programs may have this machine, too, so that seconds do not compare."""

    @property
    def command(self) -> str:
        """Returns this command for a shell, without what selects runs; values from Python have none."""
        if not self._is_of_words:
            return "the same call of decentnode.sweep"
        return shlex.join(["decentnode", "sweep", str(self.source), *map(str, self.overrides), *self._accept])

    def words_for(self, run: PlannedRun, study: PlannedStudy) -> list[str]:
        """Returns the command of one run, which may be repeated, for this folder on any machine."""
        # What Python has passed is in the copy.
        source = str(self.source) if self._is_of_words else str(study.out / STUDY_FILE)
        words = [str(word) for word in self.overrides] if self._is_of_words else []
        words = [word for word in words if not word.startswith(OF_SWEEP)]
        shared = [] if study.on.make().is_exclusive else ["--shared"]
        # Another environment may be active where it runs.
        command = [sys.executable, "-P", "-m", "decentnode", "sweep", source, *words, f"out={study.out}"]
        return [*command, "--on", "local", *self._accept, *shared, "--only", run.name]

    @property
    def _is_of_words(self) -> bool:
        return not callable(self.source) and all(isinstance(override, str) for override in self.overrides)

    @property
    def _accept(self) -> list[str]:
        return ["--accept-code-change"] if self.accepts_other_code else []

    def select(self, study: PlannedStudy) -> list[PlannedRun]:
        """The runs that are asked for; raises BadInput."""
        known = {run_name(variant, seed): variant.name for seed in study.seeds for variant in study.variants}
        for name in self.only:
            if name not in known:
                raise BadInput(f"--only {name}: {unknown('run', name, [*known][:10])}")
        runs = planned_runs(study, {known[name] for name in self.only})
        return [run for run in runs if not self.only or run.name in self.only]


def sweep(request: SweepRequest) -> ExitCode:
    """Runs what is missing; returns the exit code. Raises BadInput before anything starts."""
    study, directories, statuses = _inspect(request)
    executor: Executor = study.on.make()
    executor.check()
    if request.only and len(directories) == 1 and directories[0].planned.machines > 1 and executor.forks:
        return _take_part(study, directories[0])
    _check_machines(study, directories, statuses, executor)
    open_study(study)
    datasets = DatasetCache()
    plan = _plan(study, directories, statuses, datasets=datasets)
    print_lines(plan.lines())
    if not plan.waiting:
        print_line(f"{study.name}: nothing to do (exit code 0)\n  results   {study.out}")
        return ExitCode.OK
    if not executor.forks:
        return _submit(request, plan, executor)
    check_kernel()
    _warm_up(plan)
    screen = sweep_screen_for(sys.stdout)
    done = {name for name, status in statuses.items() if status is RunStatus.DONE}
    names = [run_name(variant, seed) for seed in study.seeds for variant in study.variants]
    others = [study.out / name for name in names if name not in done]
    return Sweep(
        plan, datasets, screen, command=request.command, others=others, may_be_alone=not request.is_shared
    ).run()


def show_plan(request: SweepRequest) -> None:
    """Prints the plan; starts and writes nothing."""
    study, directories, statuses = _inspect(request)
    print_lines(_plan(study, directories, statuses, datasets=DatasetCache()).lines())


def list_runs(request: SweepRequest, as_json: bool) -> None:
    """Prints all runs with their states; as JSON also commands and what they need. Starts nothing."""
    study, directories, statuses = _inspect(request)
    plan = _plan(study, directories, statuses, datasets=DatasetCache())
    executors: list[Executor] = [study.on.make()]
    if shutil.which("squeue"):
        # The jobs may be of another command.
        executors.append(Slurm())
    queued = {name for executor in executors for name in executor.queued(study.out)}
    runs = []
    for task, directory in zip(_tasks(request, plan, directories), directories, strict=True):
        status = statuses[task.name]
        is_queued = task.name in queued and status not in (RunStatus.DONE, RunStatus.RUNNING)
        runs.append(
            {
                "name": task.name, "state": "queued" if is_queued else status.value,
                "holder": str(directory.lease) if status is RunStatus.RUNNING else None,
                "processes": task.processes,
                "memory_bytes": None if isnan(task.memory_bytes) else round(task.memory_bytes),
                "machines": task.machines, "command": list(task.command),
            }
        )  # fmt: skip
    if as_json:
        print_lines(json.dumps(runs, indent=1).splitlines())
    else:
        width = max(len(str(run["name"])) for run in runs)
        print_lines(f"{run['name']:<{width}}  {run['state']}" for run in runs)


def _take_part(study: PlannedStudy, directory: RunDirectory) -> ExitCode:
    """Does this machine's part of a run of several, as `decentnode run --continue` does."""
    planned = directory.planned
    job, began = find_job(), time.monotonic()
    if planned.hosts == [] and (job is None or len(job.processes) != planned.machines):
        raise BadInput(
            f"{planned.name}: needs {planned.machines} machines; start this command on each of them (srun), "
            "or sweep with --on slurm"
        )
    check_kernel()
    open_study(study)
    labels = {axis: level.label for axis, level in planned.variant.levels.items()}
    entry = RunEntry(study.name, planned.variant.name, labels, planned.seed, boot=boot(), began=began)
    code, run_dir = run_here(planned.settings, planned.base, (), or_resume=True, repeats_losses=True)
    if directory.path == run_dir and (read_entry(run_dir) or entry).wall_seconds is None:
        msgspec.structs.replace(
            entry, wall_seconds=round(time.monotonic() - began, 3), exit_code=int(code)
        ).save(run_dir)
    return code


def _check_machines(
    study: PlannedStudy, directories: Sequence[RunDirectory], statuses: dict[str, RunStatus],
    executor: Executor,
) -> None:  # fmt: skip
    for directory in directories:
        planned = directory.planned
        if (
            planned.machines > 1
            and statuses[planned.name] is not RunStatus.DONE
            and not executor.several_machines
        ):
            raise BadInput(
                f"{planned.name}: needs {planned.machines} machines, and `on: {study.on.name}` starts a run "
                "on one; sweep with --on slurm, or list one machine in mapping.machines"
            )


def _tasks(request: SweepRequest, plan: SweepPlan, directories: Sequence[RunDirectory]) -> list[RunTask]:
    tasks = []
    for directory in directories:
        planned = directory.planned
        machine = planned.settings.mapping.make().machines[0]
        processes: int = planned.settings.communication.make().plan.processes(machine.nodes)
        task = RunTask(
            planned.name, request.words_for(planned, plan.study), Path.cwd(),
            log=directory.log.with_suffix(".task.log"), processes=processes,
            memory_bytes=plan.cost(planned.variant.name).memory_bytes, machines=planned.machines,
            hosts=planned.hosts,
        )  # fmt: skip
        tasks.append(task)
    return tasks


def _submit(request: SweepRequest, plan: SweepPlan, executor: Executor) -> ExitCode:
    """Lets an executor start what nobody runs or has submitted, and says what has become of each run."""
    study, queued = plan.study, executor.queued(plan.study.out)
    left = {directory.planned.name: directory for directory in plan.waiting}
    new = [
        directory
        for name, directory in left.items()
        if name not in queued and plan.statuses[name] is not RunStatus.RUNNING
    ]
    for directory in new:
        directory.path.parent.mkdir(parents=True, exist_ok=True)
    if len(new) < len(left):
        print_line(f"{counted(len(left) - len(new), 'run')} in progress or submitted before")
    total, failed = len(plan.directories), 0
    if new:
        for name in executor.submit(study.name, _tasks(request, plan, new), study.out):
            directory = left.pop(name)
            status = directory.status
            if status is RunStatus.DONE:
                print_line(f"{total - len(left) - failed} of {total}  {name}: done")
            else:
                failed += 1
                print_line(f"{name}: {status.value}; its log: {directory.log}")
    code = ExitCode.FAILED if failed else ExitCode.OK
    done = total - len(left) - failed
    with_failed = f", {failed} failed" if failed else ""
    with_left = f", {len(left)} submitted or in progress" if left else ""
    so_far = f"{done} of {counted(total, 'run')} done{with_failed}{with_left}"
    print_line(f"{study.name}: {so_far} (exit code {int(code)})")
    if left:
        print_line(f"  they are shown by: decentnode watch {shlex.quote(str(study.out))}")
    if left or failed:
        print_line(f"  what is missing then: {request.command}")
    print_line(f"  results   {study.out}")
    return code


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
    directories = [RunDirectory(run) for run in request.select(study)]
    statuses = {directory.planned.name: directory.status for directory in directories}
    # Those that another sweep runs now will be done.
    made = [d for d in directories if statuses[d.planned.name] in (RunStatus.DONE, RunStatus.RUNNING)]
    refuse_changes([d for d in made if (d.path / "run.json").exists()], request.accepts_other_code)
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
