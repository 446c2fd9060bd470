"""A run that is done once more, in a new directory, by what the first one has saved."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from decentnode.config import loader as config
from decentnode.config.error_locations import with_locations
from decentnode.config.overrides import Override
from decentnode.config.python_source import objects_in
from decentnode.config.settings import Settings
from decentnode.config.type_check import show
from decentnode.core.registry import import_from
from decentnode.core.streams import print_line
from decentnode.core.version import __version__
from decentnode.errors import BadInput, ExitCode
from decentnode.formats.reader import CodeVersion, code_folders, read_object, read_value
from decentnode.formats.run import FINISHED, RunFiles, run_directory
from decentnode.launcher.recovery.fingerprint import fingerprint
from decentnode.launcher.recovery.resume import differences, nodes_of_machines
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.live_view import screen_for
from decentnode.launcher.start import run_here
from decentnode.node.plugin_sources import PluginSources, changes
from decentnode.options import Effect


def repeat_here(
    run_dir: Path, overrides: Sequence[Override] = (), with_its_code: bool = False,
    screen: Callable[[TextIO], LiveConsole] = screen_for,
) -> tuple[ExitCode, Path]:  # fmt: skip
    """Repeats this machine's part of a run; returns exit code and directory as `run_here`.

    Says first what differs from the run, and at the end whether the models do. `with_its_code`: take
    plug-ins from the copies in the run. Raises BadInput where it has saved too little.
    """
    first_run = RunFiles(run_directory(run_dir))
    source = first_run.directory / "config.yaml"
    state = first_run.directory / "run.json"
    if not state.exists():
        raise BadInput(
            f"{run_dir}: this run was never started, so there is nothing to repeat; decentnode run {source}"
        )
    if with_its_code:
        import_from(*code_folders(first_run.directory), first=True)
    # No directory of the first run, and the objects that Python passes again.
    before = config.load(source, [objects_in(o) for o in overrides if not isinstance(o, str)])
    overrides = ["run_dir=null", *overrides]
    settings = config.load(source, overrides)
    if settings.is_of_scripts:
        raise BadInput(f"{run_dir}: a script has trained this run; start it again: decentnode launch SCRIPT")
    with with_locations(source, overrides):
        found = [*_changed_settings(before, settings), *_changed_code(before, state)]
    what = f"what differs: {'; '.join(found)}" if found else "code, versions and processor are the same"
    print_line(f"repeats {first_run.directory}; {what}")
    if why := settings.why_repeat_differs:
        print_line(f"its models will differ: {why}")
    code, directory = run_here(
        settings, source, overrides, screen=screen, threads=read_object(state).get("threads")
    )
    print_line(_verdict(first_run, RunFiles(directory), found))
    return code, directory


def _changed_settings(old_settings: Settings, new_settings: Settings) -> Iterator[str]:
    """Yields each setting that decides models and differs from that of the run."""

    def decides(effect: Effect) -> bool:
        both = old_settings, new_settings
        return effect.changes == "rounding" or any(one.decides_models(effect) for one in both)

    old, new = (
        config.resolved(settings, keep=decides)
        | {"mapping": nodes_of_machines(settings), "rounds": settings.rounds}
        for settings in (old_settings, new_settings)
    )
    return (f"{key} {show(now)} (was {show(was)})" for key, (was, now) in differences(old, new))


def _changed_code(settings: Settings, state: Path) -> Iterator[str]:
    """Yields what differs of the run's code and machine, and of the files that its settings name."""
    versions = read_value(state, "code", list[CodeVersion])
    for made, later in pairwise(versions):
        yield f"since round {later.round + 1} of the run: {changes(made, later)}"
    now = PluginSources(settings).version
    if versions and (changed := changes(versions[-1], now)):
        yield changed
    # The hash of the settings is of the version, too.
    is_comparable = not versions or versions[-1].environment.get("decentnode") == __version__
    made_by = fingerprint(settings, settings.graph.make())
    if is_comparable and read_object(state).get("settings") != made_by:
        yield "the content of a file that graph or sharing.weights names"


def _verdict(first_run: RunFiles, second_run: RunFiles, found: Sequence[str]) -> str:
    """Returns whether the models of both are the same, as a line."""
    unfinished = next((run for run in (first_run, second_run) if run.state != FINISHED), None)
    if unfinished is not None:
        return f"{unfinished.directory}: has not finished all rounds, so no models are compared"
    if first_run.model_hash == second_run.model_hash:
        return f"the same models as {first_run.directory}: {first_run.model_hash[:16]}"
    samples = {read_object(run.directory / "run.json").get("dataset") for run in (first_run, second_run)}
    why = [*found, *(["the samples"] if len(samples) > 1 else [])]
    ends = [run.summary.get("ended_rounds") for run in (first_run, second_run)]
    if ends[0] != ends[1] and (first_run.settings.get("evaluation") or {}).get("target"):
        why.append(f"a target ends a run in some round: after {ends[0]} then, {ends[1]} now")
    text = "; ".join(why) or "nothing is known to differ"
    hashes = f"{second_run.model_hash[:16]}, not {first_run.model_hash[:16]}"
    return f"other models than {first_run.directory}: {hashes} ({text})"
