"""Tables and figures for a paper: LaTeX, Markdown, CSV, and figures that fit a column and print in gray."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from decentnode.formats.metrics import LOSS, Metric
from decentnode.results import Study
from decentnode.results.bands import AXES, Band, distance_band, metric_band
from decentnode.results.study import Variant
from decentnode.results.styles import PATTERNS, CurveStyle, style_at
from decentnode.studies.report import tables
from decentnode.studies.report.charts import label, styles_of

WIDTH_INCHES, HEIGHT_INCHES = {1: 3.35, 2: 6.9}, 2.3
"""Widths of one column and of two in the usual styles; 2.3 inches leave room for a legend below."""
STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5, "lines.linewidth": 1.3, "lines.markersize": 3.5, "legend.frameon": False,
    "axes.axisbelow": True, "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "decentnode",
}  # fmt: skip
BAND_ALPHA = 0.2
MOST_MARKERS = 8
"""Markers of a curve; with more they would hide the line."""
LEGEND_LINE_INCHES = 0.15
LETTERS_PER_INCH, HANDLE_LETTERS = 21, 9
"""Letters of the legend's size, and what the piece of line before a name takes."""
FORMATS = ("pdf", "svg")
MOST_CURVES = 8
"""Curves of a figure. Where there are more, each value of one axis of the study gets a figure."""
AXIS_LABELS = {"rounds": "round", "bytes": "MB sent per node", "seconds": "seconds"}
AXIS_SCALES = {"rounds": 1.0, "bytes": 1e-6, "seconds": 1.0}
WRITERS: dict[str, Callable[[tables.Table], str]] = {
    "tex": tables.as_latex, "md": tables.as_markdown, "csv": tables.as_csv
}  # fmt: skip


def write(study: Study, out: Path, target: float, columns: int = 1) -> list[Path]:
    """Writes all tables and figures into a folder; returns their paths. Raises OSError.

    `columns`: 1 or 2, the columns of the paper that a figure is wide.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    main = tables.main_table(study, target)
    files = {
        "results": main,
        "results_column": tables.narrow(main),
        "differences": tables.difference_table(study.comparisons(), study.headline),
    }
    for name, table in files.items():
        for ending, text in WRITERS.items():
            path = out / f"{name}.{ending}"
            path.write_text(text(table))
            written.append(path)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        for name, figure in _figures(study, WIDTH_INCHES[columns]).items():
            written += _save(figure, out / name)
    return written


@dataclass(frozen=True)
class _Curve:
    """A variant in a figure: its name there, and its style."""

    name: str
    variant: Variant
    style: CurveStyle


def _figures(study: Study, width: float = WIDTH_INCHES[1]) -> dict[str, Figure]:
    """The figures by name: headline metric and loss against each axis, and the consensus distance."""
    figures: dict[str, Figure] = {}
    metrics = [study.headline, *([LOSS] if study.headline != LOSS else [])]
    for part, curves in _parts(study).items():
        for metric in metrics:
            bands = [(curve, metric_band(curve.variant.finished, metric)) for curve in curves]
            for axis in [name for name in AXES if name != "seconds" or not study.time_doubt]:
                figure = _figure(bands, axis, metric, width=width)
                if axis == "seconds" and study.is_simulated:
                    figure.axes[0].set_xlabel("simulated seconds")
                figures[f"{metric.name}_{axis}{part}"] = figure
        distances = [(curve, distance_band(curve.variant.finished)) for curve in curves]
        figures[f"consensus_distance{part}"] = _figure(distances, "rounds", None, width=width)
    return figures


def _parts(study: Study) -> dict[str, list[_Curve]]:
    """The curves of each figure, by the end of its name; empty where one figure shows all.

    Where there are too many, an axis with few values divides them. Its label then stands in the name of the
    file alone, and variants that agree in the other axes look the same in all figures.
    """
    axis = _dividing_axis(study)
    if axis is None:
        styles = styles_of(study)
        return {"": [_Curve(variant.name, variant, styles[variant.name]) for variant in study.compared]}
    label_of = {
        variant.name: "_".join(label for name, label in variant.axes.items() if name != axis)
        for variant in study.variants
    }
    places = {name: place for place, name in enumerate(dict.fromkeys(label_of.values()))}
    parts: dict[str, list[_Curve]] = {}
    for variant in study.compared:
        name = label_of[variant.name]
        parts.setdefault(f"_{variant.axes[axis]}", []).append(_Curve(name, variant, style_at(places[name])))
    return parts


def _dividing_axis(study: Study) -> str | None:
    """The axis of a sweep with the fewest values, if there are too many curves, and more than one axis."""
    variants = study.variants
    # Variants that no sweep has made differ in arbitrary keys, and values that do not fit the name of a file.
    is_sweep = all(run.entry is not None for run in study.runs)
    if len(study.compared) <= MOST_CURVES or not is_sweep:
        return None
    values = {name: {variant.axes.get(name) for variant in variants} for name in variants[0].axes}
    usable = {name: len(labels) for name, labels in values.items() if None not in labels and len(labels) > 1}
    return min(usable, key=lambda name: usable[name]) if len(usable) > 1 else None


def _figure(bands: Sequence[tuple[_Curve, Band]], axis: str, metric: Metric | None, width: float) -> Figure:
    """Writes one figure; without a metric it shows the consensus distance, on a logarithmic scale."""
    columns = _legend_columns([curve.name for curve, _ in bands], width)
    lines = -(-len(bands) // columns)
    figure = Figure(figsize=(width, HEIGHT_INCHES + LEGEND_LINE_INCHES * lines), layout="constrained")
    axes = figure.add_subplot()
    for place, (curve, band) in enumerate(bands):
        _draw(axes, curve, band, axis=axis, place=place)
    axes.set(xlabel=AXIS_LABELS[axis], ylabel=label(metric) if metric else "consensus distance")
    if metric is None:
        axes.set_yscale("log")
    figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6, columnspacing=1.0)
    return figure


def _legend_columns(names: Sequence[str], width: float) -> int:
    """Counts the columns that fit beside each other in the width of the figure."""
    longest = max(map(len, names), default=0)
    return max(1, min(len(names), int(LETTERS_PER_INCH * width) // (longest + HANDLE_LETTERS)))


def _draw(axes: Axes, curve: _Curve, band: Band, axis: str, place: int) -> None:
    x, style = [AXIS_SCALES[axis] * value for value in band.x[axis]], curve.style
    if band.has_interval:
        axes.fill_between(x, band.low, band.high, color=style.color, alpha=BAND_ALPHA, linewidth=0)
    step = max(1, -(-len(x) // MOST_MARKERS))
    # Markers of different curves begin at different points, so that they hide each other less.
    axes.plot(
        x, band.mean, label=curve.name, color=style.color, linestyle=PATTERNS[style.dash],
        marker=style.marker, markevery=(place % step, step),
    )  # fmt: skip


def _save(figure: Figure, stem: Path) -> list[Path]:
    FigureCanvasAgg(figure)
    paths = [stem.with_suffix(f".{ending}") for ending in FORMATS]
    for path in paths:
        # Without a date the same data give the same file.
        figure.savefig(path, metadata={"CreationDate" if path.suffix == ".pdf" else "Date": None})
    return paths
