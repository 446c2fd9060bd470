"""Numbers with their intervals as the cells of a table."""

from dataclasses import dataclass
from math import isfinite, nan

from decentnode.core.text import readable_bytes, readable_seconds
from decentnode.formats.metrics import Metric
from decentnode.results.statistics import Interval

UNKNOWN = "-"
AT_MOST = "<= "
"""The prefix of an upper bound, where the first evaluation is beyond the target already."""


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and the number that it sorts by."""

    text: str
    value: float = nan
    half: float = nan
    """Half of the 95 % interval."""


def plain(interval: Interval, digits: int) -> Cell:
    """A number without a unit."""
    if not isfinite(interval.mean):
        return Cell(UNKNOWN)
    half = f" ± {interval.half:.{digits}f}" if isfinite(interval.half) else ""
    return Cell(f"{interval.mean:.{digits}f}{half}", interval.mean, interval.half)


def number(interval: Interval, metric: Metric) -> Cell:
    """A value of the metric, as people read it, with its interval."""
    if not isfinite(interval.mean):
        return Cell(UNKNOWN)
    digits = ".2f" if metric.is_fraction else ".4g"
    half = f" ± {interval.half:{'.2f' if metric.is_fraction else '.2g'}}" if isfinite(interval.half) else ""
    return Cell(f"{interval.mean:{digits}}{half}", interval.mean, interval.half)


def of_bytes(interval: Interval) -> Cell:
    """A number of bytes."""
    known = isfinite(interval.mean)
    return Cell(readable_bytes(interval.mean), interval.mean, interval.half) if known else Cell(UNKNOWN)


def of_seconds(interval: Interval) -> Cell:
    """A time."""
    known = isfinite(interval.mean)
    return Cell(readable_seconds(interval.mean), interval.mean, interval.half) if known else Cell(UNKNOWN)
