"""Runs `decentnode run` as a user does, and reads off what it left."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from decentnode.results import read_records

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "benchmarks"
LIMIT = 900.0
"""Seconds that one command may take."""
CHECK_INTERVAL = 0.1


@dataclass(frozen=True)
class Run:
    """A run that has ended well."""

    seconds: float
    """From the start of the command to its end."""
    cpu_seconds: float
    """Processor time of all its processes, which other programs disturb less."""
    used_mb: float
    """By how much the memory of the whole machine was fuller at the fullest moment than before."""
    summary: dict[str, Any]
    first_round: list[float]
    """Of each node, the seconds from the start of the command to the start of its first round."""
    round_seconds: list[float]
    """For each round, the median over nodes of what it took, without the evaluation."""
    round_steps: list[int]
    """For each round, the local steps of the first node."""


def run_decentnode(config: str, *overrides: str) -> Run:
    """One command in an empty directory that is gone afterwards; raises RuntimeError when it fails."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run_dir = Path(folder) / "run"
        words = ["run", str(CONFIGS / config), f"run_dir={run_dir}", *overrides]
        began = time.time()
        with MemoryWatch() as memory:
            ended = call(["-m", "decentnode", *words])
        histories = [read_history(path, began) for path in sorted((run_dir / "records").iterdir())]
        summary = json.loads((run_dir / "summary.json").read_text())
        rounds = [median(column) for column in zip(*(h.rounds for h in histories), strict=True)]
        starts = [history.first_round for history in histories]
        return Run(
            ended.seconds, ended.cpu_seconds, memory.used_mb, summary, starts, rounds, histories[0].steps
        )  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A command that has ended well."""

    output: str
    seconds: float
    cpu_seconds: float


def call(words: list[str], **environment: str) -> Ended:
    """Runs a Python command; raises RuntimeError with the end of its output when it fails.

    Python keeps its bytecode, whatever the environment says: without it a start compiles 540 files, in .5 s.
    """
    environment = {"PYTHONDONTWRITEBYTECODE": "", **environment}
    began, before = time.monotonic(), cpu_of_children()
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
    if ended.returncode:
        tail = "\n".join((ended.stdout + ended.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(words)} ended with {ended.returncode}:\n{tail}")
    return Ended(ended.stdout, time.monotonic() - began, cpu_of_children() - before)


def cpu_of_children() -> float:
    """Processor seconds of every process that was started here and has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True)
class History:
    """One node's rounds in time."""

    first_round: float
    rounds: list[float]
    steps: list[int]


def read_history(path: Path, began: float) -> History:
    """The rounds in a node's records; their clock is set by the time of the last write."""
    everybody = read_records(path)
    # A file of many nodes has the rounds of all of them.
    records = [record for record in everybody if record.rank == everybody[0].rank]
    ends, tests = ([getattr(record, name) for record in records] for name in ("seconds", "evaluate_seconds"))
    first = records[0]
    start = ends[0] - first.train_seconds - first.exchange_seconds - first.mix_seconds - tests[0]
    rounds = [end - before - test for before, end, test in zip([start, *ends], ends, tests, strict=False)]
    steps = [record.steps for record in records]
    return History(path.stat().st_mtime - began - (ends[-1] - start), rounds, steps)


class MemoryWatch(threading.Thread):
    """Looks at the machine's memory while something runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._before = self._least = available_mb()

    @property
    def used_mb(self) -> float:
        """The most that was taken at any look."""
        return self._before - self._least

    def run(self) -> None:
        while not self._ended.wait(CHECK_INTERVAL):
            self._least = min(self._least, available_mb())

    def __enter__(self) -> "MemoryWatch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def available_mb() -> float:
    """Memory that programs could still get, as the kernel estimates it."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) / 1024


def regular_graph(nodes: int) -> str:
    """The override that puts so many nodes on a 4-regular graph."""
    return f"graph={{name: regular, nodes: {nodes}, degree: 4, seed: 1}}"
