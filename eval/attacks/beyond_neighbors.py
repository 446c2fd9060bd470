"""What a node on a ring of 8 learns of all others from four rounds, under each protection (docs/attacks.md).

eval/attacks/beyond_neighbors.py [CASE ...] [--ranks 0 3] [--all-messages]
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from figures import ROOT, started

from decentnode.results.attack_results import AttackResult, read_results

NODES = 8
SHARED = [
    "communication=inproc", f"graph={{name: ring, nodes: {NODES}}}", "model=logistic_regression", "rounds=4",
    "dataset={name: digits, train_size: 128, partition: iid, mean: 4.9, std: 6.0}",
    "training={optimizer: {name: SGD, lr: 0.001, momentum: 0}, batch_size: null, steps_per_round: 1}",
    "evaluation={every: 0, figures: false}",
]  # fmt: skip
PRIVATE = "training.privacy={name: dp_sgd, clip: 1.0, noise: 1.0, delta: 1.0e-3}"
RELAYED = f"graph={{name: relayed, nodes: {NODES}, degree: 4}}"
TITLES = f" {'error':>9} {'in devs':>9} {'AUC':>7} {'AUC <=':>7}"
# Overrides, what the party solves for, and whether the accountant's adversary plays, too.
CASES: dict[str, tuple[list[str], str, bool]] = {
    "none": ([], "gradient", False),
    "dp_sgd": ([PRIVATE], "updates", True),
    "dp_sgd, anti_pgd": ([f"{PRIVATE[:-1]}, sampling: cyclic, correlation: anti_pgd}}"], "updates", True),
    "dp_sgd, factorized": ([f"{PRIVATE[:-1]}, sampling: cyclic, correlation: factorized}}"], "updates", True),
    "dp_sgd, edges": ([f"{PRIVATE[:-1]}, generator: seeded, correlation: edges}}"], "updates", True),
    "muffliato": (["sharing={name: muffliato, noise: 1.0, clip: 0.001, steps: 2}"], "updates", True),
    "zip_dl": (["sharing={name: zip_dl, sigma: 0.001}"], "gradient", False),
    "secure_aggregation": (["sharing={name: secure_aggregation, scale: 16777216}"], "gradient", False),
    "shatter": (["sharing={name: shatter, chunks: 4, per_neighbor: 2}", RELAYED], "gradient", False),
    "top_k": (["sharing={name: gossip, transforms: [{name: top_k, fraction: 0.3}]}"], "gradient", False),
    "quantize": (["sharing={name: gossip, transforms: [{name: uniform, bits: 8}]}"], "gradient", False),
}


def main() -> None:
    """Runs the cases and prints a line for each distance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--ranks", type=int, nargs="+", default=[0], help="the party (default: 0)")
    parser.add_argument("--all-messages", action="store_true", help="it also sees what others receive")
    arguments = parser.parse_args()
    links = [[rank, (rank + 1) % NODES] for rank in range(NODES)] if arguments.all_messages else []
    print(f"{'case':<20} {'hops':>5} {'nodes':>6} {'solved':>6}" + TITLES)
    for case in arguments.cases:
        for line in lines(case, results_of(case, arguments.ranks, links)):
            print(line, flush=True)


def results_of(case: str, ranks: Sequence[int], links: Sequence[Sequence[int]]) -> list[AttackResult]:
    """The results of both attacks, first what the party solves for, then the accountant's adversary.

    `links`: on which the party listens, too.
    """
    overrides, unknowns, plays = CASES[case]
    attack = f"{{name: reconstruction, ranks: {[*ranks]}, links: {[*links]}"
    everybody = ", ".join(map(str, range(NODES)))
    record = f"adversaries=[{{name: record, ranks: [{everybody}], every: 1, own: true}}]"
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        config = str(ROOT / "configs" / "quickstart.yaml")
        started(["run", config, *SHARED, *overrides, record, f"run_dir={run}"])
        for options in [f"unknowns: {unknowns}", *(["knows_others: true"] if plays else [])]:
            started(["attack", str(run), f"adversaries=[{attack}, {options}}}]"])
            found += read_results(run)
    return found


def lines(case: str, found: list[AttackResult]) -> Iterator[str]:
    """A line for each distance: means over its nodes."""
    victims = [result for result in found if result.victim is not None]
    for hops in sorted({result.hops or 0 for result in victims}):
        near = [result for result in victims if (result.hops or 0) == hops]
        solved = [result for result in near if result.auc is None]
        cells = [
            mean([r.relative_error for r in solved], "9.3f"), mean([r.deviations for r in solved], "9.2f"),
            mean([r.auc for r in near], "7.3f"), mean([r.auc_bound for r in near], "7.3f"),
        ]  # fmt: skip
        solvable = sum(bool(result.solvable) for result in solved)
        yield f"{case:<20} {hops or '-':>5} {len(solved):>6} {solvable:>6} " + " ".join(cells)


def mean(values: Sequence[float | None], form: str) -> str:
    """The mean of the values that are known, as text."""
    known = [value for value in values if value is not None]
    return format(fmean(known), form) if known else f"{'-':>{form.split('.')[0]}}"


if __name__ == "__main__":
    main()
