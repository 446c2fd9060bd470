"""Draws runs: `python -m decentnode.results.figures.plots RUN_DIR...`; a picture per quantity, an overview.

It imports matplotlib, and runs in a process of its own, after the nodes have ended.
"""

import argparse
import io
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy import linspace

from decentnode.core.text import counted, quoted
from decentnode.errors import BadInput, ExitCode
from decentnode.formats.metrics import DISTANCE, LOCAL, LOSS, TRAIN_LOSS, Metric
from decentnode.formats.partition_table import MOST_ROWS, ROWS_OF_MORE, PartitionTable, label_rows
from decentnode.formats.reader import StrPath
from decentnode.results.coordinates import PERCENTS as COORDINATE_PERCENTS
from decentnode.results.curves import (
    AXES,
    MANY_NODES,
    ROUNDS,
    Axis,
    RunCurves,
    Spread,
    axis_of,
    chosen_metric,
    different_datasets,
    last_values,
    metric_label,
    percentiles_of,
    read_runs,
    spread_of,
)
from decentnode.results.figures.style import (
    INK,
    PALE,
    SCREEN,
    FigureStyle,
    drawing,
    linear,
    logarithmic,
    write,
    write_all,
)
from decentnode.results.styles import MARKERS, PALETTE

MANY_COLORS = matplotlib.colormaps["turbo"]
"""The colors where there are more runs than colors in the palette."""
STD_ALPHA, RANGE_ALPHA = 0.26, 0.13
AVERAGE_WIDTH = 1.3
BAR_WIDTH = 12
"""The width in points of a bar, which replaces a band where there is only one point."""
MOST_LABELS = 20
MOST_BARS = 100
"""The most counts with gaps between their bars; more are one area."""
SCREEN_DPI = 72
"""Points of a figure that notebooks show as one pixel of the page."""
MIDDLE = "#808080"
"""The gray with enough contrast to white and to black."""
THUMBNAIL = replace(
    SCREEN, width=4.4, height=2.2,
    parameters=SCREEN.parameters
    | {
        "font.size": 8, "lines.linewidth": 1.6, "lines.markersize": 3.0, "grid.color": f"{MIDDLE}40",
        "axes.edgecolor": MIDDLE, "axes.labelcolor": MIDDLE, "xtick.color": MIDDLE, "ytick.color": MIDDLE,
    },
)  # fmt: skip
"""The style of figures that stand on the page's own background, light or dark."""
STD, RANGE, AVERAGE = "± standard deviation", "lowest to highest", "average model"
QUARTILES, NEARLY_ALL, MEAN_OF_MANY = "25 to 75 % of the nodes", "5 to 95 %", "mean"
"""Names of the parts of a curve in the legend; the second line has those of many nodes."""
ALONE = ("_percentiles", "coordinates", "coordinates_in_order")
"""Ends of the names of panels that have pictures of their own, and no place in the overview."""
PERCENTS = (0, 10, 25, 50, 75, 90, 100)
LOSS_COSTS = ("loss_bytes", "loss_seconds")
Panel = Callable[[Axes], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the runs on the command line, prints the pictures' paths, and returns an exit code."""
    parser = argparse.ArgumentParser("decentnode plot", description="Draws one run, or compares several.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    try:
        print(*plot(parser.parse_args(argv).runs), sep="\n")
    except BadInput as error:
        print(error, file=sys.stderr)
        return ExitCode.BAD_INPUT
    return ExitCode.OK


def plot(
    runs: Sequence[StrPath], out: StrPath | None = None, metric: str | None = None,
    style: FigureStyle = SCREEN,
) -> list[Path]:  # fmt: skip
    """Draws one run or compares several: one figure per panel in `out/figures`, and `out/overview.png`.

    `out`: by default the directory of a single run, or `comparison`. `metric`: the one to judge by, instead
    of the headline metric. Raises BadInput.
    """
    folder = Path(out or (runs[0] if len(runs) == 1 else "comparison"))
    return draw(chosen_metric(read_runs(runs), metric), folder, style)


def draw(curves: Sequence[RunCurves], out: Path, style: FigureStyle = SCREEN) -> list[Path]:
    """Draws runs that were read; the same pictures, and the same errors. A paper gets no overview."""
    curves = [replace(run, name=style.name_of(run.name)) for run in curves]
    panels, pictures = panels_of(curves, style), list[Path]()
    with drawing(style):
        if style.has_titles:
            pictures += write_all(overview(curves, panels), out / "overview", style.formats)
        for name, panel in panels.items():
            pictures += write_all(single(curves, panel, style), out / "figures" / name, style.formats)
    return pictures


def panels_of(runs: Sequence[RunCurves], style: FigureStyle = SCREEN) -> dict[str, Panel]:
    """The panels that have data in these runs, by file name."""
    panels: dict[str, Panel] = {}
    tested = [run for run in runs if run.rows]
    for metric in _judging(tested[0]) if tested else ():
        for axis in (axis_of(tested, name) for name in AXES):
            panels[f"{metric.name}_{axis.key}"] = _curves(runs, metric, axis, style)
    local = tested[0].headline.of_local if tested else None
    if local is not None and all(local in run.metrics for run in tested):
        panels[f"{local.name}_{ROUNDS.key}"] = _curves(runs, local, ROUNDS, style)
    for metric in _further(tested):
        panels[f"{metric.name}_{ROUNDS.key}"] = _curves(runs, metric, ROUNDS, style)
    if any(run.distances for run in runs):
        panels[DISTANCE] = _distances(runs, ROUNDS, style)
    if len(runs) == 1 and (table := runs[0].partition):
        panels["labels" if table.labels else "samples"] = lambda axes: draw_partition_in(axes, table)
    elif tested:
        panels[f"{tested[0].headline.name}_nodes"] = lambda axes: _draw_nodes(axes, runs, style)
    if len(runs) == 1 and len(tested) == 1 and len(runs[0].rows[-1].ranks) > 1:
        panels |= {f"{m.name}_percentiles": _percentiles(runs[0], m, style) for m in _judging(tested[0])}
    if any(run.sent_shares for run in runs):
        panels["coordinates"] = _coordinates(runs)
        panels["coordinates_in_order"] = _coordinates_in_order(runs)
    return panels


def _judging(run: RunCurves) -> list[Metric]:
    """The metrics that have panels: the headline metric and the loss; without tests that of training."""
    return [run.headline] if run.headline == TRAIN_LOSS else [run.headline, LOSS]


def _further(runs: Sequence[RunCurves]) -> list[Metric]:
    """Returns what runs measure on test samples beside headline and loss, but not of single classes."""
    known = [set(run.metrics) for run in runs]
    return [
        metric
        for metric in (runs[0].metrics[1:] if runs else ())
        if metric != LOSS
        and all(metric in metrics for metrics in known)
        and not (metric.is_of_class or metric.is_of_local or metric.is_of_validation)
    ]


def overview(runs: Sequence[RunCurves], panels: dict[str, Panel]) -> Figure:
    """Draws six panels on one page: the headline metric above; loss, agreement and training samples below."""
    figure = Figure(figsize=(15, 8.4), layout="constrained")
    # The overview has room for six panels.
    shown = [*panels] if runs[0].headline == LOSS else [n for n in panels if n not in LOSS_COSTS]
    shown = [name for name in shown if not name.startswith(LOCAL) or runs[0].headline.is_of_local]
    further = {f"{metric.name}_{ROUNDS.key}" for metric in _further([run for run in runs if run.rows])}
    shown = [name for name in shown if not name.endswith(ALONE) and name not in further]
    for place, name in enumerate(shown):
        panels[name](figure.add_subplot(2, 3, place + 1))
    figure.suptitle(_headline(runs), fontsize=14, fontweight="bold", x=0.01, ha="left")
    _add_legend(figure, runs)
    return figure


class NotebookFigure(Figure):
    """A figure that a notebook shows without pyplot, as sharp as its screen."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(SCREEN_DPI * inches) for inches in self.get_size_inches())
        return as_png(self), {"width": width, "height": height}


def as_png(figure: Figure, transparent: bool = False) -> bytes:
    """The figure as PNG with two pixels for each one of a usual screen."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=2 * SCREEN_DPI, transparent=transparent)
    return file.getvalue()


def run_figure(run: RunCurves, metric: Metric | None, axis: Axis) -> NotebookFigure:
    """Returns one curve of a run that was evaluated; without a metric the consensus distance."""
    with drawing():
        panel = _distances([run], axis) if metric is None else _curves([run], metric, axis)
        return single([run], panel)


def thumbnail(run: RunCurves) -> bytes:
    """Returns the headline metric by round as a small PNG without a background."""
    with drawing(THUMBNAIL):
        figure = Figure(figsize=(THUMBNAIL.width, THUMBNAIL.height), layout="constrained")
        axes, (run_style,) = figure.add_subplot(), styled([run])
        x, spread = ROUNDS.values(run.rows), spread_of(run.rows, run.headline)
        _draw_spread(axes, x, spread, run_style=run_style, are_many=are_many([run]), style=THUMBNAIL)
        axes.set(xlabel=ROUNDS.label, ylabel=metric_label(run.headline))
        linear(axes.xaxis, integer=True)
        return as_png(figure, transparent=True)


def single(runs: Sequence[RunCurves], panel: Panel, style: FigureStyle = SCREEN) -> NotebookFigure:
    """Returns one panel by itself, with its legend."""
    figure = NotebookFigure(figsize=(style.width, style.height), layout="constrained")
    axes = figure.add_subplot()
    panel(axes)
    if not style.has_titles:
        axes.set_title("")
    _add_legend(figure, runs)
    return figure


def _headline(runs: Sequence[RunCurves]) -> str:
    if len(runs) > 1:
        untested = ", ".join(run.name for run in runs if not run.rows)
        apart = ", on different data sets" if different_datasets(runs) else ""
        return f"{len(runs)} runs compared{apart}{f'; not evaluated: {untested}' if untested else ''}"
    if (ended := runs[0].outcome) is not None:
        return f"{runs[0].name}: {ended.nodes} nodes, {ended.rounds} rounds, {runs[0].headline.title} -"
    headline, row = runs[0].headline, runs[0].rows[-1]
    values = spread_of([row], headline)
    mean, least, most = (
        headline.number(value[0] / headline.scale) for value in (values.mean, values.least, values.most)
    )
    planned = runs[0].planned_rounds
    of = f" of {planned:,}, in progress" if planned else ""
    nodes = row.mean_over or counted(len(row.ranks), "node")
    reached = f"{nodes}, round {row.round + 1}{of}, {headline.title} {mean}{headline.unit}"
    return f"{runs[0].name}: {reached} ({least} to {most})"


def _add_legend(figure: Figure, runs: Sequence[RunCurves]) -> None:
    """Adds one legend for all panels, below them: the runs and the parts of a curve that some panel has."""
    shown = {str(artist.get_label()) for axes in figure.axes for artist in axes.get_children()}
    keys = [key for key in _keys(runs) if key.get_label() in shown]
    if keys:
        most = int(figure.get_size_inches()[0] / 1.7)
        figure.legend(handles=keys, loc="outside lower center", ncols=min(len(keys), most))


def _keys(runs: Sequence[RunCurves]) -> list[Line2D | Patch]:
    styles, many = styled(runs), are_many(runs)
    band, dashes = (styles[0].color, INK) if len(runs) == 1 else (PALE, PALE)
    dark, light = (QUARTILES, NEARLY_ALL) if many else (STD, RANGE)
    return [
        *(
            Line2D([], [], color=s.color, marker=s.marker, label=s.name or line_label(s.run, many))
            for s in styles
        ),
        Line2D([], [], color=dashes, linestyle=":", linewidth=AVERAGE_WIDTH, label=MEAN_OF_MANY),
        # On the curves the dark band lies over the light one.
        Patch(color=band, alpha=STD_ALPHA + RANGE_ALPHA, linewidth=0, label=dark),
        Patch(color=band, alpha=RANGE_ALPHA, linewidth=0, label=light),
        Line2D([], [], color=dashes, linestyle="--", linewidth=AVERAGE_WIDTH, label=AVERAGE),
    ]


@dataclass(frozen=True)
class RunStyle:
    """How a run is drawn, the same in all panels."""

    run: RunCurves
    color: Any
    marker: str
    name: str
    """The name in the legend; empty for a single run."""
    place: int
    """Its place among the runs."""


def styled(runs: Sequence[RunCurves]) -> list[RunStyle]:
    """Each run with a color of its own."""
    colors = PALETTE if len(runs) <= len(PALETTE) else MANY_COLORS(linspace(0.03, 0.97, len(runs)))
    names = [""] if len(runs) == 1 else [run.name for run in runs]
    markers = itertools.cycle(MARKERS)
    return [RunStyle(*values) for values in zip(runs, colors, markers, names, range(len(runs)), strict=False)]


def _curves(runs: Sequence[RunCurves], metric: Metric, axis: Axis, style: FigureStyle = SCREEN) -> Panel:
    def draw(axes: Axes) -> None:
        for run_style in (run_style for run_style in styled(runs) if run_style.run.rows):
            x, y = axis.values(run_style.run.rows), spread_of(run_style.run.rows, metric)
            _draw_spread(axes, x, y, run_style=run_style, are_many=are_many(runs), style=style)
            if are_many(runs) and len(runs) == 1 and len(x) > 1:
                axes.plot(x, y.mean, color=INK, linestyle=":", linewidth=AVERAGE_WIDTH, label=MEAN_OF_MANY)
            if any(map(isfinite, y.average)):
                dashes = INK if len(runs) == 1 else run_style.color
                axes.plot(
                    x, y.average, color=dashes, linestyle="--", linewidth=AVERAGE_WIDTH, label=AVERAGE,
                    marker="_" if len(x) == 1 else "",
                )  # fmt: skip
        axes.set(xlabel=axis.label, ylabel=_label(metric, style))
        linear(axes.xaxis, integer=axis is ROUNDS)
        linear(axes.yaxis)
        axes.set_title(f"{_capitalized(metric.title)} against {axis.name}")

    return draw


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _label(metric: Metric, style: FigureStyle) -> str:
    return metric_label(metric, style.names)


def are_many(runs: Sequence[RunCurves]) -> bool:
    """Whether one of the runs has so many nodes that pictures show their quantiles."""
    return any(len(run.rows[-1].ranks) >= MANY_NODES for run in runs if run.rows)


def _draw_spread(
    axes: Axes, x: list[float], spread: Spread, run_style: RunStyle, are_many: bool, style: FigureStyle
) -> None:
    """A line for the mean, a dark band for the standard deviation, a light one for all nodes.

    The dark band stays within the light one, because no node is outside of it. Of many nodes the line is
    the median, and the bands are between quantiles.
    """
    low = [max(m - d, least) for m, d, least in zip(spread.mean, spread.std, spread.least, strict=True)]
    high = [min(m + d, most) for m, d, most in zip(spread.mean, spread.std, spread.most, strict=True)]
    line, light, dark = spread.mean, (spread.least, spread.most, RANGE), (low, high, STD)
    if are_many:
        low, quarter, line, three_quarters, high = spread.quantiles
        light, dark = (low, high, NEARLY_ALL), (quarter, three_quarters, QUARTILES)
    if any(most > least for least, most in zip(spread.least, spread.most, strict=True)):
        for (bottom, top, label), alpha in ((light, RANGE_ALPHA), (dark, STD_ALPHA)):
            options = {"color": run_style.color, "alpha": alpha, "label": label}
            if len(x) == 1:
                axes.vlines(x, bottom, top, linewidth=BAR_WIDTH, **options)
            else:
                axes.fill_between(x, bottom, top, linewidth=0, **options)
    _draw_line(axes, x, line, run_style, style, meaning=line_label(run_style.run, are_many))


def line_label(run: RunCurves, are_many: bool = False) -> str:
    """Returns what the line of a curve is, and over which nodes: often some alone are tested."""
    what = "median" if are_many else "mean"
    if not run.rows:
        return what
    before = [len(row.ranks) for row in run.rows[:-1]]
    last = len(run.rows[-1].ranks)
    fewest = min(before, default=last)
    if fewest < last:
        return f"{what} of {fewest} of the {last} nodes; the last point: of all"
    return f"{what} of {run.rows[-1].mean_over or 'the nodes'}"


def _draw_line(
    axes: Axes, x: list[float], y: list[float], run_style: RunStyle, style: FigureStyle, meaning: str = ""
) -> None:
    """`meaning` is the name of the line in the legend for a single run."""
    axes.plot(
        x, y, color=run_style.color, marker=run_style.marker, markevery=style.marks(len(x), run_style.place),
        label=run_style.name or meaning,
    )  # fmt: skip


def _distances(runs: Sequence[RunCurves], axis: Axis, style: FigureStyle = SCREEN) -> Panel:
    """Consensus distance, on a logarithmic scale."""

    def draw(axes: Axes) -> None:
        for run_style in styled(runs):
            rows = [row for row in run_style.run.rows if row.consensus_distance is not None]
            distances = [row.consensus_distance or 0.0 for row in rows]
            if rows:
                _draw_line(axes, axis.values(rows), distances, run_style, style)
        axes.set(xlabel=axis.label, ylabel=style.names.get(DISTANCE, "distance to the mean model, relative"))
        logarithmic(axes)
        linear(axes.xaxis, integer=axis is ROUNDS)
        axes.set_title("Consensus distance" if axis is ROUNDS else f"Consensus distance against {axis.name}")

    return draw


def draw_partition(table: PartitionTable, path: Path) -> None:
    """Draws which samples each rank has: labels, sizes and groups; raises BadInput."""
    counts = {"samples": table.samples} | ({"groups": table.groups} if table.groups else {})
    widths = [3.0] * bool(table.labels) + [1.0] * len(counts)
    with drawing():
        figure = Figure(figsize=(2.4 + 2.2 * sum(widths), 4.6), layout="constrained")
        panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
        if table.labels:
            _draw_labels(panels[0], table)
        for axes, (name, numbers) in zip(panels[-len(counts) :], counts.items(), strict=True):
            _draw_counts(axes, name, numbers)
        write(figure, path)


def draw_partition_in(axes: Axes, table: PartitionTable) -> None:
    """The labels of each node, or its number of samples where they have no labels."""
    if table.labels:
        _draw_labels(axes, table)
    else:
        _draw_counts(axes, "samples", table.samples)


def _draw_counts(axes: Axes, name: str, counts: Sequence[int]) -> None:
    """A number for each rank, rank 0 above as in the picture of labels; more than MOST_ROWS by their size."""
    is_sorted = len(counts) > MOST_ROWS
    counts = sorted(counts, reverse=True) if is_sorted else counts
    if len(counts) <= MOST_BARS:
        axes.barh(range(len(counts)), counts, color=PALETTE[0], linewidth=0)
    else:
        edges = linspace(-0.5, len(counts) - 0.5, len(counts) + 1)
        axes.stairs(counts, edges, orientation="horizontal", fill=True, color=PALETTE[0], linewidth=0)
    order = "nodes, the most above" if is_sorted else "rank"
    axes.set(xlabel=name, ylabel=order, ylim=(len(counts) - 0.5, -0.5), xlim=(0, None))
    axes.grid(visible=False, axis="y")
    linear(axes.yaxis, integer=True)
    linear(axes.xaxis, most=4, integer=True)
    axes.set_title(f"{name.capitalize()} of each node")


def _draw_labels(axes: Axes, table: PartitionTable) -> None:
    """The number of training samples of each label on each node, of many nodes in groups that are alike."""
    labels = table.labels
    nodes, columns, order, of = len(labels), len(labels[0]), "rank", "training samples"
    if nodes > MOST_ROWS:
        order = "nodes, by their most frequent label"
        of = f"training samples, mean of {nodes / ROWS_OF_MORE:.0f} nodes"
    image = axes.imshow(
        label_rows(labels), aspect="auto", cmap="Blues", interpolation="nearest", vmin=0,
        extent=(-0.5, columns - 0.5, nodes - 0.5, -0.5),
    )  # fmt: skip
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.figure.colorbar(image, ax=axes, label=of, pad=0.02).outline.set_visible(False)
    if columns <= MOST_LABELS:
        axes.set_xticks(range(columns), table.class_names or None)
    axes.set(xlabel="label", ylabel=order)
    linear(axes.yaxis, integer=True)
    axes.set_title("Labels of each node")


def _draw_nodes(axes: Axes, runs: Sequence[RunCurves], style: FigureStyle = SCREEN) -> None:
    """Every node's last headline metric, the worst first: a horizontal line is a fair result."""
    for run_style in (run_style for run_style in styled(runs) if run_style.run.rows):
        values = last_values(run_style.run)
        share = [100 * (i + 0.5) / len(values) for i in range(len(values))]
        _draw_line(axes, share, values, run_style, style)
    headline = next(run.headline for run in runs if run.rows)
    axes.set(xlabel="nodes, worst to best (%)", ylabel=_label(headline, style), xlim=(0, 100))
    some = {over for run in runs if run.rows and (over := run.rows[-1].mean_over)}
    of = "every node" if not some else some.pop() if len(some) == 1 else "the tested nodes"
    axes.set_title(f"{headline.words.capitalize()} of {of} at the end")


def _percentiles(run: RunCurves, metric: Metric, style: FigureStyle = SCREEN) -> Panel:
    """Percentiles over the nodes by round; 0 is the worst node, 100 the best one."""

    def draw(axes: Axes) -> None:
        rounds = ROUNDS.values(run.rows)
        colors = matplotlib.colormaps["viridis"](linspace(0.0, 0.9, len(PERCENTS)))
        lines = percentiles_of(run.rows, metric, PERCENTS)
        marker = "o" if len(rounds) == 1 else ""
        for percent, values, color in zip(PERCENTS, lines, colors, strict=True):
            axes.plot(rounds, values, color=color, linewidth=1.5, marker=marker, label=f"{percent} %")
        axes.set(xlabel=ROUNDS.label, ylabel=_label(metric, style))
        linear(axes.xaxis, integer=True)
        axes.legend(title="nodes", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.set_title(f"{metric.words.capitalize()}: percentiles of the nodes")

    return draw


def _coordinates(runs: Sequence[RunCurves]) -> Panel:
    """How often coordinates were sent, the most seldom ones first; the band is over nodes."""

    def draw(axes: Axes) -> None:
        for style in styled(runs):
            if (shares := style.run.sent_shares) is None:
                continue
            of_nodes = shares.percentiles
            axes.plot(
                COORDINATE_PERCENTS,
                of_nodes.mean(0),
                color=style.color,
                label=style.name or "mean of the nodes",
            )
            low, high = of_nodes.min(0), of_nodes.max(0)
            axes.fill_between(
                COORDINATE_PERCENTS, low, high, color=style.color, alpha=RANGE_ALPHA, linewidth=0, label=RANGE
            )
        axes.set(xlabel="coordinates, most seldom to most often (%)", xlim=(0, 100), ylim=(0, None))
        axes.set(ylabel="rounds in which they were sent (%)")
        axes.set_title("How often coordinates were sent")

    return draw


def _coordinates_in_order(runs: Sequence[RunCurves]) -> Panel:
    """How often coordinates were sent, in their order in the model or in the basis."""

    def draw(axes: Axes) -> None:
        for style in styled(runs):
            if (shares := style.run.sent_shares) is None:
                continue
            places = [shares.per_place * (i + 0.5) for i in range(len(shares.places))]
            axes.plot(
                places, shares.places, color=style.color, linestyle="", marker=".", markersize=2.5,
                label=style.name or "mean of the nodes",
            )  # fmt: skip
        axes.set(xlabel="coordinate", ylabel="rounds in which it was sent (%)", ylim=(0, None))
        axes.set_title("How often each coordinate was sent")

    return draw


def named_figure(run: RunCurves, name: str) -> NotebookFigure:
    """Returns a figure by its name among the panels; raises BadInput where the run has none of that name."""
    panels = panels_of([run])
    if name not in panels:
        raise BadInput(f"{run.name}: has no figure {quoted(name)} (it has {', '.join(panels)})")
    with drawing():
        return single([run], panels[name])


if __name__ == "__main__":
    sys.exit(main())
