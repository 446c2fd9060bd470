"""Draws what nodes learn of each other, and studies of privacy."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from decentnode.errors import BadInput
from decentnode.results.figures.plots import DPI, STYLE

Matrix = NDArray[np.float64]
SIDE = 4.2
"""Inches of a panel."""
DECADES = 4
"""Of the scale of colors; less is as pale as its end."""
UNSEEN, KNOWN = "#ffffff", "#dddddd"
"""Where nothing is learned, and where nothing is hidden."""


def draw_heat_map(title: str, tables: Mapping[str, Matrix], path: Path) -> None:
    """Writes a panel for each table of epsilon[u, v], all with the same scale; raises BadInput."""
    with matplotlib.rc_context(STYLE | {"axes.grid": False, "svg.fonttype": "path", "svg.hashsalt": ""}):
        write(heat_map(title, tables), path)


def heat_map(title: str, tables: Mapping[str, Matrix]) -> Figure:
    """The picture before it is written: what is learned of each row, by each column."""
    count = len(tables)
    figure = Figure(figsize=(count * SIDE + 1.0, SIDE + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    values = np.concatenate([table.ravel() for table in tables.values()])
    finite = values[np.isfinite(values) & (values > 0)]
    most = float(finite.max()) if finite.size else 1.0
    least = max(float(finite.min()) if finite.size else 0.1, most / 10**DECADES)
    colors = matplotlib.colormaps["viridis_r"].with_extremes(bad=KNOWN, under=UNSEEN)
    norm = LogNorm(least if least < most else most / 10, most)
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        # Below the scale is pale; nothing at all is white.
        shown = np.where(table > 0, np.maximum(table, least), least / 10)
        image = axes.imshow(
            np.where(np.isfinite(table), shown, np.nan), cmap=colors, norm=norm, aspect="auto"
        )
        axes.set(title=name, xlabel="who learns", ylabel="about rank")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        if table.shape[1] == 1:
            axes.set(xticks=[0], xticklabels=["colluders"], xlabel="")
    figure.colorbar(image, ax=panels, label="epsilon (white: nothing)", shrink=0.9)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Saves a picture; raises BadInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise BadInput(f"{path}: the picture cannot be written: {error.strerror}") from error
