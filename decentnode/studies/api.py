"""Studies from Python: `decentnode.sweep`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decentnode.api.commands import raise_failure
from decentnode.api.process import answer_of
from decentnode.api.work import CommandAnswer, CommandRequest, Screen
from decentnode.errors import BadInput
from decentnode.results.study import Study
from decentnode.studies.study_file import read_study
from decentnode.studies.sweep import command


def sweep(
    study: str | Path | Mapping[str, Any], /, *, progress: bool = True, accept_code_change: bool = False,
    **overrides: Any,
) -> Study:  # fmt: skip
    """Runs what is missing of a study, and returns all its runs.

        study = decentnode.sweep({"base": "quickstart", "axes": {"sharing": ["gossip", "choco"]}, "seeds": 3})

    `overrides` change the keys of the study's file, such as `seeds=3`, `jobs=1` or `on="ray"`. Where Slurm
    starts the runs, `on={"name": "slurm", "wait": True}` waits for them. Raises as `run`.
    """
    content = dict(study) if isinstance(study, Mapping) else str(study)
    answer = answer_of(
        CommandRequest("sweep", content, overrides, accepts_other_code=accept_code_change), progress
    )
    raise_failure(answer.directory, answer.code, "the same call")
    return Study(answer.directory)


def work_on_sweep(request: CommandRequest, screen: Screen) -> CommandAnswer:
    """Runs what is missing of a study, in the process of the command."""
    del screen
    if objects := request.objects():
        raise BadInput(
            f"sweep: {', '.join(objects)}: a study names its plug-ins, because runs that are done are read "
            "again from files; write module:Class"
        )
    overrides = [request.overrides] if request.overrides else []
    out = read_study(request.source, overrides).out
    request_of_sweep = command.SweepRequest(request.source, overrides, request.accepts_other_code)
    return CommandAnswer(command.sweep(request_of_sweep), str(out))
