"""Compares runs: accuracy, bytes and time, at the end and at one target accuracy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor
from statistics import fmean

from decentnode.core.text import decimal, readable_bytes, readable_seconds
from decentnode.results.curves import ACCURACY, LOSS, Outcome, Run, different_datasets, spread_of
from decentnode.results.reader import EvaluationRow

HEADINGS = (
    "run", "nodes", "rounds", "accuracy %", "lowest", "highest", "points", "loss", "sent per node", "time",
    "rounds", "sent per node", "time",
)  # fmt: skip
FROM_START = 3
"""The last columns: the cost to reach the target."""


@dataclass(frozen=True)
class Reached:
    """The columns of one evaluation of a run."""

    rounds: int
    accuracy: float
    """Percent, mean over nodes."""
    lowest: float
    highest: float
    loss: float
    bytes_per_node: float
    seconds: float


def compare(runs: Sequence[Run], target: float | None = None) -> Iterator[str]:
    """A table of the runs, in lines; `points` is the difference of accuracies from the first run.

    `target`: the accuracy in percent of the last columns; by default the best that all runs reach.
    A first line warns of runs on different data sets.
    """
    if apart := different_datasets(runs):
        yield f"These runs are on different data sets, so accuracies and losses do not compare: {apart}"
    curves = [[_reached(row) for row in run.rows] for run in runs]
    best = [max(one.accuracy for one in curve) for curve in curves if curve]
    wanted = floor(10 * min(best)) / 10 if target is None and best else target
    first = curves[0][-1].accuracy if curves[0] else None
    cells = [_cells(run, curve, first, wanted) for run, curve in zip(runs, curves, strict=True)]
    yield from _aligned([HEADINGS, *cells], "to -" if wanted is None else f"to {wanted:g} %")


def _reached(row: EvaluationRow) -> Reached:
    accuracy, loss = spread_of([row], ACCURACY), spread_of([row], LOSS)
    sent = fmean(row.bytes_sent.values())
    mean, least, most = (column[0] for column in (accuracy.mean, accuracy.least, accuracy.most))
    return Reached(row.round + 1, mean, least, most, loss.mean[0], sent, row.seconds)


def _cells(run: Run, curve: Sequence[Reached], first: float | None, wanted: float | None) -> tuple[str, ...]:
    if run.outcome is not None:
        ended, unknown = run.outcome, ("-",) * len(HEADINGS)
        return (
            run.name,
            str(ended.nodes),
            str(ended.rounds),
            *unknown[:5],
            *_cost(ended),
            *unknown[:FROM_START],
        )
    last = curve[-1]
    there = next((one for one in curve if wanted is not None and one.accuracy >= wanted), None)
    return (
        run.name, str(len(run.rows[-1].accuracy)), str(last.rounds), f"{last.accuracy:.2f}",
        f"{last.lowest:.2f}", f"{last.highest:.2f}",
        "-" if first is None else f"{last.accuracy - first:+.2f}", decimal(last.loss),
        *_cost(last), *((str(there.rounds), *_cost(there)) if there else ("-",) * FROM_START),
    )  # fmt: skip


def _cost(one: Reached | Outcome) -> tuple[str, str]:
    return readable_bytes(one.bytes_per_node), readable_seconds(one.seconds)


def _aligned(rows: Sequence[Sequence[str]], heading: str) -> Iterator[str]:
    """Aligns names to the left and figures to the right, with a heading above the last columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = sum(widths[-FROM_START:]) + 2 * (FROM_START - 1)
    yield f"{'':{sum(widths[:-FROM_START]) + 2 * len(widths[:-FROM_START])}}{heading:-^{right}}".rstrip()
    for row in rows:
        name, *figures = row
        yield "  ".join(
            [f"{name:<{widths[0]}}", *(f"{cell:>{w}}" for cell, w in zip(figures, widths[1:], strict=True))]
        )
