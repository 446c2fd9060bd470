"""Tables and figures for a paper: LaTeX, Markdown, CSV, and figures that fit a column and print in gray."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from decentnode.results import Study
from decentnode.results.figures.look import PATTERNS, Look
from decentnode.results.metrics import LOSS, Metric
from decentnode.studies.report import tables
from decentnode.studies.report.bands import AXES, Band, distance_band, metric_band
from decentnode.studies.report.charts import label, looks

COLUMN_INCHES, HEIGHT_INCHES = 3.35, 2.3
"""The width of a column in the usual two-column styles; 2.3 inches leave room for a legend below."""
STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5, "lines.linewidth": 1.3, "lines.markersize": 3.5, "legend.frameon": False,
    "axes.axisbelow": True, "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "decentnode",
}  # fmt: skip
BAND_ALPHA = 0.2
MOST_MARKERS = 8
"""Markers of a curve; with more they would hide the line."""
FORMATS = ("pdf", "svg")
AXIS_LABELS = {"rounds": "round", "bytes": "MB sent per node", "seconds": "seconds"}
AXIS_SCALES = {"rounds": 1.0, "bytes": 1e-6, "seconds": 1.0}
WRITERS: dict[str, Callable[[tables.Table], str]] = {
    "tex": tables.as_latex, "md": tables.as_markdown, "csv": tables.as_csv
}  # fmt: skip


def write(study: Study, out: Path, target: float) -> list[Path]:
    """Writes all tables and figures into a folder; returns their paths. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    found = {
        "results": tables.main_table(study, target),
        "differences": tables.difference_table(study.comparisons(), study.headline),
    }
    for name, table in found.items():
        for ending, text in WRITERS.items():
            path = out / f"{name}.{ending}"
            path.write_text(text(table))
            written.append(path)
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(study).items():
            written += _save(figure, out / name)
    return written


def _figures(study: Study) -> dict[str, Figure]:
    """The figures by name: headline metric and loss against each axis, and the consensus distance."""
    styles, figures = looks(study), {}
    metrics = [study.headline, *([LOSS] if study.headline != LOSS else [])]
    alone = all(variant.had_the_machine_alone for variant in study.compared)
    for metric in metrics:
        bands = {variant.name: metric_band(variant, metric) for variant in study.compared}
        for axis in AXES if alone else [name for name in AXES if name != "seconds"]:
            figures[f"{metric.name}_{axis}"] = _figure(bands, axis, metric, styles)
    distances = {variant.name: distance_band(variant) for variant in study.compared}
    figures["consensus_distance"] = _figure(distances, "rounds", None, styles)
    return figures


def _figure(bands: dict[str, Band], axis: str, metric: Metric | None, styles: dict[str, Look]) -> Figure:
    """One figure; without a metric it shows the consensus distance, on a logarithmic scale."""
    lines = -(-len(bands) // 3)
    figure = Figure(figsize=(COLUMN_INCHES, HEIGHT_INCHES + 0.13 * lines), layout="constrained")
    axes = figure.add_subplot()
    for name, band in bands.items():
        _draw(axes, name, band, axis, styles[name])
    axes.set(xlabel=AXIS_LABELS[axis], ylabel=label(metric) if metric else "consensus distance")
    if metric is None:
        axes.set_yscale("log")
    figure.legend(loc="outside lower center", ncols=min(3, len(bands)), handlelength=2.6, columnspacing=1.0)
    return figure


def _draw(axes: Axes, name: str, band: Band, axis: str, style: Look) -> None:
    x = [AXIS_SCALES[axis] * value for value in band.x[axis]]
    if band.has_interval:
        axes.fill_between(x, band.low, band.high, color=style.color, alpha=BAND_ALPHA, linewidth=0)
    axes.plot(
        x, band.mean, label=name, color=style.color, linestyle=PATTERNS[style.dash], marker=style.marker,
        markevery=max(1, len(x) // MOST_MARKERS),
    )  # fmt: skip


def _save(figure: Figure, stem: Path) -> list[Path]:
    FigureCanvasAgg(figure)
    paths = [stem.with_suffix(f".{ending}") for ending in FORMATS]
    for path in paths:
        # Without a date the same data give the same file.
        figure.savefig(path, metadata={"CreationDate" if path.suffix == ".pdf" else "Date": None})
    return paths
