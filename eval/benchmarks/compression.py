"""Accuracy against bytes where nodes differ: partial sharing, CHOCO, JWINS, secure aggregation, full sharing.

    python eval/benchmarks/compression.py [--small] [--dataset digits|fashion] [--seeds N] [--out DIR]

16 nodes on a 4-regular graph, each with two labels; the same with labels at random (IID). All schemes that
compress send the same bytes. Leaves the runs and pictures of the first seed in DIR.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from _command import CONFIGS, call
from _report import Target, conclude, parser, show

CODED = "sharing.transforms=[{{name: top_k, fraction: {}, by: {}}}, auto]"
SCHEMES: dict[str, list[str]] = {
    "full": ["sharing=gossip"],
    "random_k": ["sharing=gossip", "sharing.transforms=[{name: random_k, fraction: 0.366}]"],
    "top_k": ["sharing=gossip", CODED.format(0.33, "change")],
    "choco": ["sharing={name: choco, gamma: 0.71}", CODED.format(0.33, "magnitude")],
    "jwins": ["sharing=jwins"],
    "secure_aggregation": ["sharing=secure_aggregation"],
}
"""Overrides; fractions are such that values and indices take what JWINS takes on average, 0.36 of full. The
gamma of CHOCO is what `decentnode tune` finds for this graph and chain."""
PARTITIONS = {"two labels": "shards", "iid": "iid"}
DATASETS = {
    "digits": [],
    "fashion": [
        "dataset.name=idx",
        "dataset.train_size=12000",
        "dataset.test_size=2000",
        "model={name: mlp, hidden: [100]}",
    ],
}
SMALL = ["rounds=4", "communication=inproc"]
SHARE, LOSS = 0.40, 1.0
"""What JWINS may take of the bytes of full sharing, and the points that it may lose."""
SURPLUS = 1.20
"""What secure aggregation may take of the bytes of plain gossip."""


@dataclass(frozen=True)
class Outcome:
    """One scheme on one partition: the last accuracies in percent and the bytes, one for each seed."""

    accuracy: list[float]
    bytes_sent: list[int]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.accuracy)


def run(scheme: str, partition: str, seed: int, options: argparse.Namespace) -> tuple[float, int]:
    """Mean accuracy over nodes in percent, and all bytes sent."""
    folder = options.out / partition / (scheme if seed == 1 else f"{scheme}-{seed}")
    chosen = "iid" if partition == "iid" else "{name: shards, labels_per_node: 2}"
    words = [f"name={scheme}", f"seed={seed}", f"run_dir={folder}", *DATASETS[options.dataset]]
    words += [f"dataset.partition={chosen}", *SCHEMES[scheme], *(SMALL if options.small else [])]
    call(["-m", "decentnode", "run", str(CONFIGS / "compression.yaml"), *words])
    summary = json.loads((folder / "summary.json").read_text())
    return 100 * summary["test"]["accuracy"]["mean"], summary["bytes_sent"]


def measure(scheme: str, partition: str, options: argparse.Namespace) -> Outcome:
    """One line of the table."""
    results = [run(scheme, partition, seed, options) for seed in range(1, options.seeds + 1)]
    return Outcome([accuracy for accuracy, _ in results], [sent for _, sent in results])


def line(scheme: str, partition: str, outcome: Outcome, full: Outcome) -> dict[str, Any]:
    """What is printed of an outcome."""
    spread = stdev(outcome.accuracy) if len(outcome.accuracy) > 1 else 0.0
    return {
        "partition": partition,
        "scheme": scheme,
        "accuracy": round(outcome.mean, 2),
        "std": round(spread, 2),
        "of_full": round(outcome.mean - full.mean, 2),
        "bytes_of_full": round(fmean(outcome.bytes_sent) / fmean(full.bytes_sent), 4),
        "mb_per_node": round(fmean(outcome.bytes_sent) / 16e6, 3),
    }


def targets_of(found: dict[tuple[str, str], Outcome]) -> list[Target]:
    """The relations of the papers."""

    def lost(scheme: str, partition: str) -> float:
        return found["full", partition].mean - found[scheme, partition].mean

    def share(scheme: str) -> float:
        sent = fmean(found[scheme, "two labels"].bytes_sent)
        return sent / fmean(found["full", "two labels"].bytes_sent)

    two = "two labels"
    gained = found["jwins", two].mean - found["random_k", two].mean
    uneven = {name: lost(name, two) - lost(name, "iid") for name in ("random_k", "top_k")}
    return [
        Target("JWINS over random_k at equal bytes, points", gained, "at least", 0),
        Target("JWINS, bytes of full sharing", share("jwins"), "at most", SHARE),
        Target("JWINS, points lost to full sharing", lost("jwins", two), "at most", LOSS),
        *(
            Target(f"{name}, points lost with two labels over those lost IID", points, "at least", 0)
            for name, points in uneven.items()
        ),
        Target("secure aggregation, bytes of plain", share("secure_aggregation"), "at most", SURPLUS),
        Target("secure aggregation, points from plain", abs(lost("secure_aggregation", two)), "at most", 0.5),
    ]


def draw(schemes: Sequence[str], partitions: Sequence[str], options: argparse.Namespace) -> None:
    """One comparison for each partition, of the first seed."""
    for partition in partitions:
        runs = [str(options.out / partition / scheme) for scheme in schemes]
        out = options.out / partition / "comparison"
        call(["-m", "decentnode", "plot", *runs, "--out", str(out)])
        print(f"pictures: {out}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs every scheme on both partitions."""
    made = parser(__doc__)
    made.add_argument("--dataset", choices=list(DATASETS), default="digits")
    made.add_argument("--seeds", type=int, default=3)
    default = Path("runs") / time.strftime("compression-%Y%m%d-%H%M%S")
    made.add_argument("--out", type=Path, default=default)
    options = made.parse_args(argv)
    options.out = options.out.resolve()
    schemes, partitions = list(SCHEMES), list(PARTITIONS)
    if options.small:
        options.seeds, schemes, partitions = 1, schemes[::4], partitions[:1]
    results: dict[tuple[str, str], Outcome] = {}
    table = []
    for partition in partitions:
        for scheme in schemes:
            results[scheme, partition] = measure(scheme, partition, options)
            table.append(line(scheme, partition, results[scheme, partition], results["full", partition]))
            show(table[-1])
    draw(schemes, partitions, options)
    ratio = {f"{row['scheme']}, {row['partition']}": row["bytes_of_full"] for row in table}
    targets = [] if options.small else targets_of(results)
    conclude("compression", options.small, table, ratio, targets)


if __name__ == "__main__":
    main()
