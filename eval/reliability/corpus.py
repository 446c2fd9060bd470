"""Shows that bad input is refused in words, within 2 s beyond the imports, and good input accepted (R11).

    python eval/reliability/corpus.py [--jobs N] [--only TEXT] [--every K]

Each case of tests/corpus is a process of its own, as from a shell. Both the seconds that pass and those of
the processor are told, and what Python and torch alone take to be imported: the limit of 2 s holds for what
a case takes beyond it. On a busy machine it grows by as much as the imports take longer than their seconds
of the processor. Ends with 1 where a promise is broken.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.corpus.bad_cases import bad_cases  # noqa: E402
from tests.corpus.case import Case  # noqa: E402
from tests.corpus.good_cases import good_cases  # noqa: E402

MOST_SECONDS = 2.0
TIME_LIMIT = 60.0
IMPORTS = "import torch, decentnode.cli.app, decentnode.config.loader"
LONG = "t" * 110
"""A folder for temporary files whose sockets' paths are longer than the 107 letters of the kernel."""


@dataclass(frozen=True)
class Outcome:
    """One case, tried."""

    case: Case
    spent: "Spent"
    wrong: list[str]


@dataclass(frozen=True)
class Spent:
    """The seconds of one process: those that passed, and those of the processor."""

    wall: float
    cpu: float


def call(words: Sequence[str], folder: str | Path, **more: str) -> tuple[int, str, Spent]:
    """Exit code, what was said on standard error, and the time of a Python process."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=output,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more,
        )  # fmt: skip
        timer = threading.Timer(TIME_LIMIT, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        spent = Spent(time.monotonic() - started, usage.ru_utime + usage.ru_stime)
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace"), spent


def tried(case: Case, good: bool, busy: int) -> Outcome:
    """Runs a case in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        folder = Path(name)
        case.write(folder)
        code, output, spent = call(["-m", "decentnode", *case.command(busy)], folder)
        if not good:
            return Outcome(case, spent, case.violations(code, output, folder, busy))
        accepted = (code, output) == (0, "")
        return Outcome(case, spent, [] if accepted else [f"exit code {code}: {output.strip()}"])


def imports() -> Spent:
    """What Python and the imports take that every configuration needs, as medians of five."""
    seconds = [call(["-c", IMPORTS], ROOT)[2] for _ in range(5)]
    return Spent(median(spent.wall for spent in seconds), median(spent.cpu for spent in seconds))


def all_tried(cases: Sequence[Case], good: bool, jobs: int) -> list[Outcome]:
    """All cases, some at a time."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(jobs) as pool:
        busy = listener.getsockname()[1]
        return list(pool.map(lambda case: tried(case, good, busy), cases))


def run_with_long_paths() -> list[str]:
    """A run whose temporary folder has too long a name for sockets must work all the same."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        folder = Path(name) / LONG
        folder.mkdir()
        small = ["rounds=2", "graph={name: ring, nodes: 4}", "mapping=null", f"run_dir={name}/run"]
        command = ["run", str(ROOT / "configs" / "quickstart.yaml"), *small, "communication.local=ipc"]
        code, output, _ = call(["-m", "decentnode", *command], name, TMPDIR=str(folder))
        return [] if code == 0 else [f"TMPDIR of {len(LONG)} letters: {output.strip()}"]


def summary(kind: str, outcomes: Sequence[Outcome], alone: Spent) -> list[str]:
    """Prints the figures of a kind; gives what breaks a promise."""
    kept = sum(not outcome.wrong for outcome in outcomes)
    print(f"{kind}: {kept} of {len(outcomes)} as promised")
    for name, base, seconds in (
        ("passed", alone.wall, [(outcome.spent.wall, outcome.case.id) for outcome in outcomes]),
        ("of the processor", alone.cpu, [(outcome.spent.cpu, outcome.case.id) for outcome in outcomes]),
    ):
        worst, id = max(seconds)
        middle, over = (
            median(value for value, _ in seconds),
            sum(value > MOST_SECONDS for value, _ in seconds),
        )
        print(f"  seconds {name}: {middle:.2f} in the middle, at most {worst:.2f} ({id}), of which", end=" ")
        print(
            f"{max(0.0, worst - base):.2f} beyond the imports; {over} cases above {MOST_SECONDS:.0f} s in all"
        )
    return [f"{outcome.case.id}: {wrong}" for outcome in outcomes for wrong in outcome.wrong]


def slow(outcomes: Sequence[Outcome], alone: Spent) -> list[str]:
    """Which cases took longer beyond the imports than is promised, were the machine ours alone."""
    limit = MOST_SECONDS * max(1.0, alone.wall / alone.cpu)
    return [
        f"{one.case.id}: {one.spent.wall - alone.wall:.2f} s beyond the imports; {limit:.2f} are promised"
        for one in outcomes
        if one.spent.cpu - alone.cpu > MOST_SECONDS or one.spent.wall - alone.wall > limit
    ]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--jobs", type=int, default=1, help="cases at a time; more make each slower")
    options.add_argument("--only", default="", help="cases whose name has this text")
    options.add_argument("--every", type=int, default=1, help="only every k-th of them, for a quick look")
    arguments = options.parse_args()
    alone = imports()
    print(f"imports alone: {alone.wall:.2f} s, {alone.cpu:.2f} s of the processor")
    wrong: list[str] = []
    for kind, cases in (("bad", bad_cases()), ("good", good_cases())):
        chosen = [case for case in cases if arguments.only in case.id and not case.has_null][
            :: arguments.every
        ]
        if chosen:
            outcomes = all_tried(chosen, kind == "good", arguments.jobs)
            wrong += summary(kind, outcomes, alone) + (slow(outcomes, alone) if kind == "bad" else [])
    wrong += run_with_long_paths()
    print(*wrong, sep="\n")
    print("every promise is kept" if not wrong else f"{len(wrong)} promises are broken")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
