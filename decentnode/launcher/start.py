"""One machine's part of a run, from its settings to its exit code."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import torch

from decentnode.config.error_locations import with_locations
from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.config.settings import Settings
from decentnode.core.process_setup import check_kernel
from decentnode.core.streams import print_line
from decentnode.datasets.base import Dataset, LoadedDataset
from decentnode.errors import ExitCode
from decentnode.graph.declared import notices
from decentnode.launcher import preflight
from decentnode.launcher.cluster.scheduler import idle_notice, settle, this_machine
from decentnode.launcher.early_end import end_announced, end_announced_in_store
from decentnode.launcher.launcher import Launcher
from decentnode.launcher.recovery.resume import ResumePlan, how_it_is_over, started_before
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.live_view import screen_for
from decentnode.launcher.state.run_directory import RunLock, locked_directory
from decentnode.node import dry_round
from decentnode.node.experiment import Experiment
from decentnode.node.factory import is_on_cpu
from decentnode.node.late_imports import import_compiler, import_for_nodes
from decentnode.node.privacy.notices import notices_of


def run_here(
    settings: Settings, config: ConfigSource, overrides: Sequence[Override],
    resume_plan: ResumePlan | None = None, dataset: LoadedDataset | None = None,
    screen: Callable[[TextIO], LiveConsole] = screen_for, or_resume: bool = False,
    lock: RunLock | None = None, repeats_losses: bool = False, threads: int | None = None,
) -> tuple[ExitCode, Path]:  # fmt: skip
    """Runs this machine's part; returns its exit code and its directory, or raises what prevented the start.

    `resume_plan`: the run to resume; `dataset`: all samples, where they are loaded; `config` and
    `overrides`: where the settings are from, for errors. `or_resume`: resume the run if an earlier start has
    begun it; a run that has ended by itself is left as it is, but for one that lost nodes if it
    `repeats_losses`. `lock`: the run's, if it is held already. `threads`: of torch in each process, where the
    settings leave it open and another run had that number.
    """
    check_kernel()
    # Nodes are forked from this process, so it computes on one thread.
    imported = plugin_threads()
    with with_locations(config, overrides), ExitStack() as early_end:
        with end_announced_in_store(settings.mapping.make().job):
            settings, job = settle(settings, or_resume)
        machine = this_machine(settings)
        early_end.enter_context(end_announced(settings, machine, job))
        if or_resume:
            # First of all: of two jobs with one name one alone binds ports and meets other machines.
            lock = lock or locked_directory(Path(str(settings.run_dir)))
            resume_plan = started_before(settings, overrides, lock=lock)
            if resume_plan is not None and (over := how_it_is_over(resume_plan, machine, repeats_losses)):
                line, code = over
                print_line(line)
                return code, resume_plan.run_dir
        shortage, graph = preflight.check(settings, machine), settings.graph.make()
        for line in filter(None, [shortage, idle_notice(settings), sample_notice(settings), *notices(graph)]):
            print(line, file=sys.stderr)
        begun = resume_plan.run_dir if resume_plan else None
        experiment = Experiment.from_settings(settings, dataset, begun)
        for line in (*experiment.samples.dataset.notices, *notices_of(experiment)):
            print(line, file=sys.stderr)
        import_for_nodes(settings)
        if dry_round.is_needed(settings):
            findings = dry_round.check(experiment, saves=resume_plan is not None)
            for line in findings.notices:
                print(line, file=sys.stderr)
            if findings.uses_compiler:
                import_compiler()
        if is_on_cpu(settings):
            # After the dry round, which has a time limit and reports a compiler that fails.
            settings.training.warm_up()
        experiment.graph.graph.draw_ahead(range(experiment.settings.rounds))
        threads = threads or plugin_threads() or imported
        console = screen(sys.stdout)
        launcher = Launcher(
            experiment, machine, console, resume_plan, job=job,
            threads=threads, or_resume=or_resume, lock=lock,
        )  # fmt: skip
        console.opened(launcher.run_dir)
    return launcher.run(), launcher.run_dir


def plugin_threads() -> int | None:
    """Returns the threads that a plug-in's code has set, None for none; sets this process back to one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads if threads > 1 else None


def sample_notice(settings: Settings) -> str:
    """Returns the line that says that nodes train on a generated sample; empty where they do not."""
    dataset: Dataset = settings.dataset.make()
    if not dataset.is_sample:
        return ""
    return f"dataset.sample: a generated sample in the format of {settings.dataset.name}, not its files"
