"""Shows that four decentralized nodes train ResNet-18 as well as all-reduce does, on real images.

Acceptance figure: at most a point of accuracy below all-reduce, or a test loss at most 1.5 % above. The runs
differ in `training.name`, `sharing` and the graph alone, and all go over gloo; they make the same number of
steps, each rank on its own part. Models are tested at the end, on all test images. Needs the package
dataset-fashion-mnist.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from decentnode.results.compare import compare
from decentnode.results.curves import read_runs
from decentnode.formats.reader import read_object

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "resnet18"
MOST_POINTS, MOST_LOSS = 1.0, 1.015
RUN_SECONDS = 7200


@dataclass(frozen=True)
class Contender:
    """One run of the comparison."""

    name: str
    config: str
    overrides: tuple[str, ...] = ()


ALL_REDUCE = Contender("all-reduce", "ddp.yaml")
GLOO = "communication={name: torch_distributed, backend: gloo}"
GOSSIP = (
    Contender("gossip, ring", "gossip.yaml", (GLOO,)),
    Contender("gossip, fully connected", "gossip.yaml", (GLOO, "graph={name: fully_connected, nodes: 4}")),
)
ALONE = Contender("no exchange", "gossip.yaml", ("sharing=none",))


def sizes(options: argparse.Namespace) -> list[str]:
    """The overrides that make the shipped configurations fit a machine without a GPU."""
    return [
        f"rounds={options.rounds}", f"seed={options.seed}", "device=cpu", "evaluation.figures=false",
        "evaluation.every=0", "evaluation.average_model=false", f"dataset.train_size={options.samples}",
        f"model={{name: resnet18, width: {options.width}, groups: {options.width // 2}}}",
        "training.epochs_per_round=null", f"training.steps_per_round={options.steps}",
        f"training.scheduler.T_max={options.rounds}",
    ]  # fmt: skip


def run(contender: Contender, options: argparse.Namespace, folder: Path) -> Path:
    """Trains it, and gives the directory of the run; ends the program where that fails."""
    directory = folder / contender.name.replace(", ", "-").replace(" ", "-")
    words = [*sizes(options), *contender.overrides, f"run_dir={directory}", f"name={directory.name}"]
    command = [sys.executable, "-m", "decentnode", "run", str(CONFIGS / contender.config), *words]
    print(f"\n{contender.name}:", flush=True)
    code = subprocess.run(command, timeout=RUN_SECONDS).returncode
    if code:
        sys.exit(f"{contender.name}: ended with exit code {code}")
    return directory


def verdict(directory: Path, baseline: Path) -> tuple[str, bool]:
    """How far a run is from all-reduce, in a line, and whether that is near enough."""
    own_summary, best = (read_object(path / "summary.json") for path in (directory, baseline))
    points = 100 * (own_summary["test"]["accuracy"]["mean"] - best["test"]["accuracy"]["mean"])
    loss = own_summary["test"]["loss"]["mean"] / best["test"]["loss"]["mean"]
    good = points >= -MOST_POINTS or loss <= MOST_LOSS
    text = f"{directory.name}: {points:+.2f} points, test loss x {loss:.3f}"
    return f"{text}: {'within' if good else 'NOT within'} {MOST_POINTS:g} point or {MOST_LOSS - 1:.1%}", good


def main() -> int:
    """Runs all, prints the table and the verdicts, and returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=60_000, help="training samples of all nodes together")
    parser.add_argument("--rounds", type=int, default=1404, help="by default three epochs")
    parser.add_argument("--steps", type=int, default=1, help="steps of a round, 32 samples each")
    parser.add_argument("--width", type=int, default=8, help="channels of the first stage; ResNet-18 has 64")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="also train without any exchange")
    parser.add_argument("--out", type=Path, help="where the runs stay; default: a folder that is removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        others = [*GOSSIP, *([ALONE] if options.alone else [])]
        baseline, *found = [run(contender, options, folder) for contender in (ALL_REDUCE, *others)]
        print("", *compare(read_runs([baseline, *found])), sep="\n")
        verdicts = [verdict(directory, baseline) for directory in found]
    print("", *(text for text, _ in verdicts), sep="\n")
    return 0 if all(good for _, good in verdicts[: len(GOSSIP)]) else 1


if __name__ == "__main__":
    sys.exit(main())
