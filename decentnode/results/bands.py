"""Curves of a variant: the mean over seeds after each evaluation, with the band of its 95 % interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log, nan
from statistics import fmean

from decentnode.formats.metrics import Metric
from decentnode.results.run import Run
from decentnode.results.statistics import interval

AXES: dict[str, Callable[[Run], list[float]]] = {
    "rounds": lambda run: run.rounds,
    "bytes": lambda run: run.bytes_per_node,
    "seconds": lambda run: run.seconds,
}
"""The x axes of curves, by name; bytes are the mean of what a node has sent."""


@dataclass(frozen=True)
class Band:
    """A curve with its band; all lists have one entry for each evaluation that all runs have."""

    rounds: list[float]
    x: dict[str, list[float]]
    """The places on each axis by its name, mean over seeds."""
    mean: list[float]
    low: list[float]
    """The lower end of the band; nan where there is only one seed."""
    high: list[float]

    @property
    def has_interval(self) -> bool:
        """Whether there are curves of several seeds, so that the interval is known."""
        return bool(self.low) and all(map(isfinite, self.low))


def band_of(runs: Sequence[Run], values: Callable[[Run], Sequence[float]]) -> Band:
    """The band of some runs, after the rounds that all of them were evaluated in.

    `values`: one number for each evaluation of a run.
    """
    by_round = [dict(zip(run.rounds, range(len(run.rounds)), strict=True)) for run in runs]
    shared = sorted(set.intersection(*(set(places) for places in by_round))) if runs else []
    places = [[places[round] for round in shared] for places in by_round]
    columns = [_picked(values(run), at) for run, at in zip(runs, places, strict=True)]
    intervals = [interval(column) for column in zip(*columns, strict=True)]
    x = {
        name: _means([_picked(of(run), at) for run, at in zip(runs, places, strict=True)])
        for name, of in AXES.items()
    }
    mean, low, high = ([getattr(value, part) for value in intervals] for part in ("mean", "low", "high"))
    return Band(shared, x, mean, low=low, high=high)


def metric_band(runs: Sequence[Run], metric: Metric) -> Band:
    """The curve of a metric, mean over nodes, as people read it.

    Intervals of a fraction end where its values end, at 0 and 100 %.
    """
    band = band_of(runs, lambda run: run.curve(metric))
    if not metric.is_fraction:
        return band
    low, high = ([min(max(value, 0.0), metric.scale) for value in edge] for edge in (band.low, band.high))
    return replace(band, low=low, high=high)


def distance_band(runs: Sequence[Run]) -> Band:
    """The curve of the consensus distance, for a logarithmic scale; nan where it is unknown or 0.

    Mean and interval are those of its logarithm, so the band never reaches 0.
    """
    band = band_of(runs, lambda run: [_log(row.consensus_distance) for row in run.rows])
    mean, low, high = ([exp(value) for value in part] for part in (band.mean, band.low, band.high))
    return Band(band.rounds, band.x, mean, low=low, high=high)


def _log(distance: float | None) -> float:
    return log(distance) if distance else nan


def _picked(values: Sequence[float], places: Sequence[int]) -> list[float]:
    return [values[place] for place in places]


def _means(columns: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*columns, strict=True)]
