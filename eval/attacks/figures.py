"""The figures of docs/attacks.md: each attack without protection, on a control, and with protection.

eval/attacks/figures.py [CASE ...] [--seeds 3]
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from decentnode.results.attack_results import AttackResult, read_results

ROOT = Path(__file__).resolve().parents[2]
RANKS = "ranks: [0, 4], seed: 0"  # the draws of an attack are the same for all seeds
MEMBERSHIP = [
    f"{{name: membership, {RANKS}}}", f"{{name: membership_calibrated, {RANKS}, public: 0.3}}",
    f"{{name: lira, {RANKS}, public: 0.3, shadows: 16}}",
]  # fmt: skip
OTHERS = [f"{{name: attribute, {RANKS}}}", f"{{name: label_distribution, {RANKS}, public: 0.3, every: 2}}"]
LINKS = [f"{{name: linkability, {RANKS}, every: 2}}"]
LINKS += [f"{{name: linkability, {RANKS}, method: loss, knows_samples: true}}"]
INVERSION = [f"{{name: dlg, {RANKS}}}", f"{{name: inverting_gradients, {RANKS}}}"]
AUDIT = ["{name: canary_audit, ranks: [0, 4], victims: [1, 3, 5, 7], canaries: 100, seed: 0}"]
RING = ["communication=inproc", "graph={name: ring, nodes: 8}", "dataset={name: digits, partition: iid}"]
OVERFITTED = [
    *RING, "dataset.train_size=200", "training.optimizer={name: SGD, lr: 0.1, momentum: 0.9}",
    "training.steps_per_round=60", "rounds=5",
]  # fmt: skip
PRIVATE = [
    "training.optimizer={name: SGD, lr: 0.5, momentum: 0}", "training.steps_per_round=5",
    "training.privacy={name: dp_sgd, clip: 1.0, epsilon: 8, delta: 1.0e-5}",
]  # fmt: skip
FIRST_UPDATE = [
    *RING, "rounds=1", "training.optimizer={name: SGD, lr: 0.1, momentum: 0}", "training.steps_per_round=1",
]  # fmt: skip
LABELS = [
    *RING, "rounds=3", "training.optimizer={name: SGD, lr: 0.1, momentum: 0}", "training.steps_per_round=5",
]  # fmt: skip
CANARIES = [*OVERFITTED, "dataset.train_size=1400"]


@dataclass(frozen=True)
class Case:
    """A run with its adversaries."""

    overrides: list[str]
    adversaries: list[str]
    measure: str
    """The measure that is asked for."""
    asked: str = ""
    config: str = "quickstart"


CASES = {
    "overfitted": Case(OVERFITTED, [*MEMBERSHIP, *OTHERS, *LINKS], "auc", "AUC of at least 0.75"),
    "memorized": Case(
        [*OVERFITTED, "dataset.skew=[{name: label_noise, rate: 0.9}]"], MEMBERSHIP, "auc",
        "AUC of at least 0.95",
    ),
    "private": Case([*OVERFITTED, *PRIVATE], [*MEMBERSHIP, *OTHERS, *LINKS], "auc", "AUC of at most 0.55"),
    "recommended": Case(
        ["communication=inproc"],
        [one.replace("[0, 4]", "[0, 5, 10]") for one in MEMBERSHIP], "auc", "AUC of at most 0.55", "dp_sgd",
    ),
    "labels": Case(
        [*LABELS, "dataset.partition={name: dirichlet, alpha: 0.5, min_size: 10}"],
        [f"{{name: label_distribution, {RANKS}, public: 0.3, every: 1}}"], "l1_error",
    ),
    "inversion": Case([*FIRST_UPDATE, "training.batch_size=1"], INVERSION, "ssim", "SSIM of at least 0.5"),
    "inversion_of_4": Case([*FIRST_UPDATE, "training.batch_size=4"], INVERSION, "ssim"),
    "audit": Case(CANARIES, AUDIT, "epsilon_lower", "more than 0"),
    "audit_private": Case([*CANARIES, *PRIVATE], AUDIT, "epsilon_lower", "at most 8"),
}  # fmt: skip
SHOWN = ("auc", "tpr_at_1_percent", "epsilon_lower", "ssim", "psnr", "accuracy", "chance", "l1_error")


def main() -> None:
    """Runs the cases and prints a line for each attack: means over victims and seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'case':<15} {'attack':<22}" + "".join(f"{name[:9]:>10}" for name in SHOWN))
    for name in arguments.cases:
        results = [r for seed in range(1, arguments.seeds + 1) for r in results_of(CASES[name], seed)]
        for line in lines(name, results):
            print(line, flush=True)
        if CASES[name].asked:
            print(f"{'':<15} asked: {CASES[name].asked}")


def results_of(case: Case, seed: int) -> list[AttackResult]:
    """The results after the last attacked round."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        adversaries = f"adversaries=[{', '.join(case.adversaries)}]"
        shared = [f"run_dir={run}", f"seed={seed}", "evaluation={every: 0, figures: false}"]
        config = str(ROOT / "configs" / f"{case.config}.yaml")
        started(["run", config, *case.overrides, adversaries, *shared])
        started(["attack", str(run)])
        results = read_results(run)
    last = {result.attack: max(r.round for r in results if r.attack == result.attack) for result in results}
    return [result for result in results if result.round == last[result.attack]]


def started(arguments: list[str]) -> None:
    """Runs a command of decentnode; ends with its output if it fails."""
    command = [sys.executable, "-m", "decentnode", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def lines(case: str, found: list[AttackResult]) -> Iterator[str]:
    """A line for each attack; where all victims were judged together, of that alone."""
    for attack in dict.fromkeys(result.attack for result in found):
        results = [result for result in found if result.attack == attack]
        together = [result for result in results if result.victim is None] or results
        cells = ([getattr(r, name) for r in together if getattr(r, name) is not None] for name in SHOWN)
        yield f"{case:<15} {attack:<22}" + "".join(
            f"{fmean(c) if c else '-':>10.3f}" if c else f"{'-':>10}" for c in cells
        )


if __name__ == "__main__":
    main()
