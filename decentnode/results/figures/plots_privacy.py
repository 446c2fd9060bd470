"""Draws what nodes learn of each other, and studies of privacy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from decentnode.results.figures.style import PALE, SCREEN, drawing, plain_numbers, write
from decentnode.results.styles import MARKERS, style_at

Matrix = NDArray[np.float64]
SIDE = 4.2
"""Inches of a panel."""
MOST_CELLS = 512
"""The most rows and columns of one rank each; of more a cell is the largest number of a block."""
DECADES = 4
"""Decades of the scale of colors; a smaller value is as pale as the end of the scale."""
UNSEEN, KNOWN = "#ffffff", "#dddddd"
"""The colors where nothing is learned, and where nothing is hidden."""


def draw_heat_map(title: str, tables: Mapping[str, Matrix], path: Path) -> None:
    """Writes a panel for each table of epsilon[u, v], all with the same scale; raises BadInput."""
    with drawing(SCREEN.without_grid()):
        write(heat_map(title, tables), path)


def heat_map(title: str, tables: Mapping[str, Matrix]) -> Figure:
    """The picture before it is written: what is learned of each row, by each column."""
    count = len(tables)
    figure = Figure(figsize=(count * SIDE + 1.0, SIDE + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    nodes = max(map(len, tables.values()))
    tables = {name: block_maxima(table) for name, table in tables.items()}
    values = np.concatenate([table.ravel() for table in tables.values()])
    finite = values[np.isfinite(values) & (values > 0)]
    most = float(finite.max()) if finite.size else 1.0
    least = max(float(finite.min()) if finite.size else 0.1, most / 10**DECADES)
    colors = matplotlib.colormaps["viridis_r"].with_extremes(bad=KNOWN, under=UNSEEN)
    least_shown = least if least < most else most / 10
    norm = LogNorm(least_shown, most)
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        # Below the scale is pale; nothing at all is white.
        shown = np.where(table > 0, np.maximum(table, least), least / 10)
        image = axes.imshow(
            np.where(np.isfinite(table), shown, np.nan), cmap=colors, norm=norm, aspect="auto",
            extent=(-0.5, (nodes if table.shape[1] > 1 else 1) - 0.5, nodes - 0.5, -0.5),
        )  # fmt: skip
        axes.set(title=name, xlabel="who learns", ylabel="about rank")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        if table.shape[1] == 1:
            axes.set(xticks=[0], xticklabels=["colluders"], xlabel="")
    of = (
        "epsilon"
        if nodes <= MOST_CELLS
        else f"the most epsilon of a block of {-(-nodes // MOST_CELLS)} ranks"
    )
    bar = figure.colorbar(image, ax=panels, label=f"{of} (white: nothing)", shrink=0.9)
    plain_numbers(bar.ax.yaxis, least_shown, most)
    return figure


def block_maxima(table: Matrix) -> Matrix:
    """Returns the largest numbers of at most MOST_CELLS blocks of rows and of columns; nan is the largest."""
    for axis in (0, 1):
        size = -(-table.shape[axis] // MOST_CELLS)
        table = np.maximum.reduceat(table, np.arange(0, table.shape[axis], size), axis=axis)
    return table


@dataclass(frozen=True)
class Panel:
    """A panel of points by label against the utility, each with its half intervals."""

    title: str
    axis: str
    is_logarithmic: bool
    points: Mapping[str, tuple[float, float, float, float]]
    """Points x, half, y, half by label; x is nan where there is none, and halves where there is one seed."""
    front: Sequence[str]
    """The labels that no other one beats."""


def draw_frontier(title: str, utility: str, panels: Sequence[Sequence[Panel]], path: Path) -> None:
    """Writes panels of utility against costs, with the front of each marked; raises BadInput."""
    with drawing():
        write(frontier_figure(title, utility, panels), path)


def frontier_figure(title: str, utility: str, panels: Sequence[Sequence[Panel]]) -> Figure:
    """The picture before it is written: a row of panels for each group."""
    labels = list(dict.fromkeys(label for row in panels for panel in row for label in panel.points))
    places = {label: place for place, label in enumerate(labels)}
    columns = max(map(len, panels))
    lines = -(-len(labels) // 5)
    figure = Figure(figsize=(columns * SIDE, len(panels) * 3.4 + 0.5 + 0.25 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    for row, line in zip(panels, figure.subplots(len(panels), columns, squeeze=False), strict=True):
        for axes in line[len(row) :]:
            axes.axis("off")
        for panel, axes in zip(row, line, strict=False):
            _draw_panel(axes, panel, places)
        line[0].set_ylabel(utility)
    entries = [
        Line2D([], [], linestyle="", marker=marker_of(place), color=style_at(place).color, label=label)
        for label, place in places.items()
    ]
    entries.append(Line2D([], [], color=PALE, linestyle="--", linewidth=1.2, label="Pareto front"))
    figure.legend(handles=entries, loc="outside lower center", ncols=5, handletextpad=0.4)
    return figure


def marker_of(place: int) -> str:
    """Returns a marker; together with the color of `style_at` the first 64 places differ."""
    return MARKERS[(place + place // len(MARKERS)) % len(MARKERS)]


def _draw_panel(axes: Axes, panel: Panel, places: Mapping[str, int]) -> None:
    axes.set(title=panel.title, xlabel=panel.axis)
    if panel.is_logarithmic:
        axes.set_xscale("log")
    known = {label: p for label, p in panel.points.items() if isfinite(p[0]) and isfinite(p[2])}
    # Variants without a value of x have a place of their own, right of all others.
    right = max((point[0] for point in known.values()), default=1.0)
    nowhere = right * 3 if panel.is_logarithmic else right + 0.15 * (abs(right) or 1.0)
    for label, (x, x_half, y, y_half) in panel.points.items():
        style, is_known = style_at(places[label]), label in known
        axes.errorbar(
            x if is_known else nowhere, y, xerr=_half(x_half) if is_known else None, yerr=_half(y_half),
            marker=marker_of(places[label]), color=style.color,
            markerfacecolor=style.color if is_known else "white", markersize=7, elinewidth=1.0, linestyle="",
        )  # fmt: skip
    if len(known) < len(panel.points):
        between = (right * nowhere) ** 0.5 if panel.is_logarithmic else (right + nowhere) / 2
        axes.axvline(between, color=PALE, linewidth=0.8)
        axes.annotate("none", (nowhere, 0.02), xycoords=("data", "axes fraction"), ha="center", color=PALE)
    if panel.is_logarithmic:
        plain_numbers(axes.xaxis, *axes.get_xlim())
    if len(known) < len(panel.points):
        # Numbers right of all points would be those of variants without one.
        both = (*axes.get_xticks(), *axes.get_xticks(minor=True))
        ticks = [tick for tick in both if axes.get_xlim()[0] <= tick <= right] or [right]
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.set_xticks([], minor=True)
    front = sorted((known[label][0], known[label][2]) for label in panel.front if label in known)
    if front:
        xs, ys = zip(*front, strict=True)
        axes.step(xs, ys, where="post", color=PALE, linestyle="--", linewidth=1.2, zorder=0)


def _half(value: float) -> float | None:
    return value if isfinite(value) else None
