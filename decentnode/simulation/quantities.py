"""Rates and times as people write them: `10 Mbit/s`, `20 ms`, numbers for each rank, distributions, files."""

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from decentnode.core.registry import DISTRIBUTIONS, guess
from decentnode.core.rng import generator
from decentnode.core.text import quoted
from decentnode.errors import BadInput
from decentnode.options import NonNegative, NonNegativeFloat, PositiveFloat, Probability, TextOrFile

RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
"""Bits per second."""
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*")
_BLANKS = re.compile(rf"\s+(?!(?:{'|'.join([*RATES, *TIMES])})(?:\s|$))")
"""Blanks between two numbers, but not those between a number and its unit."""
Numbers = NDArray[np.float64]


class Distribution(ABC):
    """Draws a number for each rank, or for each pair of ranks, by the seed. Its fields are its options."""

    @abstractmethod
    def draw(self, units: dict[str, float], shape: tuple[int, ...], random: np.random.Generator) -> Numbers:
        """Returns drawn numbers in the basic unit; raises ValueError where an option is not in a unit."""


@DISTRIBUTIONS.register("lognormal")
@dataclass(frozen=True)
class Lognormal(Distribution):
    """Draws median * exp(sigma N(0, 1)) (Johnson, Kotz and Balakrishnan, vol. 1, 1994, Ch. 14)."""

    median: PositiveFloat | str
    sigma: Annotated[float, Ge(0), Le(5)] = 0.5

    def draw(self, units: dict[str, float], shape: tuple[int, ...], random: np.random.Generator) -> Numbers:
        return in_unit(self.median, units) * random.lognormal(0.0, self.sigma, shape)


@DISTRIBUTIONS.register("uniform")
@dataclass(frozen=True)
class UniformDistribution(Distribution):
    """Draws evenly from low to high (Johnson, Kotz and Balakrishnan, vol. 2, 1995, Ch. 26)."""

    low: NonNegativeFloat | str
    high: PositiveFloat | str

    def draw(self, units: dict[str, float], shape: tuple[int, ...], random: np.random.Generator) -> Numbers:
        low, high = in_unit(self.low, units), in_unit(self.high, units)
        if low > high:
            raise ValueError(f"low is {self.low}, and high is only {self.high}")
        return random.uniform(low, high, shape)


@DISTRIBUTIONS.register("exponential")
@dataclass(frozen=True)
class ExponentialDistribution(Distribution):
    """Draws exponential numbers of that mean (Johnson, Kotz and Balakrishnan, vol. 1, 1994, Ch. 19)."""

    mean: PositiveFloat | str

    def draw(self, units: dict[str, float], shape: tuple[int, ...], random: np.random.Generator) -> Numbers:
        return in_unit(self.mean, units) * random.exponential(1.0, shape)


@DISTRIBUTIONS.register("quantiles")
@dataclass(frozen=True)
class Quantiles(Distribution):
    """Draws from measured quantiles, by inversion (Devroye, 1986, Sec. II.2).

    A share `levels[k]` of the numbers is at most `values[k]`. Between two of them the logarithm is uniform;
    the first and last value also stand for what lies beyond them.
    """

    levels: tuple[Probability, ...]
    """Increasing shares, such as 0.1, 0.5, 0.9."""
    values: tuple[PositiveFloat | str, ...]
    """One for each level."""

    def __post_init__(self) -> None:
        levels, values = self.levels, self.values
        if len(levels) != len(values):
            what = f"{len(levels)} levels and {len(values)} values; each level needs a value"
            raise BadInput.at("values", what)
        if len(levels) < 2:
            raise BadInput.at("levels", "must be two or more, for instance [0.1, 0.5, 0.9]")
        if any(left >= right for left, right in pairwise(levels)):
            raise BadInput.at("levels", f"must increase: {', '.join(f'{level:g}' for level in levels)}")

    def draw(self, units: dict[str, float], shape: tuple[int, ...], random: np.random.Generator) -> Numbers:
        values = [in_unit(value, units) for value in self.values]
        return _at_quantiles(random.random(shape), self.levels, values)


def _at_quantiles(shares: Numbers, levels: Sequence[float], values: Sequence[float]) -> Numbers:
    """Returns the numbers below which these shares of a distribution lie, from its quantiles."""
    if any(not value > 0 for value in values):
        raise ValueError("the values of quantiles must be > 0")
    if any(left > right for left, right in pairwise(values)):
        raise ValueError("values must not decrease where levels increase")
    return np.exp(np.interp(shares, levels, np.log(values)))


@dataclass(frozen=True)
class Regions:
    """Nodes in measured regions, which have the ranks in blocks.

    azure: data centers, with half of the round-trip time between two of them. mlab: links of homes in a
    country, drawn from its quantiles; from i to j it takes half of both round-trip times to a server.
    """

    table: Literal["azure", "mlab"]
    """azure: median latencies between eight regions of Azure in July 2026. mlab: quantiles of rates and of
    round-trip times to a server in eight countries in October 2025 (tables/*.csv).
    """
    regions: tuple[str, ...] | None = None
    """Some of its regions; null: all."""
    shares: tuple[PositiveFloat, ...] | None = None
    """How many of the ranks each region has, relative to the others; null: all as many."""
    within: NonNegativeFloat | str = "0.5 ms"
    """azure: the time between two nodes of one region."""

    def __post_init__(self) -> None:
        known = self.times
        for region in self.regions or ():
            if region not in known:
                raise ValueError(
                    f"no region {quoted(region)}{guess(region, known)} (known: {', '.join(known)})"
                )
        if self.shares is not None and len(self.shares) != len(self.names):
            raise ValueError(f"{len(self.shares)} shares for {len(self.names)} regions; each needs one")

    @property
    def names(self) -> tuple[str, ...]:
        """The regions that have ranks."""
        return self.regions or tuple(self.times)

    @cached_property
    def times(self) -> dict[str, dict[str, float]]:
        """By region the figures of the table: azure, round-trip milliseconds by target; mlab, quantiles."""
        text = (Path(__file__).parent / "tables" / f"{self.table}.csv").read_text("utf-8")
        rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
        return {row.pop("source"): {name: float(cell) for name, cell in row.items() if cell} for row in rows}

    def of_ranks(self, nodes: int) -> list[str]:
        """Returns the region of each rank."""
        shares = np.cumsum(self.shares or [1.0] * len(self.names))
        middles = (np.arange(nodes) + 0.5) / nodes * shares[-1]
        return [self.names[number] for number in np.searchsorted(shares, middles)]

    def draw(self, figure: str, nodes: int, *key: object) -> Numbers:
        """Returns a figure of the access link of each rank, as the table has it; `key`: seed and purpose."""
        if self.table != "mlab":
            raise ValueError(f"{self.table} has latencies alone; mlab has quantiles of rates")
        random = generator(*key)  # type: ignore[arg-type]
        drawn, of_rank = random.random(nodes), np.array(self.of_ranks(nodes))
        for region in self.names:
            row = {name: value for name, value in self.times[region].items() if name.startswith(f"{figure} ")}
            levels = [float(name.rpartition("p")[2]) / 100 for name in row]
            drawn[of_rank == region] = _at_quantiles(drawn[of_rank == region], levels, [*row.values()])
        return drawn

    def latencies(self, nodes: int, *key: object) -> Numbers:
        """Returns seconds from rank to rank, shape (nodes, nodes); `key`: seed and purpose of draws."""
        if self.table == "mlab":
            to_server = self.draw("rtt_ms", nodes, *key) / 2000
            return to_server[:, None] + to_server[None, :]
        within, times = in_unit(self.within, TIMES), self.times
        between = {(i, j): within if i == j else times[i][j] / 2000 for i in self.names for j in self.names}
        of_rank = self.of_ranks(nodes)
        return np.array([[between[i, j] for j in of_rank] for i in of_rank])


PerRank = NonNegativeFloat | TextOrFile | tuple[NonNegativeFloat | str, ...] | Distribution | Regions
"""A number in the basic unit, a text with a unit, one for each rank, a distribution, a file, or regions."""


@dataclass(frozen=True)
class Edges:
    """Numbers of single edges, and of all other pairs of ranks."""

    edges: TextOrFile | tuple[tuple[NonNegative, NonNegative, NonNegativeFloat | str], ...]
    """[rank i, rank j, number] each, or a file of lines `i j number`.

    It holds from i to j, and from j to i unless that way has a number of its own.
    """
    others: PerRank | None = None
    """All other pairs; null: no latency, or no limit of the rate."""

    def numbers(self, units: dict[str, float], nodes: int, key: str, seed: int) -> Numbers:
        """Returns the numbers of all pairs, shape (nodes, nodes); raises ValueError and BadInput."""
        if self.others is None:
            numbers = np.full((nodes, nodes), np.inf if units is RATES else 0.0)
        else:
            numbers = numbers_of(self.others, units, nodes, key, seed, pairs=True).copy()
        values: dict[tuple[int, int], float] = {}
        for place, words in self._lines():
            try:
                if len(words) != 3:
                    raise ValueError("must be two ranks and a number")
                source, target = (int(word) for word in words[:2])
                values[source, target] = _plain(words[2], units)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            if source == target or not (0 <= source < nodes and 0 <= target < nodes):
                raise ValueError(
                    f"{place}: {source} {target} must be two of the {nodes} ranks, 0 to {nodes - 1}"
                )
        for (source, target), value in values.items():
            numbers[source, target] = value
            if (target, source) not in values:
                numbers[target, source] = value
        return numbers

    def _lines(self) -> Iterator[tuple[str, list[str]]]:
        """Yields where an edge is written, and its words."""
        if not isinstance(self.edges, str):
            yield from ((f"edges[{n}]", [str(word) for word in edge]) for n, edge in enumerate(self.edges))
            return
        path = Path(self.edges)
        yield from ((f"{path}:{number}", words) for number, words in _rows(path))


PerPair = PerRank | Edges
"""The same for pairs of ranks, or for single edges."""


def in_unit(value: float | str | None, units: dict[str, float], may_be_file: bool = False) -> float:
    """Returns a quantity in the basic unit; raises ValueError that says what would be right.

    `may_be_file`: whether the option may name a file, which was not there.
    """
    if isinstance(value, int | float):
        return float(value)
    example = "10 Mbit/s (megabits)" if units is RATES else "20 ms"
    match = _QUANTITY.fullmatch((value or "").strip().removeprefix("-"))
    if match and match[2] in units and (value or "").strip().startswith("-"):
        raise ValueError(f"{quoted(value or '')} is negative; write it like {example}")
    if match is None or not match[2] or match[2] not in units:
        problem = (
            "has no unit"
            if match and not match[2]
            else "has an unknown unit"
            if match
            else f"is no number{', nor a file that is there' if may_be_file else ''}"
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
        if isinstance(quantity, Edges):
            return quantity.numbers(units, nodes, key, seed)
        if isinstance(quantity, Regions):
            if pairs and units is RATES:
                raise ValueError(f"{quantity.table} has no rates between two nodes")
            if pairs:
                return quantity.latencies(nodes, seed, key)
            return quantity.draw(f"{key}_mbps", nodes, seed, key) * 1e6
        if isinstance(quantity, Distribution):
            return quantity.draw(units, shape, generator(seed, key))
        if isinstance(quantity, str) and Path(quantity).is_file():
            return _read(Path(quantity), units, nodes, pairs)
        if isinstance(quantity, tuple):
            if len(quantity) != nodes:
                raise ValueError(
                    f"has {len(quantity)} numbers; it must have one for each of the {nodes} ranks"
                )
            row = np.array([in_unit(value, units) for value in quantity])
            return np.broadcast_to(row[:, None], shape) if pairs else row
        # One number in memory, however many pairs there are.
        return np.broadcast_to(in_unit(quantity, units, may_be_file=True), shape)
    except ValueError as error:
        raise BadInput.at(key, str(error)) from None


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields number and words of the lines of a file, apart by commas or blanks; raises ValueError."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as text: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        apart = line.split(",") if "," in line else _BLANKS.split(line.strip())
        words = [word.strip() for word in apart]
        if any(words) and not line.lstrip().startswith("#"):
            yield number, words


def _read(path: Path, units: dict[str, float], nodes: int, pairs: bool) -> Numbers:
    rows: list[list[float]] = []
    for number, words in _rows(path):
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
