"""How figures look: their size, their font and the format of their files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib import style as style_sheets
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

from decentnode.core.registry import guess
from decentnode.core.text import first_line, quoted
from decentnode.errors import BadInput

INK, PALE, LINE = "#222222", "#777777", "#e4e4e4"
"""The colors of texts, of what is less important, and of the grid."""
DPI = 130
LETTERS = 130
"""Letters of a legend in an inch, times the size of its font in points."""
HANDLE_LETTERS = 9
"""Letters that the piece of line before a name in a legend takes."""
LINE_HEIGHT = 1.5 / 72
"""Inches of a line of the legend for each point of its font."""
FORMATS = ("png", "pdf", "svg", "pgf")
SERIF = ("Times New Roman", "Times", "Nimbus Roman", "TeX Gyre Termes", "Liberation Serif", "STIXGeneral")
"""Fonts that look like Times; matplotlib brings the last one."""
SANS = ("Helvetica", "Arial", "Nimbus Sans", "Liberation Sans", "DejaVu Sans")
FAMILIES = {"times": SERIF, "serif": SERIF, "helvetica": SANS, "sans": SANS}
Parameters = dict[Any, Any]
"""Parameters of matplotlib by name."""
ALL_FIGURES: Parameters = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": LINE, "legend.frameon": False, "pdf.fonttype": 42, "svg.fonttype": "none",
    "svg.hashsalt": "decentnode", "pgf.rcfonts": False, "axes.titlelocation": "left",
}  # fmt: skip
"""Parameters of matplotlib that all figures have; texts of PDF and SVG files stay texts."""


@dataclass(frozen=True)
class FigureStyle:
    """How figures look."""

    width: float
    """Inches."""
    height: float
    """Inches without a legend below."""
    parameters: Parameters
    """Those beside the common ones."""
    formats: Sequence[str] = ("png",)
    has_titles: bool = True
    """Whether a figure has a title; papers have captions."""
    most_marked: int = 30
    """The most markers of a curve."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What stands in a figure for the name of a run, a variant or a metric."""

    def without_grid(self) -> "FigureStyle":
        """This style for maps and graphs."""
        return replace(self, parameters=self.parameters | {"axes.grid": False})

    def name_of(self, name: str) -> str:
        """What stands for a name in figures."""
        return self.names.get(name, name)

    def marks(self, points: int, place: int = 0) -> tuple[int, int]:
        """The first point with a marker, and their distance.

        Markers of different curves begin at different points, so that they hide each other less.
        """
        if points <= self.most_marked:
            return 0, 1
        step = ceil(points / max(1, self.most_marked // 2))
        return place * step // 4 % step, step

    def legend_columns(self, names: Sequence[str], width: float | None = None) -> int:
        """The names that fit beside each other in the width of the figure."""
        longest = max(map(len, names), default=0)
        letters = LETTERS / matplotlib.rcParams["legend.fontsize"] * (width or self.width)
        return max(1, min(len(names), int(letters) // (longest + HANDLE_LETTERS)))

    def legend_height(self, names: Sequence[str], width: float | None = None) -> float:
        """Inches that a legend of these names takes below a figure."""
        if not names:
            return 0.0
        lines = -(-len(names) // self.legend_columns(names, width))
        return float(LINE_HEIGHT * matplotlib.rcParams["legend.fontsize"] * lines)


SCREEN = FigureStyle(
    width=7.0,
    height=4.5,
    parameters={
        "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.edgecolor": PALE,
        "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
        "grid.linewidth": 0.8, "lines.linewidth": 2.0, "lines.markersize": 4.0, "legend.fontsize": 9,
        "figure.facecolor": "white", "axes.labelpad": 6.0, "figure.constrained_layout.h_pad": 0.09,
        "figure.constrained_layout.w_pad": 0.12,
    },
)  # fmt: skip
PAPER = FigureStyle(
    width=3.35,
    height=2.1,
    formats=("pdf", "svg"),
    has_titles=False,
    most_marked=8,
    parameters={
        "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
        "ytick.labelsize": 7, "grid.linewidth": 0.5, "lines.linewidth": 1.3, "lines.markersize": 3.5,
        "axes.linewidth": 0.6, "figure.constrained_layout.h_pad": 0.03,
        "figure.constrained_layout.w_pad": 0.03,
    },
)  # fmt: skip
PAGE = replace(
    SCREEN, width=4.6, height=3.0, formats=("svg",), has_titles=False,
    parameters=SCREEN.parameters | {"figure.facecolor": "none", "axes.facecolor": "none"},
)  # fmt: skip
"""Figures of a page in its own colors: narrow enough for a phone, where their letters can still be read."""
STYLES = {"screen": SCREEN, "paper": PAPER, "two_columns": replace(PAPER, width=6.9, height=2.3)}
WIDTHS = {1: "paper", 2: "two_columns"}
"""The style by the columns of a paper that a figure is wide."""


def chosen_style(
    name: str = "screen", font: str | None = None, size: str | None = None, labels: Sequence[str] = (),
    formats: str | None = None,
) -> FigureStyle:  # fmt: skip
    """The style of these options of the command line; raises BadInput.

    Args:
        name: one of STYLES; or a style of matplotlib, by its name or its file, on top of `screen`.
        font: a family, with its size in points behind a colon if that is to change: `Times:8`.
        size: width and height in inches: `3.35x2.1`.
        labels: `name=text`, for runs, variants and metrics.
        formats: endings of files, with commas between them.
    """
    style = STYLES.get(name) or _of_matplotlib(name)
    if font is not None:
        style = replace(style, parameters=style.parameters | _font(font))
    if size is not None:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", size)
        if not match or not (1 <= float(match[1]) <= 40 and 1 <= float(match[2]) <= 40):
            raise BadInput(f"--size: {quoted(size)}: must be width x height in inches, such as 3.35x2.1")
        style = replace(style, width=float(match[1]), height=float(match[2]))
    pairs = [label.partition("=") for label in labels]
    if wrong := [label for label, (key, _, text) in zip(labels, pairs, strict=True) if not (key and text)]:
        raise BadInput(f"--label: {quoted(wrong[0])}: must be name=text, such as gossip='Gossip SGD'")
    style = replace(style, names={key: text for key, _, text in pairs})
    if formats is not None:
        chosen = formats.split(",")
        if unknown := [ending for ending in chosen if ending not in FORMATS]:
            known = guess(unknown[0], FORMATS) or f"; known: {', '.join(FORMATS)}"
            raise BadInput(f"--format: unknown format {quoted(unknown[0])}{known}")
        style = replace(style, formats=chosen)
    return style


def _of_matplotlib(name: str) -> FigureStyle:
    try:
        with matplotlib.rc_context(), style_sheets.context(name):
            changed = {
                key: value
                for key, value in matplotlib.rcParams.items()
                if value != matplotlib.rcParamsDefault[key] and key != "backend"
            }
    except OSError as error:
        names = [*STYLES, *style_sheets.available]
        hint = guess(name, names) or f"; known: {', '.join(STYLES)}, and those of matplotlib"
        raise BadInput(f"--style: unknown style {quoted(name)}{hint}") from error
    return replace(SCREEN, parameters=SCREEN.parameters | changed)


def _font(text: str) -> Parameters:
    """The parameters of matplotlib for a font, with sizes of all texts beside that of the labels."""
    family, _, points = text.partition(":")
    chosen: Parameters = {}
    if points:
        if not re.fullmatch(r"\d+(\.\d+)?", points) or not 4 <= float(points) <= 40:
            raise BadInput(f"--font: {quoted(text)}: the size must be points from 4 to 40, such as Times:8")
        large, small = float(points), float(points) - 1
        chosen = {"font.size": large, "axes.titlesize": large, "axes.labelsize": large} | {
            key: small for key in ("legend.fontsize", "xtick.labelsize", "ytick.labelsize")
        }
    if family:
        installed = {entry.name for entry in font_manager.fontManager.ttflist}
        names = FAMILIES.get(family.lower(), (family,))
        found = [name for name in names if name in installed]
        if not found:
            hint = (
                guess(family, [*installed, *FAMILIES])
                or f"; known: {', '.join(FAMILIES)}, and installed ones"
            )
            raise BadInput(f"--font: {quoted(family)} is not installed{hint}")
        chosen |= {"font.family": found, "mathtext.fontset": "stix" if names is SERIF else "dejavusans"}
    return chosen


@contextmanager
def drawing(style: FigureStyle = SCREEN) -> Iterator[None]:
    """Draws with matplotlib's defaults and this style; a user's matplotlibrc has no part in it."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(ALL_FIGURES | style.parameters)
        yield


def write(figure: Figure, path: Path) -> Path:
    """Writes a figure in the format of the file's ending; the same data give the same file.

    Raises BadInput, also where LaTeX is missing for PGF.
    """
    FigureCanvasAgg(figure)
    dates: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, metadata=dates.get(path.suffix))
    except OSError as error:
        raise BadInput(f"{path}: the figure cannot be written: {error.strerror}") from error
    except RuntimeError as error:
        if path.suffix != ".pgf":
            raise
        raise BadInput(
            f"{path}: PGF needs LaTeX to measure texts: {first_line(error)}; install xelatex, or use "
            "--format pdf"
        ) from error
    return path


def write_all(figure: Figure, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Writes a figure in each of these formats; raises BadInput."""
    # A name may have points.
    return [write(figure, stem.with_name(f"{stem.name}.{ending}")) for ending in formats]


def linear(axis: Axis, most: int = 6, integer: bool = False) -> None:
    """Sets at most so many ticks, at whole numbers where these are counts."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], integer=integer))


def logarithmic(axes: Axes) -> None:
    """Makes the y axis logarithmic; a value of 0 has no place there: its line leaves the figure below."""
    axes.set_yscale("log", nonpositive="clip")
    plain_numbers(axes.yaxis, *axes.get_ylim())
    axes.grid(visible=True, which="minor", axis="y")


def plain_numbers(axis: Axis, least: float, most: float) -> None:
    """Labels a logarithmic axis with plain numbers; a shorter range has more of them in a decade."""
    axis.set_major_formatter("{x:g}")
    if most < 4 * least:
        axis.set_major_locator(MaxNLocator(4))
        axis.set_minor_locator(NullLocator())
        return
    axis.set_minor_locator(LogLocator(subs=(2, 3, 5) if most < 10 * least else (2, 5)))
    axis.set_minor_formatter("{x:g}" if most < 100 * least else NullFormatter())
