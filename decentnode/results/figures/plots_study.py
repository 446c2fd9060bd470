"""Draws the curves of a study: each variant's mean over seeds, with the band of its 95 % interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from decentnode.results.bands import Band
from decentnode.results.curves import Axis
from decentnode.results.figures.plots import (
    MOST_MARKED,
    PALE,
    THUMBNAIL,
    THUMBNAIL_INCHES,
    NotebookFigure,
    as_png,
    drawing_style,
    number_decades,
)
from decentnode.results.styles import PATTERNS, CurveStyle

BAND_ALPHA = 0.2
WIDTH, HEIGHT, LEGEND_LINE = 7, 4.4, 0.2
"""Inches; the height is that without the legend."""
COST_WIDTH, COST_HEIGHT = 3.7, 2.8
"""Inches of a panel in the figure of costs."""
LETTERS_PER_INCH, HANDLE_LETTERS = 14, 8
"""Letters of the legend's size, and what the piece of line before a name takes."""


@dataclass(frozen=True)
class StudyCurves:
    """What one figure of a study shows."""

    axis: Axis
    title: str
    label: str
    """The label of the y axis."""
    bands: Mapping[str, tuple[Band, CurveStyle]]
    """The curve of each variant by its name."""
    others: Mapping[str, tuple[Sequence[float], Sequence[float], CurveStyle]]
    """x and y of runs that have not finished, by name."""
    is_logarithmic: bool = False


def study_figure(curves: StudyCurves) -> NotebookFigure:
    """Returns the figure with a legend below."""
    with drawing_style():
        names = [*curves.bands, *curves.others]
        columns = int(LETTERS_PER_INCH * WIDTH) // (max(map(len, names)) + HANDLE_LETTERS)
        columns = max(1, min(len(names), columns))
        height = HEIGHT + LEGEND_LINE * -(-len(names) // columns)
        figure = NotebookFigure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        _draw(axes, curves)
        axes.set_title(curves.title)
        figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6)
        return figure


def cost_figure(
    curves_by_column: Mapping[str, Sequence[StudyCurves]], target: float | None
) -> NotebookFigure:
    """Returns a figure with a column of panels for each name, one below the other, and a legend below.

    `target`: where a dashed line is.
    """
    with drawing_style():
        rows = max(map(len, curves_by_column.values()))
        width = max(WIDTH, COST_WIDTH * len(curves_by_column))
        names = list(
            dict.fromkeys(
                name for each in curves_by_column.values() for name in (*each[0].bands, *each[0].others)
            )
        )
        across = int(LETTERS_PER_INCH * width) // (max(map(len, names)) + HANDLE_LETTERS)
        across = max(1, min(len(names) + (target is not None), across))
        height = COST_HEIGHT * rows + 0.3 + LEGEND_LINE * -(-len(names) // across)
        figure = NotebookFigure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(rows, len(curves_by_column), squeeze=False, sharey=True)
        handles: dict[str, Any] = {}
        for place, (column, panels) in enumerate(curves_by_column.items()):
            for row, curves in enumerate(panels):
                axes = grid[row][place]
                _draw(axes, curves)
                axes.set_title(column if row == 0 else "")
                if place:
                    axes.set_ylabel("")
                    axes.tick_params(labelleft=False)
                if target is not None:
                    look: dict[str, Any] = {"color": PALE, "linestyle": "--", "linewidth": 1.0}
                    axes.axhline(target, label=f"target {target:g}", **look)
                handles |= {str(line.get_label()): line for line in axes.get_lines()}
        legend = [handles.pop(name) for name in names if name in handles]
        legend += handles.values()
        figure.legend(handles=legend, loc="outside lower center", ncols=across, handlelength=2.6)
        return figure


def study_thumbnail(curves: StudyCurves) -> bytes:
    """Returns a small PNG without a background and a legend."""
    with drawing_style(THUMBNAIL):
        figure = Figure(figsize=THUMBNAIL_INCHES, layout="constrained")
        _draw(figure.add_subplot(), curves)
        return as_png(figure, transparent=True)


def _draw(axes: Axes, curves: StudyCurves) -> None:
    for name, (band, style) in curves.bands.items():
        x = [curves.axis.scale * value for value in band.x[curves.axis.key]]
        if band.has_interval:
            if len(x) == 1:
                axes.vlines(x, band.low, band.high, color=style.color, alpha=BAND_ALPHA, linewidth=8)
            else:
                axes.fill_between(x, band.low, band.high, color=style.color, alpha=BAND_ALPHA, linewidth=0)
        look: dict[str, Any] = {"color": style.color, "linestyle": PATTERNS[style.dash]}
        axes.plot(x, band.mean, label=name, marker=style.marker if len(x) <= MOST_MARKED else "", **look)
    for name, (places, y, style) in curves.others.items():
        x = [curves.axis.scale * place for place in places]
        axes.plot(x, y, label=name, color=style.color, linestyle=":", linewidth=1.0)
    axes.set(xlabel=curves.axis.label, ylabel=curves.label)
    if curves.is_logarithmic:
        axes.set_yscale("log")
        number_decades(axes)
    axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=curves.axis.key == "rounds"))
