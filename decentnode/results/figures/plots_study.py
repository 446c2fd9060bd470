"""Draws the curves of a study: each variant's mean over seeds, with the band of its 95 % interval."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from decentnode.formats.metrics import Metric
from decentnode.results.curves import metric_label
from decentnode.results.figures.plots import THUMBNAIL, NotebookFigure, as_png
from decentnode.results.figures.style import PALE, SCREEN, FigureStyle, drawing, linear, logarithmic
from decentnode.results.study_curves import StudyCurve, StudyCurves
from decentnode.results.styles import CurveStyle

BAND_ALPHA = 0.2
BAR_WIDTH = 8
"""The width in points of a bar, which replaces a band where there is only one point."""
COST_WIDTH, COST_HEIGHT = 3.7, 2.8
"""Inches of a panel in the figure of costs."""
UNFINISHED = "not finished"
MOST_DOTS = 200
"""The most nodes of a variant that are a dot each beside their box."""


def study_figure(curves: StudyCurves, style: FigureStyle = SCREEN) -> NotebookFigure:
    """Returns the figure with a legend below."""
    with drawing(style):
        names = _names([curves], style)
        figure = NotebookFigure(
            figsize=(style.width, style.height + style.legend_height(names)), layout="constrained"
        )
        axes = figure.add_subplot()
        _draw(axes, curves, style)
        if style.has_titles:
            axes.set_title(curves.title)
        figure.legend(loc="outside lower center", ncols=style.legend_columns(names), handlelength=2.6)
        return figure


def cost_figure(
    curves_by_column: Mapping[str, Sequence[StudyCurves]], target: float | None, style: FigureStyle = SCREEN
) -> NotebookFigure:
    """Returns a figure with a column of panels for each name, one below the other, and a legend below.

    `target`: where a dashed line is.
    """
    with drawing(style):
        rows = max(map(len, curves_by_column.values()))
        width = max(style.width, COST_WIDTH * len(curves_by_column))
        names = _names([each[0] for each in curves_by_column.values()], style)
        height = COST_HEIGHT * rows + 0.3 + style.legend_height(names, width)
        figure = NotebookFigure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(rows, len(curves_by_column), squeeze=False, sharey=True)
        handles: dict[str, Any] = {}
        for place, (column, panels) in enumerate(curves_by_column.items()):
            for row, curves in enumerate(panels):
                axes = grid[row][place]
                _draw(axes, curves, style)
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
        across = style.legend_columns([*names, "target 100"][: len(legend)], width)
        figure.legend(handles=legend, loc="outside lower center", ncols=across, handlelength=2.6)
        return figure


def study_thumbnail(curves: StudyCurves) -> bytes:
    """Returns a small PNG without a background and a legend."""
    with drawing(THUMBNAIL):
        figure = Figure(figsize=(THUMBNAIL.width, THUMBNAIL.height), layout="constrained")
        _draw(figure.add_subplot(), curves, THUMBNAIL)
        return as_png(figure, transparent=True)


def _names(curves_of_panels: Sequence[StudyCurves], style: FigureStyle) -> list[str]:
    """The entries of the legend, each once."""
    names = [style.name_of(name) for curves in curves_of_panels for name in curves.bands]
    others = [UNFINISHED] if any(curves.others for curves in curves_of_panels) else []
    return list(dict.fromkeys([*names, *others]))


def _draw(axes: Axes, curves: StudyCurves, style: FigureStyle) -> None:
    for place, (name, (band, curve_style)) in enumerate(curves.bands.items()):
        x = curves.x_of(band)
        if band.has_interval:
            if len(x) == 1:
                axes.vlines(
                    x,
                    band.low,
                    band.high,
                    color=curve_style.color,
                    alpha=BAND_ALPHA,
                    linewidth=BAR_WIDTH,
                    gid=f"band:{name}",
                )
            else:
                axes.fill_between(
                    x,
                    band.low,
                    band.high,
                    color=curve_style.color,
                    alpha=BAND_ALPHA,
                    linewidth=0,
                    gid=f"band:{name}",
                )
        axes.plot(
            x, band.mean, label=style.name_of(name), color=curve_style.color, linestyle=curve_style.dash,
            marker=curve_style.marker, markevery=style.marks(len(x), place), gid=f"curve:{name}",
        )  # fmt: skip
    for place, (places, y, curve_style) in enumerate(curves.others.values()):
        x = [curves.axis.scale * value for value in places]
        label = "_" if place else UNFINISHED
        axes.plot(x, y, label=label, color=curve_style.color, linestyle=":", linewidth=1.0)
    own = style.names.get(curves.metric)
    unit = " (%)" if curves.label.endswith(" (%)") else ""
    axes.set(xlabel=curves.axis.label, ylabel=f"{own}{unit}" if own else curves.label)
    if curves.is_logarithmic:
        logarithmic(axes)
    linear(axes.xaxis, integer=curves.axis.key == "rounds")


def spread_figure(
    metric: Metric, curves: Sequence[StudyCurve], style: FigureStyle = SCREEN
) -> NotebookFigure:
    """Every node's metric at the end, of all seeds: a box for each variant, dots for its nodes."""
    with drawing(style):
        shown = [curve for curve in curves if curve.variant.finished]
        figure = NotebookFigure(figsize=(style.width, 1.0 + 0.32 * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        for place, curve in enumerate(shown):
            values = [metric.scale * value for value in _last_values(curve, metric)]
            _draw_box(axes, place, values, curve.style)
        axes.set(
            xlabel=f"{metric_label(metric, style.names)} of each node",
            ylim=(len(shown) - 0.4, -0.6),
        )
        axes.set_yticks(range(len(shown)), [style.name_of(curve.name) for curve in shown])
        axes.grid(visible=False, axis="y")
        linear(axes.xaxis)
        if style.has_titles:
            axes.set_title(f"{metric.words.capitalize()} of the nodes at the end")
        return figure


def _last_values(curve: StudyCurve, metric: Metric) -> list[float]:
    values = [value for run in curve.variant.finished for value in run.rows[-1].values(metric.name)]
    return [value for value in values if value is not None]


def _draw_box(axes: Axes, place: int, values: Sequence[float], curve_style: CurveStyle) -> None:
    axes.boxplot(
        values, positions=[place], orientation="horizontal", widths=0.55, manage_ticks=False,
        showfliers=len(values) > MOST_DOTS, boxprops={"color": curve_style.color},
        whiskerprops={"color": curve_style.color}, capprops={"color": curve_style.color},
        medianprops={"color": curve_style.color, "linewidth": 2.0},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": curve_style.color},
    )  # fmt: skip
    if len(values) <= MOST_DOTS:
        # In turn above and below the middle, so that equal values are seen.
        heights = [place + 0.12 * (i % 3 - 1) for i in range(len(values))]
        axes.add_line(
            Line2D(
                values,
                heights,
                linestyle="",
                marker=curve_style.marker,
                markersize=3,
                color=curve_style.color,
                alpha=0.6,
            )
        )
