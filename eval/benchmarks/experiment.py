"""How long a usual experiment takes: 16 nodes, LeNet, images like CIFAR-10, 80 rounds, four evaluations.

    python eval/benchmarks/experiment.py [--small] [--repeats N]

The whole command is timed. The raw counterpart makes the same training steps and tests in as many
processes as there are processors.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _command import ROOT, Ended, Run, call, regular_graph, run_decentnode
from _images import write_images
from _report import Target, conclude, median, median_ratio, parser, show

LIMIT = 35.0
"""Seconds on 2 cores."""
STEPS_PER_ROUND = 3
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
"""The allocator's settings that nodes have, for the raw counterpart, too."""


@dataclass(frozen=True)
class Size:
    """How big the experiment is."""

    nodes: int
    rounds: int
    every: int
    training_images: int
    test_images: int

    @property
    def steps(self) -> int:
        """Training steps of all nodes."""
        return self.nodes * self.rounds * STEPS_PER_ROUND

    @property
    def tests(self) -> int:
        """How often a model is tested: every node's and the average one."""
        return (self.nodes + 1) * (self.rounds // self.every)


FULL = Size(16, 80, 20, 8000, 2000)
SMALL = Size(5, 2, 1, 200, 50)


def whole_command(size: Size, images: Path) -> Run:
    """The product."""
    overrides = [f"dataset.path={images}", f"rounds={size.rounds}", f"evaluation.every={size.every}"]
    if size is not FULL:
        overrides += [regular_graph(size.nodes), "evaluation.figures=false"]
    return run_decentnode("experiment.yaml", *overrides)


def bare_experiment(size: Size, images: Path) -> Ended:
    """The bare loop."""
    script = ROOT / "eval" / "benchmarks" / "_bare_experiment.py"
    numbers = (size.steps, size.tests, os.cpu_count() or 1)
    return call([str(script), str(images), *map(str, numbers)], **KEEP_MEMORY)


def measure(size: Size, repeats: int) -> dict[str, Any]:
    """The figures."""
    runs: list[Run] = []
    bare: list[Ended] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-images-") as folder:
        write_images(Path(folder), size.training_images, size.test_images)
        for _ in range(repeats):
            runs.append(whole_command(size, Path(folder)))
            bare.append(bare_experiment(size, Path(folder)))
    return {
        "nodes": size.nodes,
        "rounds": size.rounds,
        "command_seconds": median([run.seconds for run in runs]),
        "command_cpu_seconds": median([run.cpu_seconds for run in runs]),
        "bare_seconds": median([loop.seconds for loop in bare]),
        "bare_cpu_seconds": median([loop.cpu_seconds for loop in bare]),
        "of_bare": median_ratio([loop.seconds for loop in bare], [run.seconds for run in runs]),
        "startup_seconds": median([run.summary["startup_seconds"] for run in runs]),
        "wall_seconds": median([run.summary["wall_seconds"] for run in runs]),
        "test_accuracy": median([run.summary["test"]["accuracy"]["mean"] for run in runs]),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    arguments = options.parse_args()
    figures = measure(SMALL if arguments.small else FULL, 1 if arguments.small else arguments.repeats)
    show(figures)
    targets = [Target("seconds of the whole command", figures["command_seconds"], "at most", LIMIT)]
    ratio = {"whole command": figures["of_bare"]}
    conclude("experiment", arguments.small, [figures], ratio, [] if arguments.small else targets)


if __name__ == "__main__":
    main()
