"""Robust rules against the plain weighted sum of the same models, in one process and one thread.

Ratios of the fastest of several turns. With 1e6 elements and 8 neighbors the median and the trimmed mean
should take at most 6 times as long.
"""

import argparse
import time
from collections.abc import Callable

import torch

from decentnode.core.registry import name_of
from decentnode.graph.base import View
from decentnode.sharing import (
    Balance,
    ClippedGossip,
    GeometricMedian,
    Krum,
    Median,
    Rfa,
    TrimmedMean,
)
from decentnode.sharing.base import Sharing
from decentnode.sharing.blocks.weighted_sum import weighted_sum
from decentnode.sharing.robust.base import Aggregation, Robust

TURNS = 15


def rules() -> list[Robust]:
    """The rules that are compared."""
    return [
        Median(), TrimmedMean(faults=1), TrimmedMean(faults=2), TrimmedMean(faults=1, before="nnm"),
        Krum(), GeometricMedian(), Rfa(), ClippedGossip(), Balance(),
    ]  # fmt: skip


def described(rule: Sharing) -> str:
    """Its name, with the options that change its cost."""
    if not isinstance(rule, Aggregation):
        return name_of(rule)
    before = "" if rule.before == "none" else f", {rule.before}"
    return f"{name_of(rule)}, f = {rule.faults}{before}"


def fastest(turn: Callable[[], object]) -> float:
    """Seconds of the fastest of several turns."""
    turn()
    found = []
    for _ in range(TURNS):
        began = time.perf_counter()
        turn()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    """Prints one line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("elements", nargs="?", type=float, default=1e6)
    parser.add_argument("--degree", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = options.degree + 1
    models = dict(enumerate(torch.randn(count, int(options.elements))))
    out, weights = torch.empty(int(options.elements)), dict.fromkeys(range(count), 1 / count)
    ranks = tuple(range(1, count))
    view = View(0, 0, ranks, ranks, weights, weights, {})
    terms = [(weights[j], x) for j, x in models.items()]
    print(f"d = {int(options.elements):,}, {count} models; times of the weighted sum")
    for rule in rules():
        rule.seed = 0
        # The sum is measured beside each rule, because machines are not equally fast for long.
        plain = fastest(lambda: weighted_sum(terms, out))
        mixed = fastest(lambda rule=rule: rule.combine(models, view, out))
        print(f"{described(rule):32} {mixed / plain:6.2f}   ({plain * 1e3:.2f} ms)")


if __name__ == "__main__":
    main()
