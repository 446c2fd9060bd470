"""Draws a modelled network: the graph with its latencies and rates, or the matrix of all latencies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from decentnode.core.text import readable_rate, short_time
from decentnode.results.figures.plots_graph import MARGIN, SHAPES, diameter_of, draw_node
from decentnode.results.figures.style import INK, PALE, SCREEN, drawing, write
from decentnode.results.styles import PALETTE

LATENCIES, RATES = matplotlib.colormaps["plasma_r"], matplotlib.colormaps["viridis"]
SIDE = 6.6
"""Inches of the graph, and of the matrix."""
BARS = 2.1
"""Inches of the bars of one direction."""
WIDE_RANGE = 20
"""Largest over smallest number from which on a scale is logarithmic."""
MOST_TICKS = 12
MOST_CELLS, MOST_BARS = 512, 512
"""The most rows of a matrix, and bars, of one rank each; of more, a cell is the mean of a block."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class NetworkPicture:
    """The content of a picture of a network."""

    title: str
    latency: Numbers
    """Seconds from rank to rank, shape (n, n)."""
    uplink: Numbers
    """Bits per second of each rank, shape (n,); infinite: without a limit."""
    downlink: Numbers
    regions: Sequence[str] = ()
    """The region of each rank; empty: there are none."""
    places: Numbers | None = None
    """The coordinates x and y of each rank, from -1 to 1, for a picture of the graph; None: a matrix."""
    edges: Sequence[tuple[int, int]] = field(default=())


def draw_network(picture: NetworkPicture, path: Path) -> None:
    """Writes the picture; raises BadInput."""
    with drawing(SCREEN.without_grid()):
        write(_matrix(picture) if picture.places is None else _graph(picture, picture.places), path)


def _graph(picture: NetworkPicture, places: Numbers) -> Figure:
    """Edges by the mean latency of both directions, nodes by their uplink, shapes by region."""
    figure = Figure(figsize=(SIDE + 1.9, SIDE + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    reach = 1 + MARGIN
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", title=picture.title)
    axes.axis("off")
    latency = np.array([(picture.latency[i, j] + picture.latency[j, i]) / 2 for i, j in picture.edges])
    scale = scale_of(latency)
    lines = [(places[i], places[j]) for i, j in picture.edges]
    axes.add_collection(LineCollection(lines, linewidths=2.2, colors=LATENCIES(scale(latency)), zorder=1))
    if len(latency):
        _color_bar(figure, axes, scale, LATENCIES, "latency of an edge, mean of both directions", short_time)
    rates = scale_of(picture.uplink)
    has_rates = bool(np.isfinite(picture.uplink).all())
    if has_rates:
        _color_bar(figure, axes, rates, RATES, "uplink of a node", readable_rate)
    names = list(dict.fromkeys(picture.regions))
    shapes = {name: SHAPES[place % len(SHAPES)] for place, name in enumerate(names)}
    diameter = diameter_of(places, SIDE)
    for rank, place in enumerate(places):
        region = picture.regions[rank] if picture.regions else ""
        # Without a limit there is no rate to show, so the color is free for regions.
        plain = PALETTE[names.index(region) % len(PALETTE)] if region else PALETTE[0]
        face: Any = RATES(rates(picture.uplink[rank])) if has_rates else plain
        draw_node(axes, place, rank, shape=shapes.get(region, "o"), face=face, diameter=diameter)
    entries = [
        Line2D(
            [], [], linestyle="", marker=shapes[name], markersize=8, label=name, markeredgecolor=INK,
            markerfacecolor="white" if has_rates else PALETTE[place % len(PALETTE)],
        )
        for place, name in enumerate(names)
    ]  # fmt: skip
    if entries:
        figure.legend(handles=entries, loc="outside lower center", ncols=4)
    return figure


def _matrix(picture: NetworkPicture) -> Figure:
    """All latencies as a matrix, and beside it the rates of each rank as bars."""
    rates = [("uplink", picture.uplink), ("downlink", picture.downlink)]
    limited = [(name, values) for name, values in rates if np.isfinite(values).any()]
    figure = Figure(figsize=(SIDE + 2.3 + BARS * len(limited), SIDE + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    widths = [SIDE, *[BARS] * len(limited)]
    columns = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    axes, n = columns[0], len(picture.latency)
    size = -(-n // MOST_CELLS)
    latency = block_means(picture.latency, size)
    scale = scale_of(latency[np.isfinite(latency)])
    axes.imshow(
        np.ma.masked_invalid(latency), cmap=LATENCIES, norm=scale, interpolation="nearest", aspect="auto",
        extent=(-0.5, n - 0.5, n - 0.5, -0.5),
    )  # fmt: skip
    axes.set(title=picture.title, xlabel="to rank", ylabel="from rank")
    blocks = [(name, len([*ranks])) for name, ranks in groupby(picture.regions)]
    if blocks and len(blocks) <= len(set(picture.regions)):
        sizes = np.array([size for _, size in blocks])
        ends, labels = np.cumsum(sizes), [name for name, _ in blocks]
        middles = ends - sizes / 2 - 0.5
        axes.set_xticks(middles, labels, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(middles, labels)
        axes.set(xlabel="to a node in", ylabel="from a node in")
        for end in ends[:-1]:
            axes.axhline(end - 0.5, color="white", linewidth=1.0)
            axes.axvline(end - 0.5, color="white", linewidth=1.0)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(MOST_TICKS, integer=True))
    of = "latency" if size == 1 else f"latency, mean of {size} x {size} pairs"
    _color_bar(figure, axes, scale, LATENCIES, of, short_time, location="bottom")
    for bars, (name, values) in zip(columns[1:], limited, strict=True):
        known = np.where(np.isfinite(values), values, 0.0)
        if n <= MOST_BARS:
            bars.barh(range(n), known, height=0.8 if n <= 128 else 1.0, color=PALETTE[0], linewidth=0)
        else:
            edges = np.arange(n + 1) - 0.5
            bars.stairs(known, edges, orientation="horizontal", fill=True, color=PALETTE[0], linewidth=0)
        bars.set(ylim=(n - 0.5, -0.5), xlabel=name)
        bars.grid(axis="x")
        if isinstance(scale_of(values), LogNorm):
            bars.set_xscale("log")
            bars.xaxis.set_minor_locator(NullLocator())
        else:
            bars.set_xlim(left=0)
            bars.xaxis.set_major_locator(MaxNLocator(3))
        bars.xaxis.set_major_formatter(FuncFormatter(lambda value, _: readable_rate(value) if value else "0"))
        bars.tick_params(axis="x", labelrotation=40)
        bars.yaxis.set_major_locator(MaxNLocator(MOST_TICKS, integer=True))
    return figure


def block_means(matrix: Numbers, size: int) -> Numbers:
    """Returns the means of blocks of so many rows and columns, without the diagonal; nan of nothing.

    With size 1 it is the matrix with nan on its diagonal.
    """
    n, begins = len(matrix), np.arange(0, len(matrix), size)
    counts = np.diff(np.append(begins, n)).astype(np.float64)
    sums = np.add.reduceat(np.add.reduceat(matrix, begins, axis=0), begins, axis=1)
    on_diagonal = np.arange(len(begins)), np.arange(len(begins))
    sums[on_diagonal] -= np.add.reduceat(np.diagonal(matrix), begins)
    pairs = np.outer(counts, counts)
    pairs[on_diagonal] -= counts
    return np.divide(sums, pairs, out=np.full_like(sums, np.nan), where=pairs > 0)


def scale_of(numbers: Numbers) -> Normalize:
    """Returns the scale of colors for these numbers: logarithmic where they are far apart and above 0."""
    known = numbers[np.isfinite(numbers)]
    least, most = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    # A fifth may be small, as within regions, and leaves the colors to the others.
    if least > 0 and most / float(np.quantile(known, 0.2)) >= WIDE_RANGE:
        return LogNorm(least, most)
    # A scale needs a width, also where all numbers are the same.
    return Normalize(0.0 if least < most else least - max(abs(least), 1.0), most)


def _color_bar(
    figure: Figure, axes: Axes, scale: Normalize, colors: Any, label: str, text: Any, location: str = "right"
) -> None:
    bar = figure.colorbar(ScalarMappable(scale, colors), ax=axes, location=location, shrink=0.75, pad=0.02)
    bar.set_label(label)
    bar.outline.set_edgecolor(PALE)
    axis = bar.ax.xaxis if location == "bottom" else bar.ax.yaxis
    if isinstance(scale, LogNorm):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value) if isfinite(value) else ""))
