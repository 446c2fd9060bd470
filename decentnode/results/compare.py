"""Compares runs: headline metric, bytes and time, at the end and at one target."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from decentnode.core.text import decimal, readable_bytes, readable_seconds
from decentnode.formats.metrics import ACCURACY, LOSS, Metric
from decentnode.formats.reader import EvaluationRow
from decentnode.results.curves import Outcome, RunCurves, different_datasets, spread_of
from decentnode.results.table_cells import AT_MOST

FROM_START = 3
"""The last columns: the cost to reach the target."""


@dataclass(frozen=True)
class Reached:
    """The columns of one evaluation of a run."""

    rounds: int
    value: float
    """The headline metric as people read it, mean over nodes."""
    lowest: float
    highest: float
    loss: float
    bytes_per_node: float
    seconds: float


def compare(runs: Sequence[RunCurves], target: float | None = None) -> Iterator[str]:
    """A table of the runs, in lines; `points` is the difference of the headline metric from the first run.

    `time` is `simulated time` where it is virtual in all runs; a first line says where in some alone.
    `target`: the headline metric of the last columns, as shown (accuracy in percent); by default the best
    that all runs reach. They are those of the first evaluation beyond it; `<=` where that is the first one
    of all.
    A first line warns of runs on different data sets.
    """
    if apart := different_datasets(runs):
        yield f"These runs are on different data sets, so their metrics do not compare: {apart}"
    simulated = [run.name for run in runs if run.is_simulated]
    if simulated and len(simulated) < len(runs):
        names = ", ".join(simulated)
        yield f"Times of some runs are simulated, so they do not compare with those of others: {names}"
    time = "simulated time" if len(simulated) == len(runs) else "time"
    headline = next((run.headline for run in runs if run.rows), ACCURACY)
    curves = [[_reached(row, headline) for row in run.rows] for run in runs]
    wanted = _reached_by_all(curves, headline) if target is None else target
    first = curves[0][-1].value if curves[0] else None
    headings = (
        "run", "nodes", "rounds", headline.name + headline.unit, "lowest", "highest", "points", "loss",
        "sent per node", time, "rounds", "sent per node", time,
    )  # fmt: skip
    cells = [_cells(run, curve, first, wanted=wanted) for run, curve in zip(runs, curves, strict=True)]
    yield from _aligned([headings, *cells], "to -" if wanted is None else f"to {wanted:g}{headline.unit}")


def _reached_by_all(reached: Sequence[Sequence["Reached"]], metric: Metric) -> float | None:
    """The best value that every curve reaches, rounded to one that is easier to reach."""
    finite = [[point.value for point in curve if isfinite(point.value)] for curve in reached]
    best = [metric.best(values) for values in finite if values]
    return metric.easier(metric.worst(best)) if best else None


def _reached(row: EvaluationRow, metric: Metric) -> Reached:
    values, loss = spread_of([row], metric), spread_of([row], LOSS)
    sent = fmean(row.bytes_sent.values())
    mean, least, most = (column[0] for column in (values.mean, values.least, values.most))
    return Reached(
        rounds=row.round + 1,
        value=mean,
        lowest=least,
        highest=most,
        loss=loss.mean[0],
        bytes_per_node=sent,
        seconds=row.seconds,
    )


def _cells(
    run: RunCurves, reached: Sequence[Reached], first: float | None, wanted: float | None
) -> tuple[str, ...]:
    if run.outcome is not None:
        ended, unknown = run.outcome, ("-",) * 5
        return (
            run.name,
            str(ended.nodes),
            str(ended.rounds),
            *unknown,
            *_cost(ended),
            *unknown[:FROM_START],
        )
    last, reaches = reached[-1], run.headline.reaches
    first_reaching = next(
        (point for point in reached if wanted is not None and reaches(point.value, wanted)), None
    )
    at_most = AT_MOST if first_reaching is reached[0] and first_reaching.rounds > 1 else ""
    to_target = ("-",) * FROM_START
    if wanted is not None and first_reaching is None:
        to_target = ("-", "-", f"not reached in {readable_seconds(last.seconds)}")
    if first_reaching is not None:
        to_target = tuple(f"{at_most}{cell}" for cell in (str(first_reaching.rounds), *_cost(first_reaching)))
    nodes = run.rows[-1].mean_over.removesuffix(" nodes") or str(len(run.rows[-1].ranks))
    digits = ".2f" if run.headline.is_fraction else ".4g"
    return (
        run.name, nodes, str(last.rounds), f"{last.value:{digits}}",
        f"{last.lowest:{digits}}", f"{last.highest:{digits}}",
        "-" if first is None else f"{last.value - first:+{digits}}", decimal(last.loss),
        *_cost(last), *to_target,
    )  # fmt: skip


def _cost(outcome: Reached | Outcome) -> tuple[str, str]:
    return readable_bytes(outcome.bytes_per_node), readable_seconds(outcome.seconds)


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
