"""Types of plug-in options, with their ranges, for use in dataclass fields."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Positive = Annotated[int, Gt(0)]
NonNegative = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Gt(0), Le(1)]
Probability = Annotated[float, Ge(0), Le(1)]
Bits = Annotated[int, Ge(1), Le(8)]
NAMES_FILE = "a text that is there as a file is its path"
TextOrFile = Annotated[str, NAMES_FILE]
"""A text such as `20 ms`, or the path of a file, which is looked for as other paths are."""
Port = Annotated[int, Gt(0), Lt(65536)]
