"""Robust rules against the plain weighted sum of the same models, in one process and one thread.

Ratios of the fastest of several turns. With 1e6 elements and 8 neighbors the median and the trimmed mean
should take at most 6 times as long.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from _report import Target, conclude, parser, show

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
from decentnode.sharing.robust.base import Robust
from decentnode.testing import bound

TURNS = 15
MOST_TIMES = 6.0


def rules() -> list[Robust]:
    """The rules that are compared."""
    return [
        Median(), TrimmedMean(faults=1), TrimmedMean(faults=2), TrimmedMean(faults=1, before="nnm"),
        Krum(), GeometricMedian(), Rfa(), ClippedGossip(), Balance(),
    ]  # fmt: skip


def described(rule: Sharing) -> str:
    """Its name, with the options that change its cost."""
    if not isinstance(rule, TrimmedMean) or isinstance(rule, Median):
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
    made = parser(__doc__)
    made.add_argument("elements", nargs="?", type=float, default=1e6)
    made.add_argument("--degree", type=int, default=8)
    asked = made.parse_args()
    torch.set_num_threads(1)
    elements, count = 1000 if asked.small else int(asked.elements), asked.degree + 1
    models = dict(enumerate(torch.randn(count, elements)))
    out, weights = torch.empty(elements), dict.fromkeys(range(count), 1 / count)
    ranks = tuple(range(1, count))
    view = View(0, 0, ranks, ranks, weights, weights, {})
    terms = [(weights[j], x) for j, x in models.items()]
    figures: list[dict[str, Any]] = []
    for rule in rules():
        bound(rule, count, elements)
        # The sum is measured beside each rule, because machines are not equally fast for long.
        plain = fastest(lambda: weighted_sum(terms, out))
        mixed = fastest(lambda rule=rule: rule.combine(models, view, out))
        times = {"times": round(mixed / plain, 2), "ms": round(1e3 * mixed, 2)}
        figures.append({"rule": described(rule), **times})
        show({"elements": elements, "models": count, **figures[-1]})
    ratio = {figure["rule"]: figure["times"] for figure in figures}
    targets = [Target(name, ratio[name], "at most", MOST_TIMES) for name in ("median", "trimmed_mean, f = 1")]
    conclude("robust", asked.small, figures, ratio, targets)


if __name__ == "__main__":
    main()
