"""What the figures of a study show: one list, for its page, for papers and for notebooks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

from decentnode.errors import BadInput
from decentnode.formats.metrics import DISTANCE, LOSS, Metric
from decentnode.formats.run import FINISHED
from decentnode.results.bands import AXES, Band, distance_band, metric_band
from decentnode.results.curves import (
    BYTES,
    ROUNDS,
    SECONDS,
    Axis,
    chosen_axis,
    metric_label,
    seconds_axis,
)
from decentnode.results.run import Run
from decentnode.results.styles import CurveStyle, style_at
from decentnode.results.variants import Variant, are_simulated, time_doubt

MOST_CURVES = 8
"""Curves of a figure. Where there are more, each value of one axis of the study gets a figure."""


@dataclass(frozen=True)
class StudyCurve:
    """A variant in a figure: its name there, and its style."""

    name: str
    variant: Variant
    style: CurveStyle


@dataclass(frozen=True)
class StudyCurves:
    """What one figure of a study shows: a curve for each variant, and runs that have not finished."""

    name: str
    """The name of its file."""
    axis: Axis
    title: str
    metric: str
    """The name of what the y axis shows."""
    label: str
    """The label of the y axis."""
    bands: Mapping[str, tuple[Band, CurveStyle]]
    """The curve of each variant by its name."""
    others: Mapping[str, tuple[Sequence[float], Sequence[float], CurveStyle]]
    """x and y of runs that have not finished, by name."""
    is_logarithmic: bool = False

    def x_of(self, band: Band) -> list[float]:
        """The places of a band on the axis."""
        return [self.axis.scale * value for value in band.x[self.axis.key]]


def study_curves(
    variants: Sequence[Variant],
    metric: Metric | None,
    x: str,
    curves: Sequence[StudyCurve] | None = None,
    part: str = "",
) -> StudyCurves:
    """The curves of a metric, by default of all variants; without a metric those of the consensus distance.

    `part`: which variants these are. Raises BadInput for another axis, and where no run has an evaluation.
    """
    axis = chosen_axis(x)
    if not any(run.rows for run in _runs(variants)):
        place = variants[0].runs[0].directory
        raise BadInput(f"{place}: no run has an evaluation, so there is nothing to draw")
    curves = all_curves(variants) if curves is None else curves
    runs = _runs([curve.variant for curve in curves])
    if axis is SECONDS:
        doubt = f" ({text})" if (text := time_doubt(variants)) else ""
        axis = seconds_axis([are_simulated(variants)])
        axis = replace(axis, label=f"{axis.label}{doubt}")
    axis = axis.in_unit(max((max(AXES[x](run), default=0.0) for run in runs), default=0.0))
    bands = {
        curve.name: (
            distance_band(curve.variant.finished)
            if metric is None
            else metric_band(curve.variant.finished, metric),
            curve.style,
        )
        for curve in curves
        if curve.variant.finished
    }
    others = {
        f"{curve.name}, seed {run.seed} ({run.state})": (AXES[x](run), _values(run, metric), curve.style)
        for curve in curves
        for run in curve.variant.runs
        if run.rows and run.state != FINISHED
    }
    title = "consensus distance" if metric is None else metric.title
    against = "" if metric is None and axis is ROUNDS else f" against {axis.name}"
    stem = f"{metric.name}_{x}" if metric else DISTANCE if axis is ROUNDS else f"{DISTANCE}_{x}"
    return StudyCurves(
        # Of a file, and of a part of a page: without spaces.
        name=f"{stem}_{part}".replace(" ", "_") if part else stem,
        axis=axis,
        title=f"{title[0].upper()}{title[1:]}{against}{f', {part}' if part else ''}",
        metric=DISTANCE if metric is None else metric.name,
        label="consensus distance, relative" if metric is None else metric_label(metric),
        bands=bands,
        others=others,
        is_logarithmic=metric is None,
    )


def _runs(variants: Sequence[Variant]) -> list[Run]:
    return [run for variant in variants for run in variant.runs]


def _values(run: Run, metric: Metric | None) -> list[float]:
    return [row.consensus_distance or nan for row in run.rows] if metric is None else run.curve(metric)


def all_curves(variants: Sequence[Variant]) -> list[StudyCurve]:
    """A curve for each variant, with the style that it has in all figures."""
    return [StudyCurve(variant.name, variant, style_at(place)) for place, variant in enumerate(variants)]


def figures_of(variants: Sequence[Variant]) -> Iterator[StudyCurves]:
    """All figures of curves: each metric against rounds, bytes and seconds, and the consensus distance.

    The headline metric comes first.
    """
    divided = parts(variants)
    for metric in _metrics(variants):
        for axis in (ROUNDS, BYTES, SECONDS):
            for part, curves in divided.items():
                yield study_curves(variants, metric, axis.key, curves, part)
    if any(row.consensus_distance for run in _runs(variants) for row in run.rows):
        for part, curves in divided.items():
            yield study_curves(variants, None, ROUNDS.key, curves, part)


def _metrics(variants: Sequence[Variant]) -> list[Metric]:
    """The headline metric, the loss, and those on validation or own samples that all runs have."""
    runs = _runs(variants)
    headline = runs[0].headline
    metrics = [headline, *([LOSS] if headline != LOSS else [])]
    judged = {run.judged_by for run in runs}
    metrics += [metric for metric in judged if metric.is_of_validation and len(judged) == 1]
    local = headline.of_local
    return metrics + [local] * all(local in run.metrics for run in runs)


def parts(variants: Sequence[Variant]) -> dict[str, list[StudyCurve]]:
    """The curves of each figure, by what tells the figures apart; an empty text where one shows all.

    Where there are too many, an axis with few values divides them. Its label then stands in the title alone,
    and variants that agree in the other axes look the same in all figures. Without such an axis the best
    ones come first, so many in a figure.
    """
    curves = [curve for curve in all_curves(variants) if any(run.rows for run in curve.variant.runs)]
    if len(curves) <= MOST_CURVES:
        return {"": curves}
    if axis := _dividing_axis(curves):
        return dict(_divided(curves, axis))
    headline = _runs(variants)[0].headline
    ranked = sorted(curves, key=lambda curve: _last(curve.variant, headline))
    return {
        f"places {first + 1} to {min(first + MOST_CURVES, len(ranked))}": [
            replace(curve, style=style_at(place))
            for place, curve in enumerate(ranked[first : first + MOST_CURVES])
        ]
        for first in range(0, len(ranked), MOST_CURVES)
    }


def _last(variant: Variant, metric: Metric) -> float:
    """A number that is the smaller, the better the variant ended; infinite for one that has not finished."""
    value = variant.over_seeds(lambda run: run.curve()[-1]).mean if variant.finished else nan
    if value != value:
        return float("inf")
    return -value if metric.higher_is_better else value


def _divided(curves: Sequence[StudyCurve], axis: str) -> Iterator[tuple[str, list[StudyCurve]]]:
    label_of = {
        curve.name: "_".join(label for name, label in curve.variant.axes.items() if name != axis)
        for curve in curves
    }
    places = {name: place for place, name in enumerate(dict.fromkeys(label_of.values()))}
    for value in dict.fromkeys(curve.variant.axes[axis] for curve in curves):
        yield (
            value,
            [
                StudyCurve(label_of[curve.name], curve.variant, style_at(places[label_of[curve.name]]))
                for curve in curves
                if curve.variant.axes[axis] == value
            ],
        )


def _dividing_axis(curves: Sequence[StudyCurve]) -> str:
    """The axis of a sweep with the fewest values, where there are several axes; empty without any."""
    # Variants that no sweep has made differ in arbitrary keys, and values that do not fit the name of a file.
    if not all(run.entry is not None for curve in curves for run in curve.variant.runs):
        return ""
    axes = curves[0].variant.axes
    values = {name: {curve.variant.axes.get(name) for curve in curves} for name in axes}
    usable = {name: len(labels) for name, labels in values.items() if None not in labels and len(labels) > 1}
    return min(usable, key=lambda name: usable[name]) if len(usable) > 1 else ""
