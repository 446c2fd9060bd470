"""Runs as tasks of Slurm arrays, and as steps of several machines."""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import ClassVar

import msgspec

from decentnode.core.registry import EXECUTORS
from decentnode.core.streams import print_line
from decentnode.core.text import counted
from decentnode.core.timeouts import Timeouts
from decentnode.errors import UNDECODABLE, BadInput, RunFailed
from decentnode.options import Positive
from decentnode.studies.executors.base import Executor, RunTask

MOST_PROCESSORS = 64
COMMANDS = ("sbatch", "squeue", "scontrol")
JOBS = "slurm.jsonl"
"""The file in the directory of a study with a line for each job that was submitted."""
POLL_INTERVAL = 5.0
_SIZE = re.compile(r"^MaxArraySize\s*=\s*(\d+)$", re.MULTILINE)


class Submitted(msgspec.Struct):
    """A job, and the run of each task of it."""

    job: str
    runs: list[str]


@EXECUTORS.register("slurm")
@dataclass
class Slurm(Executor):
    """Arrays of Slurm (Yoo et al., JSSPP 2003), with a task for each run; it is requeued, and continues."""

    options: tuple[str, ...] = ()
    """Further options of sbatch, such as `--time=02:00:00`."""
    processors: Positive | None = None
    """Processors of a task; null: one for each process of the run, 64 at most."""
    at_once: Positive | None = None
    """Tasks of an array that run at the same time, at most; null: as many as Slurm starts."""
    wait: bool = False
    """Whether the sweep stays until all jobs have ended."""
    several_machines: ClassVar[bool] = True

    @property
    def is_exclusive(self) -> bool:
        return "SBATCH_EXCLUSIVE" in os.environ or any(
            option.split("=")[0] == "--exclusive" for option in self.options
        )

    def check(self) -> None:
        for option in self.options:
            if not option.startswith("-") or not option.isprintable():
                raise BadInput(f"on.options: {option!a}: write an option of sbatch, such as --time=02:00:00")
        if missing := [command for command in COMMANDS if shutil.which(command) is None]:
            raise BadInput(
                f"on: slurm: there is no {missing[0]} on this machine; sweep on a login host of the cluster, "
                "or with --on local"
            )

    def submit(self, study: str, tasks: Sequence[RunTask], out: Path) -> Iterator[str]:
        most = array_size()
        # All are checked before the first one is submitted.
        scripts = [
            (chunk, script(study, chunk, out, self))
            for _, group in groupby(sorted(tasks, key=_place), key=_place)
            for chunk in _chunks([*group], most)
        ]
        for chunk, text in scripts:
            job = _answer(["sbatch", "--parsable"], text).split(";")[0]
            with (out / JOBS).open("ab") as file:
                file.write(msgspec.json.encode(Submitted(job, [task.name for task in chunk])) + b"\n")
            print_line(f"submitted job {job}: {counted(len(chunk), 'run')}")
        left = {task.name for task in tasks} if self.wait else set[str]()
        while left:
            time.sleep(POLL_INTERVAL)
            ended = left.difference(self.queued(out))
            left -= ended
            yield from sorted(ended)

    def queued(self, out: Path) -> Collection[str]:
        try:
            lines = (out / JOBS).read_bytes().splitlines()
            jobs = {
                job.job: job.runs for job in (msgspec.json.decode(line, type=Submitted) for line in lines)
            }
        except FileNotFoundError:
            return ()
        except UNDECODABLE as error:
            raise BadInput(f"{out / JOBS}: {error}; remove the file") from error
        answer = _answer(["squeue", "--me", "--array", "--noheader", "--format=%i"])
        found = (word.partition("_") for word in answer.split())
        return {
            jobs[job][int(task)]
            for job, _, task in found
            if task.isdecimal() and int(task) < len(jobs.get(job, ()))
        }


def script(study: str, tasks: Sequence[RunTask], out: Path, executor: Slurm) -> str:
    """Returns the text of a script for sbatch; raises BadInput for a directory that sbatch cannot read."""
    if not str(out).isprintable() or "\\" in str(out):
        raise BadInput(
            f"out: {str(out)!a}: sbatch reads no directory of that name, which has a character "
            "of control or a backslash; name another one (out=...)"
        )
    # sbatch reads quotes as a shell does, and fills in what follows %.
    log = shlex.quote(f"{str(out).replace('%', '%%')}/slurm-%A_%a.log")
    first = tasks[0]
    processors = executor.processors or min(MOST_PROCESSORS, max(task.processes for task in tasks))
    several = first.machines > 1
    lines = [
        "#!/bin/bash",
        f"# Runs of the study {study}, one task for each.",
        f"#SBATCH --job-name={study}",
        f"#SBATCH --array=0-{len(tasks) - 1}{f'%{executor.at_once}' if executor.at_once else ''}",
        f"#SBATCH --nodes={first.machines}",
        *([f"#SBATCH --nodelist={','.join(first.hosts)}"] if first.hosts else []),
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={processors}",
        f"#SBATCH --output={log}",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "# A task that reaches its limit of time is stopped gracefully, and continues in another job.",
        f"#SBATCH --signal={'' if several else 'B:'}TERM@90",
        *(f"#SBATCH {shlex.quote(option)}" for option in executor.options),
        "set -euo pipefail",
        f"cd {shlex.quote(str(first.folder))}",
        "commands=(",
        *(f"    {shlex.quote(shlex.join(task.command))}" for task in tasks),
        ")",
    ]
    start = ""
    if several:
        lines.append("export DECENTNODE_SECRET=${DECENTNODE_SECRET:-$(openssl rand -hex 32)}")
        start = "srun --label --kill-on-bad-exit=0 "
    lines.append(f'eval "exec {start}${{commands[$SLURM_ARRAY_TASK_ID]}}"')
    return "\n".join(lines) + "\n"


def array_size() -> int:
    """Returns how many tasks an array may have; raises BadInput where Slurm accepts none."""
    found = _SIZE.search(_answer(["scontrol", "show", "config"]))
    size = int(found[1]) if found else 0
    if size < 1:
        what = "is 0" if found else "is not in `scontrol show config`"
        raise BadInput(
            f"on: slurm: MaxArraySize {what}, so this Slurm accepts no arrays; set it in slurm.conf, or "
            "start the commands of --list --json"
        )
    return size


def _place(task: RunTask) -> tuple[int, Sequence[str]]:
    return task.machines, tuple(task.hosts)


def _chunks(tasks: Sequence[RunTask], size: int) -> Iterator[Sequence[RunTask]]:
    return (tasks[first : first + size] for first in range(0, len(tasks), size))


def _answer(command: Sequence[str], text: str = "") -> str:
    """Returns what a command of Slurm prints; raises RunFailed with its complaint."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=Timeouts.scontrol, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunFailed(f"{command[0]}: {error}") from error
    if done.returncode:
        raise RunFailed(f"{command[0]}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()
