"""Draws a graph, or a strip of rounds of one that changes, as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from numpy.typing import NDArray

from decentnode.errors import BadInput
from decentnode.results.figures.plots import DPI, INK, PALE, drawing_style
from decentnode.results.figures.styles import PALETTE

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


def draw_graph(picture: GraphPicture, path: Path) -> None:
    """Writes the picture; raises BadInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with drawing_style({"axes.grid": False, "svg.fonttype": "path", "svg.hashsalt": ""}):
            figure_of(picture).savefig(
                path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None
            )
    except OSError as error:
        raise BadInput(f"{path}: the picture cannot be written: {error.strerror}") from error


def figure_of(picture: GraphPicture) -> Figure:
    """The picture before it is written."""
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
