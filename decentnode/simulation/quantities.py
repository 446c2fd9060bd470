"""Rates and times as people write them: `10 Mbit/s`, `20 ms`, numbers for each rank, distributions, files."""

import csv
import re
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from decentnode.core.registry import guess
from decentnode.core.rng import generator
from decentnode.core.text import quoted
from decentnode.errors import BadInput
from decentnode.options import NonNegativeFloat, PositiveFloat

RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
"""Bits per second."""
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*")
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Distribution:
    """A number for each rank, or for each pair of ranks, drawn by the seed."""

    distribution: Literal["lognormal", "uniform", "exponential"]
    """lognormal: median * exp(sigma N(0, 1)). uniform: from low to high. exponential: of that mean."""
    median: PositiveFloat | str | None = None
    sigma: Annotated[float, Ge(0), Le(5)] = 0.5
    low: NonNegativeFloat | str | None = None
    high: PositiveFloat | str | None = None
    mean: PositiveFloat | str | None = None

    def __post_init__(self) -> None:
        read = {"lognormal": ("median",), "uniform": ("low", "high"), "exponential": ("mean",)}
        needed = read[self.distribution]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name in needed and value is None:
                raise ValueError(f"{field.name} is missing; {self.distribution} needs {' and '.join(needed)}")
            if field.name not in needed and value is not None and field.name != "sigma":
                raise ValueError(
                    f"{field.name} is no option of {self.distribution} (known: {', '.join(needed)})"
                )

    def draw(self, units: dict[str, float], shape: tuple[int, ...], *key: object) -> Numbers:
        """Returns drawn numbers in the basic unit; `key`: seed and purpose."""
        random = generator(*key)  # type: ignore[arg-type]
        if self.distribution == "lognormal":
            return in_unit(self.median, units) * random.lognormal(0.0, self.sigma, shape)
        if self.distribution == "uniform":
            low, high = in_unit(self.low, units), in_unit(self.high, units)
            if low > high:
                raise ValueError(f"low is {self.low}, and high is only {self.high}")
            return random.uniform(low, high, shape)
        return in_unit(self.mean, units) * random.exponential(1.0, shape)


@dataclass(frozen=True)
class Regions:
    """Nodes in data centers: half of measured round-trip times, and a time within each of them.

    The ranks are dealt to the regions in blocks of equal size.
    """

    table: Literal["azure"]
    """azure: medians between eight regions of Azure in July 2026 (tables/azure.csv)."""
    regions: tuple[str, ...] | None = None
    """Some of its regions; null: all."""
    within: NonNegativeFloat | str = "0.5 ms"
    """The time between two nodes of one region."""

    def __post_init__(self) -> None:
        known = self.times
        for region in self.regions or ():
            if region not in known:
                raise ValueError(
                    f"no region {quoted(region)}{guess(region, known)} (known: {', '.join(known)})"
                )

    @cached_property
    def times(self) -> dict[str, dict[str, float]]:
        """Round-trip times in milliseconds, by source and target."""
        text = (Path(__file__).parent / "tables" / f"{self.table}.csv").read_text("utf-8")
        rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
        return {row.pop("source"): {name: float(ms) for name, ms in row.items() if ms} for row in rows}

    def of_ranks(self, nodes: int) -> list[str]:
        """Returns the region of each rank."""
        names = self.regions or tuple(self.times)
        return [names[rank * len(names) // nodes] for rank in range(nodes)]

    def latencies(self, nodes: int) -> Numbers:
        """Returns seconds from rank to rank, shape (nodes, nodes)."""
        names, times = self.regions or tuple(self.times), self.times
        of_rank = self.of_ranks(nodes)
        within = in_unit(self.within, TIMES)
        between = {(i, j): within if i == j else times[i][j] / 2000 for i in names for j in names}
        return np.array([[between[i, j] for j in of_rank] for i in of_rank])


PerRank = NonNegativeFloat | str | tuple[NonNegativeFloat | str, ...] | Distribution
"""A number in the basic unit, a text with a unit, one for each rank, a distribution, or a file of numbers."""
PerPair = PerRank | Regions
"""The same for pairs of ranks."""


def in_unit(value: float | str | None, units: dict[str, float]) -> float:
    """Returns a quantity in the basic unit; raises ValueError that says what would be right."""
    if isinstance(value, int | float):
        return float(value)
    example = "10 Mbit/s (megabits)" if units is RATES else "20 ms"
    match = _QUANTITY.fullmatch(value or "")
    if match is None or not match[2] or match[2] not in units:
        problem = (
            "has no unit"
            if match and not match[2]
            else "has an unknown unit"
            if match
            else "is no number, nor a file that is there"
        )
        raise ValueError(
            f"{quoted(value or '')} {problem}; write it like {example}; units: {', '.join(units)}"
        )
    return float(match[1]) * units[match[2]]


def numbers_of(
    quantity: PerPair, units: dict[str, float], nodes: int, key: str, seed: int, pairs: bool = False
) -> Numbers:
    """Returns the numbers of all ranks, shape (nodes,), or with `pairs` of all pairs, shape (nodes, nodes).

    `key` names the option in errors and the purpose of the draws. A text that names a file is one: a number
    for each rank, or a matrix, apart by commas or blanks, in the basic unit or with units. Raises BadInput.
    """
    shape = (nodes, nodes) if pairs else (nodes,)
    try:
        if isinstance(quantity, Regions):
            return quantity.latencies(nodes)
        if isinstance(quantity, Distribution):
            return quantity.draw(units, shape, seed, key)
        if isinstance(quantity, str) and Path(quantity).is_file():
            return _read(Path(quantity), units, nodes, pairs)
        if isinstance(quantity, tuple):
            if len(quantity) != nodes:
                raise ValueError(
                    f"has {len(quantity)} numbers; it must have one for each of the {nodes} ranks"
                )
            row = np.array([in_unit(value, units) for value in quantity])
            return np.broadcast_to(row[:, None], shape) if pairs else row
        return np.full(shape, in_unit(quantity, units))
    except ValueError as error:
        raise BadInput.at(key, str(error)) from None


def _read(path: Path, units: dict[str, float], nodes: int, pairs: bool) -> Numbers:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as text: {error}") from error
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in (line.split(",") if "," in line else line.split())]
        if not words or line.lstrip().startswith("#"):
            continue
        try:
            rows.append([_plain(word, units) for word in words])
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if pairs:
        if len(rows) != nodes or any(len(row) != nodes for row in rows):
            found = f"{len(rows)} lines of {sorted({len(row) for row in rows})} numbers"
            raise ValueError(
                f"{path}: has {found}; it must be a matrix of {nodes} lines with {nodes} numbers"
            )
        return np.array(rows)
    flat = [value for row in rows for value in row]
    if len(flat) != nodes:
        raise ValueError(f"{path}: has {len(flat)} numbers; it must have one for each of the {nodes} ranks")
    return np.array(flat)


def _plain(word: str, units: dict[str, float]) -> float:
    """Returns a number of a file, with or without a unit; raises ValueError if there is none >= 0."""
    if not word or word.lower() in ("nan", "-"):
        raise ValueError("a hole: every pair needs a number")
    try:
        value = float(word)
    except ValueError:
        value = in_unit(word, units)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{word} is no number >= 0")
    return value
