"""Runs side by side in figures: how good, how many bytes and how long, at the end and up to one accuracy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor
from statistics import fmean

from decentnode.curves import ACCURACY, LOSS, Run, spread_of
from decentnode.run_files import EvaluationRow
from decentnode.wording import decimal, readable_bytes, readable_seconds

HEADINGS = (
    "run", "nodes", "rounds", "accuracy %", "lowest", "highest", "points", "loss", "sent per node", "time",
    "rounds", "sent per node", "time",
)  # fmt: skip
FROM_START = 3
"""The last columns: what it took to reach the target."""


@dataclass(frozen=True)
class Reached:
    """An evaluation of a run, as far as a comparison shows it."""

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

    `target`: the accuracy in percent that the last columns are about; by default what all of them reach.
    """
    curves = [[_reached(row) for row in run.rows] for run in runs]
    least = min(max(one.accuracy for one in curve) for curve in curves)
    wanted = floor(10 * least) / 10 if target is None else target
    first = curves[0][-1].accuracy
    cells = [_cells(run, curve, first, wanted) for run, curve in zip(runs, curves, strict=True)]
    yield from _aligned([HEADINGS, *cells], f"to {wanted:g} %")


def _reached(row: EvaluationRow) -> Reached:
    accuracy, loss = spread_of([row], ACCURACY), spread_of([row], LOSS)
    sent = fmean(row.bytes_sent.values())
    mean, least, most = (column[0] for column in (accuracy.mean, accuracy.least, accuracy.most))
    return Reached(row.round + 1, mean, least, most, loss.mean[0], sent, row.seconds)


def _cells(run: Run, curve: Sequence[Reached], first: float, wanted: float) -> tuple[str, ...]:
    last = curve[-1]
    there = next((one for one in curve if one.accuracy >= wanted), None)
    return (
        run.name, str(len(run.rows[-1].accuracy)), str(last.rounds), f"{last.accuracy:.2f}",
        f"{last.lowest:.2f}", f"{last.highest:.2f}", f"{last.accuracy - first:+.2f}", decimal(last.loss),
        *_cost(last), *((str(there.rounds), *_cost(there)) if there else ("-",) * FROM_START),
    )  # fmt: skip


def _cost(one: Reached) -> tuple[str, str]:
    return readable_bytes(one.bytes_per_node), readable_seconds(one.seconds)


def _aligned(rows: Sequence[Sequence[str]], heading: str) -> Iterator[str]:
    """Names to the left, figures to the right, and a heading above the last columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = sum(widths[-FROM_START:]) + 2 * (FROM_START - 1)
    yield f"{'':{sum(widths[:-FROM_START]) + 2 * len(widths[:-FROM_START])}}{heading:-^{right}}".rstrip()
    for row in rows:
        name, *figures = row
        yield "  ".join(
            [f"{name:<{widths[0]}}", *(f"{cell:>{w}}" for cell, w in zip(figures, widths[1:], strict=True))]
        )
