"""Runs the loops with Lightning, Trainer and Accelerate, breaks each off, resumes it, compares the models.

    python eval/library/frameworks.py [--nodes 4] [--sharing choco] [lightning] [trainer] [accelerate]

Each trains under `decentnode launch` to its end, and under torchrun; once it is broken off by an error of the
last rank, and once by Ctrl-C, and resumes from the framework's own checkpoints. Prints a table; exit code 1
where a model differs. Needs `pip install decentnode[frameworks]`.
"""

import argparse
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 600.0
FAIL_AT = 60
STEPS = 110


@dataclass(frozen=True)
class Framework:
    """A loop and the names of its checkpoints."""

    package: str
    loop: str
    checkpoint: str
    """With {} for the step."""
    every: int
    """The steps from one checkpoint that continues within its epoch to the next."""


FRAMEWORKS = {
    "lightning": Framework("lightning", "lightning_loop.py", "step={}.ckpt", 11),
    "trainer": Framework("transformers", "trainer_loop.py", "checkpoint-{}", 1),
    "accelerate": Framework("accelerate", "accelerate_loop.py", "checkpoint_{}", 1),
}


@dataclass
class Case:
    """One framework with a folder for its runs."""

    framework: Framework
    folder: Path
    nodes: int
    sharing: str

    def started(self, name: str, *arguments: str, starter: str = "launch") -> "subprocess.Popen[bytes]":
        """Starts the loop on all ranks, with its checkpoints in the folder `name`."""
        commands = {
            "launch": ["decentnode", "launch", "--start-deadline", str(LIMIT), "--nodes", str(self.nodes)],
            "torchrun": ["torch.distributed.run", "--nproc-per-node", str(self.nodes)],
        }
        command = [
            sys.executable, "-m", *commands[starter], str(HERE / self.framework.loop),
            str(self.folder / name), "--steps", str(STEPS), "--sharing", self.sharing, *arguments,
        ]  # fmt: skip
        environ = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=environ, stdout=log, stderr=subprocess.STDOUT
            )

    def to_its_end(self, name: str, *arguments: str, starter: str = "launch") -> int:
        """Returns the exit code of a run."""
        process = self.started(name, *arguments, starter=starter)
        try:
            return process.wait(LIMIT)
        finally:
            process.kill()

    def stopped(self, name: str) -> int:
        """Returns the exit code of a run that is stopped after its first checkpoints, as by Ctrl-C."""
        process = self.started(name)
        limit = time.monotonic() + LIMIT
        try:
            while not self.saved_steps(name) and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            return process.wait(LIMIT)
        finally:
            process.kill()

    def saved_steps(self, name: str) -> list[int]:
        """The steps after which all ranks have a checkpoint."""
        pattern = re.compile(re.escape(self.framework.checkpoint).replace(r"\{\}", r"(\d+)"))
        of_ranks = []
        for rank in range(self.nodes):
            matches = (pattern.fullmatch(path.name) for path in (self.folder / name).glob(f"rank{rank}/*"))
            of_ranks.append({int(match[1]) for match in matches if match})
        return sorted(step for step in set.intersection(*of_ranks) if step % self.framework.every == 0)

    def resumed(self, name: str) -> tuple[int, int]:
        """The step from which a run was resumed, and its exit code."""
        step = self.saved_steps(name)[-1]
        return step, self.to_its_end(name, "--resume-from", self.framework.checkpoint.format(step))

    def models(self, name: str) -> list[str]:
        """Steps and hashes of all ranks at the end."""
        paths = [self.folder / name / f"rank{rank}" / "result.txt" for rank in range(self.nodes)]
        return [path.read_text() if path.exists() else "none" for path in paths]

    def accuracy(self) -> float:
        """The mean accuracy of the ranks at the last evaluation of the first run."""
        run = min((self.folder / "runs").iterdir())
        *_, last = (run / "evaluations.jsonl").read_text().splitlines()
        metrics = json.loads(last)["metrics"]
        scores = next(scores for name, scores in metrics.items() if "accuracy" in name)
        return sum(scores.values()) / len(scores)


def compare(case: Case) -> tuple[list[str], bool]:
    """A row of the table, and whether all models are equal."""
    codes = [case.to_its_end("whole"), case.to_its_end("torchrun", starter="torchrun")]
    failed = case.to_its_end("failed", "--fail-at", str(FAIL_AT))
    after_failure, code = case.resumed("failed")
    stopped = case.stopped("stopped")
    stopped_after = case.saved_steps("stopped")[-1]
    after_stop, last_code = case.resumed("stopped")
    codes += [code, last_code]
    models = case.models("whole")
    equal = [
        case.models(name) == models and "none" not in models for name in ("torchrun", "failed", "stopped")
    ]
    row = [
        case.framework.package, importlib.metadata.version(case.framework.package), f"{case.accuracy():.4f}",
        "same" if equal[0] else "OTHER",
        f"exit {failed}; from {after_failure}: {'same' if equal[1] else 'OTHER'}",
        f"exit {stopped} after {stopped_after}; from {after_stop}: {'same' if equal[2] else 'OTHER'}",
    ]  # fmt: skip
    return row, all(equal) and codes == [0] * len(codes)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("frameworks", nargs="*", choices=FRAMEWORKS, default=[*FRAMEWORKS])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--sharing", default="choco")
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    options = parser.parse_args(arguments)
    print(f"{options.nodes} nodes, {options.sharing}, {STEPS} steps, fails before step {FAIL_AT}")
    print("| framework | version | accuracy | by torchrun | failed, resumed | Ctrl-C, resumed |")
    print("|---|---|---|---|---|---|")
    is_good = True
    with tempfile.TemporaryDirectory(prefix="frameworks-") as folder:
        for name in options.frameworks:
            case = Case(
                FRAMEWORKS[name], (options.folder or Path(folder)) / name, options.nodes, options.sharing
            )
            case.folder.mkdir(parents=True)
            row, is_equal = compare(case)
            is_good &= is_equal
            print(f"| {' | '.join(row)} |", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
