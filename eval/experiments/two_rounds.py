"""Runs every published experiment for two rounds on its generated sample, one after the other.

    python eval/experiments/two_rounds.py [NAME...]

Names select files of configs/experiments by a part of their path. Networks above ten million parameters have
two or four nodes, single steps of small batches, and four test samples, all in float32, and torch.compile
only captures them. Ends with exit code 1 where a run failed.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from decentnode.config import extends, loader
from decentnode.config.settings import Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "experiments"
LARGE = 10_000_000
VERY_LARGE = 100_000_000
"""Parameters of which a machine with 24 GB has room for two nodes, not four."""
LIMIT = 900.0
"""Seconds of one run."""


def main() -> int:
    names = sys.argv[1:]
    paths = [
        path for path in sorted(FOLDER.rglob("*.yaml")) if not names or any(n in str(path) for n in names)
    ]
    failed = 0
    for path in paths:
        status, seconds, text = run(path)
        failed += status != 0
        print(
            f"{'failed' if status else 'ran':8}{seconds:7.1f} s  {path.relative_to(FOLDER)}{text}", flush=True
        )
    print(f"{len(paths) - failed} of {len(paths)} experiments ran")
    return 1 if failed or not paths else 0


def run(path: Path) -> tuple[int, float, str]:
    """Exit code, seconds, and what it said where it failed."""
    words = [
        "rounds=2",
        "dataset.sample=true",
        "communication.name=zeromq",
        "evaluation.figures=false",
        "device=cpu",
    ]
    if parameters(path) > LARGE:
        nodes = 2 if parameters(path) > VERY_LARGE else 4
        words += smaller(loader.load(path), nodes)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="experiment-") as folder:
        command = [sys.executable, "-m", "decentnode", "run", str(path), f"run_dir={folder}/run", *words]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return 1, LIMIT, f": not done within {LIMIT:.0f} s"
    output = "".join(f"\n    {line}" for line in ended.stderr.splitlines()[-3:]) if ended.returncode else ""
    return ended.returncode, time.monotonic() - began, output


def smaller(settings: Settings, nodes: int) -> list[str]:
    """So many nodes, two for each machine of the graph, single steps of small batches, and small tests."""
    machines = ["graph.per_machine=2"] if "per_machine" in settings.graph.options else []
    steps = ["training.epochs_per_round=null", "training.steps_per_round=1"]
    by_tokens = settings.training.batch_tokens is not None
    batches = "training.batch_tokens=200" if by_tokens else f"training.batch_size={nodes // 2}"
    captured = ["training.compile=eager"] if settings.training.compile else []
    exact = ["training.amp=null"]  # most processors compute half precision slowly
    tests = ["dataset.test_size=4", "evaluation.samples=null"]
    return [f"graph.nodes={nodes}", *machines, *steps, batches, *captured, *exact, *tests]


def parameters(path: Path) -> int:
    """What the head of a file, or of its base, states."""
    files = [path, *map(Path, extends.read(path).bases)]
    matches = [re.search(r"([\d,]+) parameters", file.read_text()) for file in files]
    return next(int(result[1].replace(",", "")) for result in matches if result)


if __name__ == "__main__":
    sys.exit(main())
