"""Draws a graph, or a strip of rounds of one that changes, as a picture.

Of many nodes it shows the shape of the graph, the edges between blocks of ranks, and the degrees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize, to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from decentnode.core.text import counted
from decentnode.results.figures.style import INK, PALE, SCREEN, drawing, write
from decentnode.results.styles import PALETTE

SHAPES = ("o", "s", "D", "h", "^", "p", "v", "8")
"""The shapes of groups of nodes; 64 groups differ with the colors, eight without."""
SIZE_OF = {"D": 0.72, "^": 1.16, "v": 1.16, "s": 0.86, "p": 1.12, "h": 1.08}
"""The side of a shape for the same room inside, as a share of the circle's diameter."""
LOWER = {"^": -0.16, "v": 0.16}
"""The position of the middle of a shape for a text, as a share of the node."""
EDGE = "#949494"
PANEL, SMALL_PANEL = 6.6, 3.9
"""Inches of the only panel, and of one in a strip."""
COLUMNS = 3
MARGIN = 0.16
"""The margin around the outermost nodes, as a share of the radius of the drawing."""
LARGEST, SMALLEST = 26.0, 9.0
"""The largest and the smallest diameter of a node in points."""
THINNEST, THICKEST = 0.7, 3.2
PLAIN = 1.2
"""Points of an edge; the last where all have the same weight."""
ALIKE = 1e-9
MOST_LINES = 40_000
"""Edges that are drawn of a graph with many nodes; of more as many, evenly chosen."""
THIN, INK_SHARE = 0.5, 0.3
"""Points of an edge among many, and the share of the drawing that all of them would cover if none crossed."""
MOST_BLOCKS, PER_CELL = 128, 1
"""Blocks of ranks in a map of edges, and the edges that a cell has on average, where there are fewer."""
WIDE = 20
"""The number of edges of a cell from which on the scale of colors is logarithmic."""
MOST_DEGREES = 40
"""Different degrees with a bar for each of them."""


@dataclass(frozen=True)
class DrawnRound:
    """One panel: a round of the graph."""

    title: str
    places: NDArray[np.float64]
    """The coordinates x and y of each rank, from -1 to 1."""
    edges: Sequence[tuple[int, int, float]]
    """Entries i, j and the weight of i's model in j's mix; one for each pair where undirected."""
    resting: frozenset[int] = frozenset()
    """Ranks that make no local steps, drawn hollow."""


@dataclass(frozen=True)
class GraphPicture:
    """The content of a picture of a graph."""

    title: str
    rounds: Sequence[DrawnRound]
    directed: bool
    groups: Sequence[int]
    """The group of each rank, as an index of `names`."""
    names: Sequence[str] = field(default=())
    """The names of the groups, for the legend; empty: all nodes look the same."""
    are_many: bool = False
    """Whether there are too many nodes to tell them apart."""


def draw_graph(picture: GraphPicture, path: Path) -> None:
    """Writes the picture; raises BadInput."""
    with drawing(SCREEN.without_grid()):
        write(figure_of(picture), path)


def figure_of(picture: GraphPicture) -> Figure:
    """The picture before it is written."""
    if picture.are_many:
        return _figure_of_many(picture)
    panels = len(picture.rounds)
    columns = 2 if panels == 4 else min(panels, COLUMNS)
    rows = ceil(panels / columns)
    side = PANEL if panels == 1 else SMALL_PANEL
    entries = _legend(picture)
    # Of the legend, in inches: as many entries in a line as the width has room for.
    longest = max((len(str(entry.get_label())) for entry in entries), default=0)
    across = max(1, min(len(entries), int(columns * side / (0.45 + 0.085 * longest))))
    below = 0.12 + 0.24 * ceil(len(entries) / across) if entries else 0.0
    height = rows * (side + (0.25 if panels > 1 else 0.0)) + 0.45 + below
    figure = Figure(figsize=(columns * side, height))
    FigureCanvasAgg(figure)
    figure.text(0.15 / figure.get_figwidth(), 1 - 0.14 / height, picture.title, va="top", weight="bold")
    for place, drawn in enumerate(picture.rounds):
        row, column = divmod(place, columns)
        bottom = below + (rows - 1 - row) * (side + 0.25)
        box = (column / columns, bottom / height, 1 / columns, side / height)
        axes = figure.add_axes(box)
        _draw_round(axes, picture, drawn, side=side)
    if entries:
        figure.legend(handles=entries, loc="lower center", ncols=across, handletextpad=0.3, columnspacing=1.2)
    return figure


def _figure_of_many(picture: GraphPicture) -> Figure:
    """Returns drawing, map of edges and degrees; of several rounds the maps alone, unless the nodes move."""
    rounds, entries = picture.rounds, _legend(picture)
    are_drawn = len(rounds) == 1 or any((drawn.places != rounds[0].places).any() for drawn in rounds)
    below = 0.3 + 0.24 * ceil(len(entries) / 4) if entries and are_drawn else 0.0
    if len(rounds) == 1:
        figure = Figure(figsize=(1.65 * PANEL, PANEL + below), layout="constrained")
        cells = figure.subplot_mosaic([["drawing", "map"], ["drawing", "degrees"]], width_ratios=[1.6, 1])
        _draw_many(cells["drawing"], picture, rounds[0], PANEL)
        _draw_map(figure, cells["map"], picture, rounds[0])
        _draw_degrees(cells["degrees"], picture, rounds[0])
    else:
        columns = 2 if len(rounds) == 4 else min(len(rounds), COLUMNS)
        rows = ceil(len(rounds) / columns)
        size = (columns * SMALL_PANEL, rows * (SMALL_PANEL + 0.25) + below)
        figure = Figure(figsize=size, layout="constrained")
        for place, drawn in enumerate(rounds):
            axes = figure.add_subplot(rows, columns, place + 1)
            if are_drawn:
                _draw_many(axes, picture, drawn, SMALL_PANEL)
            else:
                _draw_map(figure, axes, picture, drawn)
    FigureCanvasAgg(figure)
    figure.suptitle(picture.title, x=0.01, ha="left", weight="bold", fontsize=10)
    if below:
        figure.legend(handles=entries, loc="outside lower center", ncols=4)
    return figure


def _ends(drawn_round: DrawnRound) -> NDArray[np.int64]:
    """The ranks i and j of each edge, shape (edges, 2)."""
    return np.array([edge[:2] for edge in drawn_round.edges], np.int64).reshape(-1, 2)


def _draw_many(axes: Axes, picture: GraphPicture, drawn_round: DrawnRound, side: float) -> None:
    """Dots and thin lines, the more transparent the more of them there are."""
    reach, places, ends = 1 + MARGIN / 4, drawn_round.places, _ends(drawn_round)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.axis("off")
    shown = ends[:: max(1, ceil(len(ends) / MOST_LINES))]
    if drawn_round.title:
        axes.set_title(drawn_round.title, fontsize=10, weight="normal")
    if len(shown) < len(ends):
        axes.text(
            0, 0, f"{len(shown):,} of {counted(len(ends), 'edge')}", transform=axes.transAxes, color=PALE
        )
    lines = places[shown]
    # In squares of the drawing's side.
    length = float(np.linalg.norm(lines[:, 0] - lines[:, 1], axis=1).sum()) / (2 * reach)
    alpha = float(np.clip(INK_SHARE / max(length * THIN / (72 * side), 1e-9), 0.02, 0.6))
    # One image in a file of vectors, too, which would be large and slow with so many lines.
    color = to_rgba(INK, alpha)
    axes.add_collection(LineCollection([*lines], linewidths=THIN, colors=[color], zorder=1, rasterized=True))
    faces: list[Any] = [group_style(group)[0] for group in picture.groups]
    rims = [*faces]
    for rank in drawn_round.resting:
        faces[rank], rims[rank] = "white", PALE
    diameter = float(np.clip(0.3 * 72 * side / sqrt(len(places)), 0.9, 5.0))
    axes.scatter(
        places[:, 0],
        places[:, 1],
        s=diameter**2,
        c=faces,
        edgecolors=rims,
        linewidths=0.3,
        zorder=2,
        rasterized=True,
    )


def _draw_map(figure: Figure, axes: Axes, picture: GraphPicture, drawn_round: DrawnRound) -> None:
    """The number of edges from the ranks of one block to those of another."""
    ends, n = _ends(drawn_round), len(picture.groups)
    if not picture.directed:
        ends = np.concatenate([ends, ends[:, ::-1]])
    blocks = int(np.clip(sqrt(len(ends) / PER_CELL), 16, MOST_BLOCKS))
    cells = ends * blocks // n
    counts = np.bincount(cells[:, 0] * blocks + cells[:, 1], minlength=blocks * blocks).reshape(
        blocks, blocks
    )
    # Near the diagonal there may be a hundred times as many edges as elsewhere.
    most = int(counts.max(initial=1))
    scale = LogNorm(1, most) if most > WIDE else Normalize(0, most)
    colors = matplotlib.colormaps["viridis_r"].with_extremes(bad="white")
    image = axes.imshow(
        np.where(counts, counts, np.nan), cmap=colors, norm=scale, interpolation="nearest",
        extent=(-0.5, n - 0.5, n - 0.5, -0.5),
    )  # fmt: skip
    bar = figure.colorbar(
        image, ax=axes, label=f"edges between {n / blocks:.0f} ranks each", pad=0.02, shrink=0.75
    )
    bar.outline.set_edgecolor(PALE)
    if most <= WIDE:
        bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set(
        xlabel="to rank" if picture.directed else "rank", ylabel="from rank" if picture.directed else "rank"
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(drawn_round.title or "Edges (white: none)", fontsize=10)


def _draw_degrees(axes: Axes, picture: GraphPicture, drawn_round: DrawnRound) -> None:
    """How many nodes have each degree; in a directed graph each number of targets, and of sources."""
    ends, n = _ends(drawn_round), len(picture.groups)
    targets, sources = (np.bincount(ends[:, side], minlength=n) for side in (0, 1))
    kinds = {"targets": targets, "sources": sources} if picture.directed else {"": targets + sources}
    most = max(int(degrees.max()) for degrees in kinds.values())
    least = min(int(degrees.min()) for degrees in kinds.values())
    width = ceil((most - least + 1) / MOST_DEGREES)
    edges = np.arange(least, most + width + 1, width) - 0.5
    for place, (name, degrees) in enumerate(kinds.items()):
        counts, _ = np.histogram(degrees, edges)
        axes.stairs(
            counts, edges, fill=place == 0, color=PALETTE[place], alpha=0.8, linewidth=1.5, label=name or None
        )
    if len(kinds) > 1:
        axes.legend()
    if n > 100 * max(1, np.median([count for count in counts if count])):
        axes.set_yscale("log")
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    # Where all degrees are the same its bar is no wall.
    axes.set(xlabel="degree", ylabel="nodes", xlim=(edges[0] - 2 * width, edges[-1] + 2 * width))
    axes.set_title("Degrees", fontsize=10)


def _legend(picture: GraphPicture) -> list[Line2D]:
    """The groups that have nodes; what a hollow node means."""
    used = sorted(set(picture.groups)) if picture.names else []
    entries = [_entry(picture.names[group], group) for group in used]
    if any(drawn.resting for drawn in picture.rounds):
        entries.append(_entry("rests in this round", 0, hollow=True))
    return entries


def _entry(label: str, group: int, hollow: bool = False) -> Line2D:
    color, shape = group_style(group)
    return Line2D(
        [], [], linestyle="", marker="o" if hollow else shape, markersize=8, label=label,
        markerfacecolor="white" if hollow else color, markeredgecolor=PALE if hollow else INK,
        markeredgewidth=0.8,
    )  # fmt: skip


def group_style(group: int) -> tuple[str, str]:
    """Returns color and shape of a group; they repeat together after 64."""
    return PALETTE[group % len(PALETTE)], SHAPES[(group + group // len(PALETTE)) % len(SHAPES)]


def _draw_round(axes: Axes, picture: GraphPicture, drawn_round: DrawnRound, side: float) -> None:
    reach = 1 + MARGIN
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.axis("off")
    if drawn_round.title:
        axes.text(0.04, 1.0, drawn_round.title, transform=axes.transAxes, va="bottom", color=INK)
    diameter = diameter_of(drawn_round.places, side)
    widths = _widths(picture, drawn_round, side)
    if picture.directed:
        for (i, j, _), width in zip(drawn_round.edges, widths, strict=True):
            axes.add_patch(_arrow(drawn_round.places[i], drawn_round.places[j], width, diameter=diameter))
    else:
        lines = [(drawn_round.places[i], drawn_round.places[j]) for i, j, _ in drawn_round.edges]
        axes.add_collection(LineCollection(lines, linewidths=widths, colors=EDGE, zorder=1))
    for rank, place in enumerate(drawn_round.places):
        color, shape = group_style(picture.groups[rank])
        face, edge = ("white", PALE) if rank in drawn_round.resting else (color, INK)
        draw_node(axes, place, rank, shape=shape, face=face, edge=edge, diameter=diameter)


def draw_node(
    axes: Axes, place: NDArray[np.float64], rank: int, *, shape: str, face: Any, diameter: float,
    edge: str = INK,
) -> None:  # fmt: skip
    """Draws a node with its rank; `diameter`: in points."""
    axes.plot(
        *place, marker=shape, markersize=diameter * SIZE_OF.get(shape, 1.0), markerfacecolor=face,
        markeredgecolor=edge, markeredgewidth=0.8, linestyle="", zorder=2,
    )  # fmt: skip
    axes.annotate(
        str(rank), (place[0], place[1]), xytext=(0, LOWER.get(shape, 0.0) * diameter),
        textcoords="offset points", ha="center", va="center_baseline", color=_ink_on(face), zorder=3,
        fontsize=diameter * (0.5 if rank < 100 else 0.4),
    )  # fmt: skip


def _ink_on(face: Any) -> str:
    """Returns white or dark, whichever is legible (by relative luminance)."""
    red, green, blue = to_rgb(face)
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45 else INK


def diameter_of(places: NDArray[np.float64], side: float) -> float:
    """The diameter of a drawn node in points: two thirds of the distance of the nearest two."""
    n = len(places)
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    distance[np.diag_indices(n)] = 2.0
    nearest = float(np.quantile(distance.min(1), 0.1))
    points = 72 * side / (2 * (1 + MARGIN))
    return float(np.clip(0.66 * nearest * points, SMALLEST, LARGEST * sqrt(side / PANEL)))


def _widths(picture: GraphPicture, drawn_round: DrawnRound, side: float) -> list[float]:
    """Widths in points, by the share of the picture's largest weight; all alike where all weights are."""
    weights = [weight for drawn in picture.rounds for *_, weight in drawn.edges]
    scale, most = (1.0 if side == PANEL else 0.8), max(weights, default=1.0)
    if most - min(weights, default=1.0) < ALIKE:
        return [scale * PLAIN] * len(drawn_round.edges)
    return [scale * (THINNEST + (THICKEST - THINNEST) * weight / most) for *_, weight in drawn_round.edges]


def _arrow(
    begin: NDArray[np.float64], end: NDArray[np.float64], width: float, diameter: float
) -> FancyArrowPatch:
    """Draws an arrow that is bent a little, so that both directions of a pair are seen."""
    return FancyArrowPatch(
        tuple(begin), tuple(end), arrowstyle="-|>", mutation_scale=5 + 2.2 * width, linewidth=width,
        color=EDGE, shrinkA=diameter / 2, shrinkB=diameter / 2 + 1, connectionstyle="arc3,rad=0.12", zorder=1,
    )  # fmt: skip
