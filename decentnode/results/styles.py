"""How variants and runs look, the same in every figure: color, marker and dashes."""

from dataclasses import dataclass

# The palette of Okabe and Ito (2008), which people with any kind of color vision can distinguish, without its
# yellow, which is too pale for a line, and with the wine of Tol (2021).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 2)), (0, (1, 1)), "-.", (0, (9, 3)))
"""Dashes as matplotlib has them, by which curves differ in print without colors."""


@dataclass(frozen=True)
class CurveStyle:
    """The style of one curve."""

    color: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]


def style_at(place: int) -> CurveStyle:
    """The style of the variant at this place.

    Eight follow with different colors and markers; dashes and markers together repeat after 40.
    """
    return CurveStyle(
        PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)], DASHES[place % len(DASHES)]
    )
