"""The figures of a report's page: SVG in the page's own colors, with a description and the values."""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from math import isfinite

from matplotlib.figure import Figure

from decentnode.config.loader import load_plugin
from decentnode.core.registry import GRAPHS, reading_only
from decentnode.core.text import counted, first_line
from decentnode.errors import BadInput
from decentnode.formats.partition_table import read_partition
from decentnode.graph.base import Graph
from decentnode.graph.placement import places
from decentnode.results import Run, Study
from decentnode.results.figures import plots, plots_graph, plots_study
from decentnode.results.figures.plots_graph import DrawnRound, GraphPicture
from decentnode.results.figures.style import INK, LINE, PAGE, PALE, drawing
from decentnode.results.study_curves import StudyCurves, all_curves, figures_of

COLORS = {INK: "var(--text)", PALE: "var(--quiet)", LINE: "var(--line)"}
"""The colors of the page for those of figures."""
MOST_VALUES = 10
"""Rows of the values below a figure."""
MOST_PICTURES, MOST_LIVE = 48, 12
"""Figures of curves on a page, and on one that is drawn again and again."""
MOST_DRAWN = 200
"""Nodes of the largest graph that is drawn."""


@dataclass(frozen=True)
class Picture:
    """One figure of the page."""

    name: str
    title: str
    svg: str
    description: str
    """What it shows, for those who do not see it."""
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """The values that it was drawn from, some of them."""
    metric: str = ""
    """What the y axis of curves shows; empty for other figures."""


def curve_pictures(study: Study, is_live: bool) -> Iterator[Picture]:
    """The figures of curves, as many as a page has room for."""
    for curves in islice(figures_of(study.variants), MOST_LIVE if is_live else MOST_PICTURES):
        yield Picture(
            curves.name, curves.title, svg_of(plots_study.study_figure(curves, PAGE), curves.name),
            _description(curves), *_values(curves), metric=curves.metric,
        )  # fmt: skip


def _description(curves: StudyCurves) -> str:
    ends = [f"{name} {band.mean[-1]:.4g}" for name, (band, _) in curves.bands.items() if band.mean]
    others = f"; {counted(len(curves.others), 'run')} in progress" if curves.others else ""
    last = f": at the end {', '.join(ends)}" if ends else ""
    return f"{curves.title}, mean over nodes and seeds{last}{others}."


def _values(curves: StudyCurves) -> tuple[list[str], list[list[str]]]:
    """A row for each evaluation, or for some of them: the mean of each variant, ± half of its interval."""
    bands = {name: band for name, (band, _) in curves.bands.items() if band.mean}
    rounds = sorted({round for band in bands.values() for round in band.rounds})
    step = max(1, -(-len(rounds) // MOST_VALUES))
    shown = [round for round in rounds[::-1][::step]][::-1]
    rows = []
    for round in shown:
        cells = []
        for band in bands.values():
            if round not in band.rounds:
                cells.append("-")
                continue
            at = band.rounds.index(round)
            half = f" ± {band.high[at] - band.mean[at]:.3g}" if isfinite(band.high[at]) else ""
            cells.append(f"{band.mean[at]:.4g}{half}" if isfinite(band.mean[at]) else "-")
        rows.append([f"{round:.0f}", *cells])
    return ["round", *bands], rows


def spread_picture(study: Study) -> Picture:
    """Every node's headline metric at the end."""
    title = f"{study.headline.words.capitalize()} of the nodes at the end"
    rows = []
    for variant in study.compared:
        values = [value for run in variant.finished for value in run.rows[-1].values(study.headline.name)]
        known = sorted(value for value in values if value is not None)
        ends = [known[0], known[len(known) // 2], known[-1]] if known else [None] * 3
        rows.append([variant.name, *map(study.headline.text, ends)])
    figure = plots_study.spread_figure(study.headline, all_curves(study.variants), PAGE)
    listed = ", ".join(f"{name} {low} to {high}" for name, low, _, high in rows)
    return Picture(
        "spread", title, svg_of(figure, "spread"), f"{title}, of all seeds: {listed}.",
        ["variant", "lowest", "median", "highest"], rows,
    )  # fmt: skip


def cost_picture(study: Study, target: float | None) -> Picture:
    """The headline metric against the two costs of a simulation."""
    title = f"{study.headline.words.capitalize()} against simulated time and bytes"
    svg = svg_of(study.plot_costs(target, PAGE), "costs")
    return Picture(
        "costs", title, svg, f"{title}, in the rows above and below; their values are those of the curves."
    )


def partition_picture(run: Run) -> Picture | None:
    """How many training samples each node has, of each label if they have labels; None if not known."""
    table = read_partition(run.directory)
    if table is None:
        return None
    with drawing(PAGE):
        figure = Figure(figsize=(PAGE.width, PAGE.height), layout="constrained")
        plots.draw_partition_in(figure.add_subplot(), table)
        figure.axes[0].set_title("")
    least, most = min(table.samples), max(table.samples)
    description = f"Training samples of {counted(len(table.samples), 'node')}, from {least} to {most} each"
    of_labels = f", by {counted(len(table.labels[0]), 'label')}" if table.labels else ""
    return Picture(
        "partition",
        "Training samples of each node",
        svg_of(figure, "partition"),
        f"{description}{of_labels}.",
    )


def graph_picture(run: Run) -> Picture | str:
    """The graph of a run in its first round, or why it is not drawn."""
    try:
        with reading_only():
            graph: Graph = load_plugin(run.directory / "config.yaml", "graph", GRAPHS).make()
    except BadInput as error:
        return first_line(error)
    nodes = graph.num_nodes
    if nodes > MOST_DRAWN:
        return f"it has more than {MOST_DRAWN} nodes"
    edges = [(i, j, 1.0) for i in range(nodes) for j in graph.partners(i) if i < j]
    drawn = DrawnRound("", places(graph, [0])[0], edges)
    with drawing(PAGE.without_grid()):
        figure = plots_graph.figure_of(GraphPicture("", [drawn], directed=False, groups=[0] * nodes))
    description = f"{counted(nodes, 'node')} and {counted(len(edges), 'edge')}."
    return Picture("graph", "Graph", svg_of(figure, "graph"), description)


def svg_of(figure: Figure, name: str) -> str:
    """The figure as an SVG element in the colors of the page; its ids begin with `name`."""
    text = io.StringIO()
    with drawing(PAGE):
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Figures of one page must not share ids.
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{escape(name)}-", svg)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1
    )
    svg = svg.replace("xlink:href", "href")
    for color, own in COLORS.items():
        svg = svg.replace(color, own)
    return svg
