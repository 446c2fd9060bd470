"""How variants and runs look, the same in every figure: color, marker and dashes."""

from dataclasses import dataclass

# The palette of Okabe and Ito (2008), which people with any kind of color vision can distinguish, without its
# yellow, which is too pale for a line, and with the wine of Tol (2021).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
"""The names that plotly has for `MARKERS`."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Plotly's names of dashes, by which curves differ in print without colors."""
PATTERNS: dict[str, str | tuple[int, tuple[int, ...]]] = {
    "solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1)), "dashdot": "-.", "longdash": (0, (9, 3)),
}  # fmt: skip
"""The dashes of matplotlib by their names in plotly."""


@dataclass(frozen=True)
class CurveStyle:
    """The style of one curve."""

    color: str
    marker: str
    symbol: str
    dash: str


def style_at(place: int) -> CurveStyle:
    """The style of the variant at this place.

    Eight follow with different colors and markers; dashes and markers together repeat after 40.
    """
    return CurveStyle(
        PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)], SYMBOLS[place % len(SYMBOLS)],
        dash=DASHES[place % len(DASHES)],
    )  # fmt: skip
