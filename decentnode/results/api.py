"""Experiments from Python: `decentnode.run` and `decentnode.resume`."""

import os
import warnings
from typing import Any

from decentnode.api.commands import Configuration, first_loss, raise_failure, values_of
from decentnode.api.process import answer_of
from decentnode.api.work import CommandRequest
from decentnode.core.text import counted
from decentnode.errors import ExitCode
from decentnode.formats.reader import StrPath
from decentnode.results.run import Run


def run(config: Configuration, /, *, progress: bool = True, or_resume: bool = False, **overrides: Any) -> Run:
    """Runs an experiment on this machine, and returns its results.

        run = decentnode.run("quickstart", rounds=20, sharing={"name": "choco", "gamma": 0.3})

    `overrides` change the configuration as a file that extends it would: mappings change single keys, and a
    plug-in of another name replaces the section. A plug-in may be an object: a class, a function, or an
    instance, of which each node gets a copy; a model's weights are the start of all nodes, and a dataset may
    be `(train, test)`. In a notebook all nodes are in one process (`communication: inproc`), unless
    `communication` is given here or has options in the file. The models after the last round are kept
    (`records.models`). `progress`: whether the progress is shown. `or_resume`: resumes the run if an earlier
    call has begun it, and returns it if it has finished; it needs a `run_dir`, or `DECENTNODE_JOB`.

    Raises BadInput for what is wrong in the configuration, StartError, RunFailed, and KeyboardInterrupt after
    a Ctrl-C, which stops the nodes gracefully; a second one kills them.
    """
    request = CommandRequest("run", values_of(config), overrides, or_resume=or_resume)
    answer = answer_of(request, progress)
    finished = run_of(answer.directory, answer.code)
    # No file has it, so the run remembers it for `mean_model`.
    finished.network = request.network
    return finished


def resume(
    run: StrPath, /, *, progress: bool = True, accept_code_change: bool = False,
    with_its_code: bool = False, **overrides: Any,
) -> Run:  # fmt: skip
    """Resumes a run that was stopped or killed, or one that has finished with more rounds (`rounds=N`).

    Plug-ins that were objects must be given again. `accept_code_change`: whether plug-ins may have been
    edited. `with_its_code`: whether the run's own copies of them are taken. Raises as `run`.
    """
    request = CommandRequest(
        "resume",
        os.fspath(run),
        overrides,
        accepts_other_code=accept_code_change,
        with_its_code=with_its_code,
    )
    answer = answer_of(request, progress)
    return run_of(answer.directory, answer.code)


def repeat(run: StrPath, /, *, progress: bool = True, with_its_code: bool = False, **overrides: Any) -> Run:
    """Does a run once more in a new directory, by what it has saved, and returns the new one.

        again = decentnode.repeat(run)
        assert again.model_hash == run.model_hash

    Shows first what differs now: settings, code, versions, the processor. Plug-ins that were objects must be
    given again; `with_its_code` as for `resume`. Raises as `run`.
    """
    request = CommandRequest("repeat", os.fspath(run), overrides, with_its_code=with_its_code)
    answer = answer_of(request, progress)
    finished = run_of(answer.directory, answer.code)
    finished.network = request.network
    return finished


def run_of(directory: str, code: int) -> Run:
    """Returns the run that a process has ended with this code; raises as `run`."""
    raise_failure(directory, code, "decentnode.resume")
    finished = Run(directory)
    if code == ExitCode.NODES_LOST:
        lost, edges = (len(finished.summary.get(key, ())) for key in ("lost_nodes", "broken_edges"))
        why = f"{counted(lost, 'node')} lost: {first_loss(directory)}"
        if not lost:
            why = f"{counted(edges, 'edge')} between finished nodes stayed dropped"
        warnings.warn(f"{directory}: the run has finished; {why}", stacklevel=3)
    return finished
