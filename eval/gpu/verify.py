"""Runs every check that needs a GPU, one after the other: a line for each, and a JSON object at the end.

    eval/gpu/verify.sh [--backend nccl|gloo] [--only NAME ...] [--output DIR] [--seconds 480]
    python eval/gpu/verify.py --table VERIFY.json ... > TABLE.md

The most valuable checks come first, because all together have `--seconds`. Each is a command with a limit of
its own; afterwards all of its processes are killed, those that it left behind, too. Logs, runs and the report
`verify.json` go to `--output` (build/verify). `--backend gloo` does all of it on the CPU, to try it out.
"""

import argparse
import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from decentnode.errors import BadInput
from decentnode.results import read_object, read_records

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36
GPU_TESTS = (
    "tests/communication/test_device_copies.py",
    "tests/sharing/test_schemes_on_a_gpu.py",
    "tests/transforms/test_transforms_on_a_gpu.py",
)
MOST_LOG = 3000
"""Characters of a log in the report."""
SAME_RUNS = ("shared memory", "zeromq", "hybrid", "torch_distributed", "one process", "background evaluation")
"""Runs whose models are those of the run on the CPU, but for rounding."""
LAST_SECONDS = 10.0
"""How long killed processes may take to end."""
SAME_ACCURACY = 0.005
"""How far the accuracy of a run may be from that of the same run on the CPU, as a fraction."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One command, and how its figures are read."""

    part: str
    name: str
    command: Sequence[str]
    limit: float
    """Seconds after which the check has failed."""
    read: Callable[[str, Path], Figures] = lambda log, run_dir: {}
    """Reads figures from the output and the directory of the run; raises AssertionError if one is wrong."""
    exit_code: int = 0
    environment: dict[str, str] = field(default_factory=dict)


class Plan:
    """All checks of a backend; nccl runs on the GPU, gloo on the CPU."""

    def __init__(self, backend: str, output: Path) -> None:
        self.backend, self.output = backend, output
        self.is_on_gpu = backend == "nccl"
        self.device = "cuda" if self.is_on_gpu else "cpu"
        self.checks = [
            *self.primitives(), *self.transports(), *self.steps(), *self.library(), *self.losses(),
            *self.features(),
        ]  # fmt: skip

    def primitives(self) -> list[Check]:
        """Tests, process groups and kernels."""
        script, on_device = [sys.executable, "-u"], ["--device", self.device]
        pytest = [*script, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadfile"]
        only_gpu = ["-m", "gpu"] if self.is_on_gpu else []
        check = [*script, "eval/gpu/check.py", "--backend", self.backend]
        mix = [*script, "eval/benchmarks/mix.py", "--repeats", "5"]
        return [
            Check("tests", "gpu tests", [*pytest, *only_gpu, *GPU_TESTS], 120, read_pytest,
                  environment={"TRITON_INTERPRET": "0" if self.is_on_gpu else "1"}),
            Check("process group", "check.py", [*check, "--rounds", "10"], 75, read_check),
            Check("kernels", "kernels.py", [*script, "eval/gpu/kernels.py", *on_device], 60, read_kernels),
            Check("kernels", "bench mix", mix if self.is_on_gpu else [*mix, "--small"], 45, read_mix),
        ]  # fmt: skip

    def transports(self) -> list[Check]:
        """The quickstart over each transport: the accuracy is that of the CPU."""
        group = {"backend": self.backend, "share_gpu": self.is_on_gpu}
        transports = {
            "shared memory": {"name": "zeromq", "local": "shared_memory"},
            "zeromq": {"name": "zeromq", "local": "tcp"},
            "hybrid": {"name": "hybrid", "group_ranks": [0, 1], **group},
            "torch_distributed": {"name": "torch_distributed", **group},
        }
        four = "graph={name: ring, nodes: 4}"
        checks = [self.run("transports", "on the CPU", 40, "device=cpu", "rounds=20", four)]
        checks += [
            self.run("transports", name, 45, "rounds=20", four, f"communication={json.dumps(options)}")
            for name, options in transports.items()
        ]
        return [*checks, self.run("transports", "16 nodes", 60, "rounds=20")]

    def steps(self) -> list[Check]:
        """How steps are computed."""
        two = ("rounds=5", "graph={name: ring, nodes: 3}", "failures.start_deadline=100")
        private = "{name: dp_sgd, clip: 1.0, noise: 1.0, delta: 1.0e-5, generator: seeded}"
        no_momentum = ("training.optimizer={name: SGD, lr: 0.5}", "dataset.partition=iid")
        return [
            self.run("steps", "amp bfloat16", 40, *two, "training.amp=bfloat16"),
            self.run("steps", "amp float16", 40, *two, "training.amp=float16"),
            self.run("steps", "private", 60, *two, f"training.privacy={private}", *no_momentum),
            self.run("steps", "compile", 100, *two, "training.compile=true"),
            self.run("steps", "reduce-overhead", 100, *two, "training.compile=reduce-overhead"),
        ]

    def features(self) -> list[Check]:
        """What else a node does beside its vector on the device."""
        four, choco = "graph={name: ring, nodes: 4}", "{name: choco, gamma: 0.2, transforms: [{name: top_k}]}"
        windows = "time_model={name: asynchronous, seconds_per_round: 0.2}"
        overlap = "communication={name: zeromq, overlap: true}"
        return [
            self.run("features", "compressed", 45, "rounds=20", four, f"sharing={choco}"),
            self.run("features", "one process", 45, "rounds=20", four, "communication=inproc"),
            self.run("features", "overlap", 45, "rounds=20", four, overlap),
            self.run("features", "asynchronous", 45, "rounds=10", four, windows, "sharing=push_gossip"),
            self.run("features", "background evaluation", 45, "rounds=20", four,
                     "evaluation={every: 5, background: true}"),
        ]  # fmt: skip

    def library(self) -> list[Check]:
        """The wrapper under torchrun, and the all-reduce baseline."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
        launch = [sys.executable, "-m", "decentnode", "launch", "--nodes", "3", "--set"]
        launch += [f"run_dir={self.run_dir('own loop')}"]
        train = [*torchrun, "eval/library/train_digits.py", "--epochs", "5", "--device", self.device]
        return [
            Check("library", "wrapper", [*train, "--communication", "zeromq"], 60, read_wrapper),
            Check("library", f"wrapper, {self.backend}", [*train, "--communication", "torch_distributed"], 60,
                  read_wrapper),
            Check("library", "own loop", [*launch, "eval/library/train_gpt.py", "--steps", "100", "--device",
                  self.device], 90, read_own_loop),
            self.run("library", "all-reduce", 45, "rounds=10", "graph={name: ring, nodes: 3}", *self.ddp()),
        ]  # fmt: skip

    def losses(self) -> list[Check]:
        """One of three ranks is killed: the others finish; of the baseline all end."""
        three = ("graph={name: ring, nodes: 3}", "rounds=20", "evaluation={every: 0}")
        crash = "faults=[{name: crash, ranks: 2, rounds: 8}]"
        group = {"name": "torch_distributed", "backend": self.backend, "share_gpu": self.is_on_gpu}
        communication = f"communication={json.dumps(group)}"
        return [
            self.run("losses", "killed rank", 60, *three, crash, communication, exit_code=3, read=read_loss),
            self.run("losses", "killed rank, all-reduce", 60, *three, crash, *self.ddp(), exit_code=4,
                     read=read_ended),
        ]  # fmt: skip

    def ddp(self) -> tuple[str, ...]:
        """Overrides that make a run its all-reduce baseline."""
        shares = f"training.share_gpu={str(self.is_on_gpu).lower()}"
        return "training.name=ddp", "sharing=none", f"training.backend={self.backend}", shares

    def run(
        self, part: str, name: str, limit: float, *overrides: str, exit_code: int = 0,
        read: Callable[[str, Path], Figures] | None = None,
    ) -> Check:  # fmt: skip
        """A run of the quickstart with some keys changed."""
        fixed = (f"run_dir={self.run_dir(name)}", f"device={self.device}", "failures.deadline=20")
        command = [sys.executable, "-m", "decentnode", "run", "configs/quickstart.yaml", *fixed, *overrides]
        return Check(part, name, command, limit, read or read_run, exit_code)

    def run_dir(self, name: str) -> Path:
        """The directory of the run of a check."""
        return self.output / "runs" / slug(name)


def slug(name: str) -> str:
    """A name as a part of a path."""
    return re.sub(r"\W+", "_", name)


def read_pytest(log: str, run_dir: Path) -> Figures:
    """How many tests passed."""
    passed = re.search(r"(\d+) passed", log)
    # With -q and no failure pytest prints dots and percentages alone.
    count = int(passed[1]) if passed else sum(line.count(".") for line in log.splitlines() if "%]" in line)
    assert count, "no test ran"
    return {"passed": count}


def read_check(log: str, run_dir: Path) -> Figures:
    """The largest error against W X, and GB/s of this emulation."""
    values = dict(re.findall(r"^(\w+) +ok +[^{]*(\{.*\})$", log, re.MULTILINE))
    assert len(values) == 5, f"only {', '.join(values)} are ok"
    numbers = {
        name: [float(x) for x in re.findall(r"\d\.\d+(?:e-\d+)?", text)] for name, text in values.items()
    }
    errors = numbers["undirected"] + numbers["directed"]
    return {
        "largest error": float(f"{max(errors):.1e}"),
        "GB/s": round(min(numbers["speed"]), 2),
        "seconds of a loss": round(max(numbers["survives"]), 2),
    }


def read_kernels(log: str, run_dir: Path) -> Figures:
    """How many checks hold, and how often the kernel's sum is that of the CPU to the bit."""
    equal = re.search(r"(\d+ of \d+) cases bit-equal to the CPU", log)
    return {
        "checks": len(re.findall(r"^  ok  ", log, re.MULTILINE)),
        "sums equal to the CPU's": equal and equal[1],
    }


def read_mix(log: str, run_dir: Path) -> Figures:
    """The least ratios to a copy and to torch's loop over the largest vectors, and the bandwidths."""
    content = json.loads(log.strip().splitlines()[-1])
    largest = max(f["elements"] for f in content["figures"])
    figures = [f for f in content["figures"] if f["elements"] == largest]
    return {
        "elements": largest,
        "of a copy": min(f["of_copy"] for f in figures),
        "times torch's loop, degree 2": min(f["times_loop"] for f in figures if f["degree"] == 2),
        "mix GB/s": min(f["mix_gb_per_s"] for f in figures),
        "copy GB/s": max(f["copy_gb_per_s"] for f in figures),
    }


def read_run(log: str, run_dir: Path) -> Figures:
    """Accuracy, hash and times of a run; its accuracy must be that of the same run on the CPU."""
    summary = read_object(run_dir / "summary.json")
    records = [
        r for rank in range(summary["nodes"]) for r in read_records(run_dir / f"records/{rank:05}.jsonl")
    ]
    later = [record for record in records if record.round > 0]
    accuracy = summary["test"]["accuracy"]["mean"]
    figures = {
        "accuracy %": round(100 * accuracy, 2),
        "exchange ms": milliseconds(record.exchange_seconds for record in later),
        "train ms": milliseconds(record.train_seconds for record in later),
        "start s": round(summary["startup_seconds"], 1),
        "hash": summary["model_hash"][:8],
    }
    reference = run_dir.parent / slug("on the CPU") / "summary.json"
    is_same_run = run_dir.name in {slug(name) for name in SAME_RUNS}
    if is_same_run and reference.exists():
        difference = abs(read_object(reference)["test"]["accuracy"]["mean"] - accuracy)
        assert difference <= SAME_ACCURACY, f"{figures}: the accuracy is {100 * difference:.2f} points off"
    return figures


def milliseconds(seconds: Any) -> float:
    """The median, in ms."""
    return round(1e3 * statistics.median(seconds), 2)


def read_wrapper(log: str, run_dir: Path) -> Figures:
    """The accuracy that each rank printed."""
    accuracies = [float(x) for x in re.findall(r"rank \d: accuracy ([\d.]+)", log)]
    assert len(accuracies) == 3, "not every rank printed its accuracy"
    assert min(accuracies) > 0.8, f"accuracies {accuracies}"
    return {"lowest accuracy %": round(100 * min(accuracies), 2)}


def read_own_loop(log: str, run_dir: Path) -> Figures:
    """What a script with a loop of its own has logged last."""
    summary = read_object(run_dir / "summary.json")
    assert summary["finished_nodes"] == 3, f"{summary['finished_nodes']} of 3 finished"
    return {"loss": round(summary["test"]["loss"]["mean"], 3), "rounds": summary["rounds"]}


def read_loss(log: str, run_dir: Path) -> Figures:
    """Who was lost, and the longest exchange of the others."""
    summary = read_object(run_dir / "summary.json")
    assert summary["finished_nodes"] == 2, f"{summary['finished_nodes']} of 3 finished"
    assert list(summary["lost_nodes"]) == ["2"], f"lost: {summary['lost_nodes']}"
    survivors = [list(read_records(run_dir / f"records/{rank:05}.jsonl")) for rank in range(2)]
    assert all(len(records) == 20 for records in survivors), "a survivor has not made all rounds"
    longest = max(record.exchange_seconds for records in survivors for record in records if record.round > 0)
    return {"longest exchange s": round(longest, 2), "finished": 2}


def read_ended(log: str, run_dir: Path) -> Figures:
    """When all had ended, after the start."""
    return {"seconds until all had ended": read_object(run_dir / "summary.json")["wall_seconds"]}


@dataclass
class Outcome:
    """What came of a check."""

    check: Check
    result: str
    """ok, FAILED, LIMIT (it was killed) or "no time"."""
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)
    reason: str = ""
    log: str = ""
    """The end of the output of a check that is not ok."""

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        head = f"{self.result:<7} {self.check.part:<13} {self.check.name:<23} {self.seconds:5.1f} s"
        return f"{head}  {self.reason or figures}".rstrip()


def perform(check: Check, output: Path, seconds_left: float) -> Outcome:
    """Runs a check and ends all of its processes."""
    limit = min(check.limit, seconds_left)
    if limit < 5:
        return Outcome(check, "no time", reason="the checks before it took all of --seconds")
    path, began = output / f"{slug(check.name)}.log", time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **check.environment}
    with path.open("wb") as log:
        process = subprocess.Popen(
            check.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            exit_code = process.wait(limit)
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            kill_descendants()
    seconds, text = time.monotonic() - began, path.read_text(errors="replace")
    outcome = Outcome(check, "FAILED", seconds, log=text[-MOST_LOG:])
    if exit_code is None:
        outcome.result, outcome.reason = "LIMIT", f"killed after {limit:.0f} s"
    elif exit_code != check.exit_code:
        outcome.reason = f"exit code {exit_code}, not {check.exit_code}"
    else:
        try:
            outcome.figures = check.read(text, run_dir_of(check))
            outcome.result, outcome.log = "ok", ""
        except (AssertionError, OSError, KeyError, ValueError, BadInput) as error:
            outcome.reason = f"{type(error).__name__}: {error}"
    return outcome


def run_dir_of(check: Check) -> Path:
    """The directory of the run of a check, if it is one."""
    key = "run_dir="
    return Path(next((word.removeprefix(key) for word in check.command if word.startswith(key)), ""))


def adopt_orphans() -> None:
    """Makes this process the parent of processes whose own parent ends, so that it sees them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kills all children, and then those whose parent they were; leaves what the driver does not let go."""
    limit = time.monotonic() + LAST_SECONDS
    while time.monotonic() < limit and (children := [p for p in running() if parent(p) == os.getpid()]):
        for pid in children:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def running() -> list[int]:
    """All processes of this machine."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def parent(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def machine() -> dict[str, Any]:
    """What the checks ran on."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        card = (
            subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip().splitlines()[0]
        )
    except (OSError, IndexError, subprocess.TimeoutExpired):
        card = "none"
    nccl = torch.cuda.nccl.version() if torch.cuda.device_count() else ()  # type: ignore[no-untyped-call]
    return {
        "card": card,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, nccl)),
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
    }


def table(reports: Sequence[dict[str, Any]]) -> str:
    """The reports as a table for docs/gpu.md, a column each."""
    heads = [f"{r['card'].split(',')[0]}, torch {r['torch']}, {r['backend']}" for r in reports]
    lines = [f"| check | {' | '.join(heads)} |", "|---" * (1 + len(reports)) + "|"]
    for check in reports[0]["checks"]:
        cells = []
        for report in reports:
            known = next((c for c in report["checks"] if c["name"] == check["name"]), None)
            figures = known and ", ".join(f"{k} {v}" for k, v in known["figures"].items())
            cells.append("" if known is None else figures or known["result"])
        lines.append(f"| {check['part']}: {check['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the checks; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names or parts of the checks to run")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "verify")
    parser.add_argument("--seconds", type=float, default=480.0, help="for all checks together")
    parser.add_argument("--table", type=Path, nargs="+", metavar="JSON", help="prints a table of reports")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(path.read_text()) for path in options.table]))
        return 0
    if options.backend == "nccl" and not torch.cuda.device_count():
        print(
            "verify: torch finds no GPU here; --backend gloo rehearses the checks on the CPU", file=sys.stderr
        )
        return 2
    began, output = time.monotonic(), options.output.resolve()
    subprocess.run(["rm", "-rf", str(output)], check=True)
    (output / "runs").mkdir(parents=True)
    checks = Plan(options.backend, output).checks
    if options.only:
        checks = [check for check in checks if {check.name, check.part} & set(options.only)]
    adopt_orphans()
    outcomes: list[Outcome] = []
    for check in checks:
        outcomes.append(perform(check, output, options.seconds - (time.monotonic() - began)))
        print(outcomes[-1], flush=True)
    report = machine() | {
        "backend": options.backend,
        "seconds": round(time.monotonic() - began, 1),
        "checks": [
            {"part": o.check.part, "name": o.check.name, "result": o.result, "seconds": round(o.seconds, 1),
             "figures": o.figures, "reason": o.reason, "log": o.log}
            for o in outcomes
        ],
    }  # fmt: skip
    (output / "verify.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report), flush=True)
    return 0 if outcomes and all(outcome.result == "ok" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
