"""Commands from Python. Those that compute work in a process of their own, and this one stays as it was."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decentnode.api.process import answer_of
from decentnode.api.work import CommandRequest
from decentnode.config.loader import resolved
from decentnode.config.settings import Settings
from decentnode.core.text import counted, how_it_ended
from decentnode.errors import STOPPED_BY, ExitCode, RunFailed
from decentnode.results.reader import read_object
from decentnode.results.run import Run
from decentnode.results.study import Study

Configuration = str | Path | Mapping[str, Any] | Settings
"""The path of a YAML file, the name of a shipped configuration, or its values."""


def run(config: Configuration, /, *, progress: bool = True, **overrides: Any) -> Run:
    """Runs an experiment on this machine, and returns its results.

        run = decentnode.run("quickstart", rounds=20, sharing={"name": "choco", "gamma": 0.3})

    `overrides` change the configuration as a file that extends it would: mappings change single keys, and a
    plug-in of another name replaces the section. A plug-in may be an object: a class, a function, or an
    instance, of which each node gets a copy; a model's weights are the start of all nodes, and a dataset may
    be `(train, test)`. In a notebook all nodes are in one process (`communication: inproc`), unless
    `communication` is given here or has options in the file. The models after the last round are kept
    (`records.models`). `progress`: whether the progress is shown.

    Raises BadInput for what is wrong in the configuration, StartError, RunFailed, and KeyboardInterrupt after
    a Ctrl-C, which stops the nodes gracefully; a second one kills them.
    """
    request = CommandRequest("run", _values_of(config), overrides)
    answer = answer_of(request, progress)
    finished = _run_of(answer.directory, answer.code)
    # No file has it, so the run remembers it for `mean_model`.
    finished.network = request.network
    return finished


def resume(
    run: str | Path | Run, /, *, progress: bool = True, accept_code_change: bool = False,
    with_its_code: bool = False, **overrides: Any,
) -> Run:  # fmt: skip
    """Resumes a run that was stopped or killed, or one that has finished with more rounds (`rounds=N`).

    Plug-ins that were objects must be given again. `accept_code_change`: whether plug-ins may have been
    edited. `with_its_code`: whether the run's own copies of them are taken. Raises as `run`.
    """
    directory = run.directory if isinstance(run, Run) else run
    request = CommandRequest(
        "resume",
        str(directory),
        overrides,
        accepts_other_code=accept_code_change,
        with_its_code=with_its_code,
    )
    answer = answer_of(request, progress)
    return _run_of(answer.directory, answer.code)


def sweep(
    study: str | Path | Mapping[str, Any], /, *, progress: bool = True, accept_code_change: bool = False,
    **overrides: Any,
) -> Study:  # fmt: skip
    """Runs what is missing of a study, and returns all its runs.

        study = decentnode.sweep({"base": "quickstart", "axes": {"sharing": ["gossip", "choco"]}, "seeds": 3})

    `overrides` change the keys of the study's file, such as `seeds=3` or `jobs=1`. Raises as `run`.
    """
    content = dict(study) if isinstance(study, Mapping) else str(study)
    answer = answer_of(
        CommandRequest("sweep", content, overrides, accepts_other_code=accept_code_change), progress
    )
    _raise_failure(answer.directory, answer.code, "the same call")
    return Study(answer.directory)


def validate(config: Configuration, /, *, load: bool = True, **overrides: Any) -> dict[str, Any]:
    """Checks a configuration, and returns it with its defaults filled in; raises BadInput with every defect.

    `load`: whether to load the dataset and make one dry round, too.
    """
    answer = answer_of(CommandRequest("validate", _values_of(config), overrides, loads=load), shows=False)
    return answer.values


def verify(run: str | Path | Run, /) -> list[str]:
    """Returns what does not belong together in the files of a run, one line each; empty: all does.

    Compares records, checkpoints, evaluations, kept models, transcripts, events, partition and summary.
    Starts nothing, and imports no plug-in. Raises BadInput for a run in progress, and for what is no run.
    """
    from decentnode.launcher.recovery.verify import verify as problems_of  # loads torch

    return problems_of(run.directory if isinstance(run, Run) else run)


def calibrate(config: Configuration, /, **overrides: Any) -> dict[str, Any]:
    """Measures a node's local steps on this machine, and returns them as `training.pace` for virtual time.

        decentnode.run("simulated", training={"pace": decentnode.calibrate("simulated")})

    Its `step_seconds` are the median, and its `slowdown` is lognormal if steps differ by 5 % or more. The
    configuration needs no `simulated`, and no pace. Raises BadInput.
    """
    return answer_of(CommandRequest("calibrate", _values_of(config), overrides), shows=False).values


def _values_of(config: Configuration) -> str | dict[str, Any]:
    if isinstance(config, Settings):
        return resolved(config, with_objects=True)
    return dict(config) if isinstance(config, Mapping) else str(config)


def _run_of(directory: str, code: int) -> Run:
    _raise_failure(directory, code, "decentnode.resume")
    finished = Run(directory)
    if code == ExitCode.NODES_LOST:
        lost, edges = (len(finished.summary.get(key, ())) for key in ("lost_nodes", "broken_edges"))
        why = f"{counted(lost, 'node')} lost: {_first_loss(directory)}"
        if not lost:
            why = f"{counted(edges, 'edge')} between finished nodes stayed dropped"
        warnings.warn(f"{directory}: the run has finished; {why}", stacklevel=3)
    return finished


def _first_loss(directory: str) -> str:
    """Returns why the first node of a run was lost; where to look, if its summary does not tell."""
    summary = Path(directory) / "summary.json"
    lost = read_object(summary).get("lost_nodes") if summary.exists() else None
    if not lost:
        return "its log says why, or logs/ in its directory"
    rank, reason = next(iter(lost.items()))
    return reason if reason.startswith(f"rank {rank}") else f"rank {rank}: {reason}"


def _raise_failure(directory: str, code: int, command: str) -> None:
    """Raises for the exit code of a run or a study without a usable result; `command` continues it."""
    if code in STOPPED_BY.values():
        how = f"{directory}: stopped; {command} continues it" if directory else "stopped before the start"
        raise KeyboardInterrupt(how)
    if code in (ExitCode.FAILED, ExitCode.OUT_OF_MEMORY):
        raise RunFailed(
            f"{directory}: ended without a usable result (exit code {code}); {_first_loss(directory)}"
        )
    if code < 0:
        raise RunFailed(f"the process of the run was {how_it_ended(code)}")
