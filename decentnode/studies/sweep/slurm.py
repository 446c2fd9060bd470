"""A study as a SLURM array: one task for each run that is not done."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from decentnode.config.settings import Settings
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, RunFailed
from decentnode.studies.expansion import PlannedRun
from decentnode.studies.study_file import PlannedStudy

MOST_PROCESSORS = 64


def script(study: PlannedStudy, runs: Sequence[PlannedRun], command: str) -> str:
    """Returns the text of a script for sbatch; raises BadInput for a directory that sbatch cannot read.

    `command`: the sweep, as a shell reads it.
    """
    if not str(study.out).isprintable() or "\\" in str(study.out):
        raise BadInput(
            f"out: {str(study.out)!a}: sbatch reads no directory of that name, which has a character "
            "of control or a backslash; name another one (out=...)"
        )
    # sbatch reads quotes as a shell does, and fills in what follows %.
    log = shlex.quote(f"{str(study.out).replace('%', '%%')}/slurm-%A_%a.log")
    processors = min(MOST_PROCESSORS, max(_processes(run.settings) for run in runs))
    words = shlex.split(command)
    # Another environment may be active where the task runs.
    words[:1] = [sys.executable, "-P", "-m", "decentnode"]
    lines = [
        "#!/bin/bash",
        f"# The runs of the study {study.name} that are not done, one task for each.",
        f"#SBATCH --job-name={study.name}",
        f"#SBATCH --array=0-{len(runs) - 1}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={processors}",
        f"#SBATCH --output={log}",
        "#SBATCH --open-mode=append",
        "# A task that reaches its limit of time is stopped gracefully, and resumes in another job.",
        "#SBATCH --signal=B:TERM@90",
        "set -euo pipefail",
        f"cd {shlex.quote(str(Path.cwd()))}",
        "runs=(",
        *(f"    {shlex.quote(run.name)}" for run in runs),
        ")",
        f'exec {shlex.join(words)} --only "${{runs[$SLURM_ARRAY_TASK_ID]}}"',
    ]
    return "\n".join(lines) + "\n"


def submit(text: str) -> str:
    """Passes a script to sbatch; returns its answer, or raises what prevented it."""
    try:
        done = subprocess.run(
            ["sbatch"], input=text, capture_output=True, text=True, timeout=Timeouts.scontrol, check=False
        )
    except FileNotFoundError as error:
        raise BadInput("--submit: there is no sbatch on this machine; --slurm prints the script") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunFailed(f"sbatch: {error}") from error
    if done.returncode:
        raise RunFailed(f"sbatch: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def _processes(settings: Settings) -> int:
    nodes: int = settings.mapping.make().machines[0].nodes
    processes: int = settings.communication.make().plan.processes(nodes)
    return processes
