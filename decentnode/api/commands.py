"""Commands from Python. Those that compute work in a process of their own, and this one stays as it was.

Those that return a `Run` or a `Study` are in the layers that have these: `results/api.py`, `studies/api.py`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decentnode.api.process import answer_of
from decentnode.api.work import CommandRequest
from decentnode.config.loader import resolved
from decentnode.config.settings import Settings
from decentnode.core.text import how_it_ended
from decentnode.errors import STOPPED_BY, ExitCode, RunFailed
from decentnode.formats.reader import StrPath, read_object

Configuration = str | Path | Mapping[str, Any] | Settings
"""The path of a YAML file, the name of a shipped configuration, or its values."""


def validate(config: Configuration, /, *, load: bool = True, **overrides: Any) -> dict[str, Any]:
    """Checks a configuration, and returns it with its defaults filled in; raises BadInput with every defect.

    `load`: whether to load the dataset and make one dry round, too. What columns of a table became, and what
    the user should know, goes to stderr, a line each.
    """
    answer = answer_of(CommandRequest("validate", values_of(config), overrides, loads=load), shows=False)
    for line in answer.lines:
        print(line, file=sys.stderr)
    return answer.values


def verify(run: StrPath, /) -> list[str]:
    """Returns what does not belong together in the files of a run, one line each; empty: all does.

    Compares records, checkpoints, evaluations, kept models, transcripts, events, partition and summary.
    Starts nothing, and imports no plug-in. Raises BadInput for a run in progress, and for what is no run.
    """
    from decentnode.launcher.recovery.verify import verify as problems_of  # loads torch

    return problems_of(run)


def calibrate(config: Configuration, /, **overrides: Any) -> dict[str, Any]:
    """Measures a node's local steps on this machine, and returns them as `training.pace` for virtual time.

        decentnode.run("simulated", training={"pace": decentnode.calibrate("simulated")})

    Its `step_seconds` are the median, and its `slowdown` is lognormal if steps differ by 5 % or more. The
    configuration needs no `simulated`, and no pace. Raises BadInput.
    """
    return answer_of(CommandRequest("calibrate", values_of(config), overrides), shows=False).values


def values_of(config: Configuration) -> str | dict[str, Any]:
    """Returns the values of a configuration, or its path or name."""
    if isinstance(config, Settings):
        return resolved(config, with_objects=True)
    return dict(config) if isinstance(config, Mapping) else str(config)


def first_loss(directory: str) -> str:
    """Returns why the first node of a run was lost; where to look, if its summary does not tell."""
    summary = Path(directory) / "summary.json"
    lost = read_object(summary).get("lost_nodes") if summary.exists() else None
    if not lost:
        return "its log says why, or logs/ in its directory"
    rank, reason = next(iter(lost.items()))
    return reason if reason.startswith(f"rank {rank}") else f"rank {rank}: {reason}"


def raise_failure(directory: str, code: int, command: str) -> None:
    """Raises for the exit code of a run or a study without a usable result; `command` continues it."""
    if code in STOPPED_BY.values():
        how = f"{directory}: stopped; {command} continues it" if directory else "stopped before the start"
        raise KeyboardInterrupt(how)
    if code in (ExitCode.FAILED, ExitCode.OUT_OF_MEMORY):
        raise RunFailed(
            f"{directory}: ended without a usable result (exit code {code}); {first_loss(directory)}"
        )
    if code < 0:
        raise RunFailed(f"the process of the run was {how_it_ended(code)}")
