"""Round-trip times that others have measured: King, WonderProxy, matrices."""

import csv
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, dropwhile
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from decentnode.core.text import counted, first_line, quoted
from decentnode.errors import BadInput

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
"""Seconds."""
COMPLETE = "--complete leaves out nodes until no pair is missing"


@dataclass(frozen=True)
class RoundTrips:
    """Seconds from node to node and back, shape (n, n); NaN where nothing was measured."""

    path: Path
    names: list[str]
    seconds: NDArray[np.float64]

    def filled(self) -> "RoundTrips":
        """Returns these times with those of the way back where one way is missing, and 0 in the diagonal."""
        seconds = np.where(np.isnan(self.seconds), self.seconds.T, self.seconds)
        np.fill_diagonal(seconds, 0.0)
        return RoundTrips(self.path, self.names, seconds)

    def check(self) -> None:
        """Raises BadInput where a pair is missing."""
        missing = np.argwhere(np.isnan(self.seconds))
        if len(missing):
            source, target = (self.names[number] for number in missing[0])
            many = "" if len(missing) == 2 else f", nor of {counted(len(missing) // 2 - 1, 'more pair')}"
            raise BadInput(f"{self.path}: no time between {source} and {target}{many}; {COMPLETE}")

    def complete(self) -> "RoundTrips":
        """Returns these times without the nodes that lack most pairs, one by one, until none is missing."""
        kept = np.ones(len(self.names), bool)
        holes = np.isnan(self.seconds) | np.isnan(self.seconds.T)
        missing = holes.sum(1)
        while missing.max(initial=0):
            worst = int(missing.argmax())
            kept[worst] = False
            missing -= holes[worst]
            missing[worst] = 0
        return self.of(np.flatnonzero(kept))

    def of(self, numbers: NDArray[np.int64]) -> "RoundTrips":
        """Returns the times between these nodes."""
        names = [self.names[number] for number in numbers]
        return RoundTrips(self.path, names, self.seconds[np.ix_(numbers, numbers)])


def read_matrix(path: Path, unit: str, complete: bool) -> RoundTrips:
    """Returns a matrix of numpy (.npy) or of text, line i from node i; raises BadInput.

    `complete`: whether what is no time becomes NaN, and is no error.
    """
    if path.suffix == ".npy":
        try:
            array = np.load(path, allow_pickle=False)
            if array.dtype.kind not in "biuf":
                raise ValueError(f"its type is {array.dtype}")
            times = np.array(array, np.float64)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror or first_line(error)}") from None
        except (AttributeError, EOFError, ValueError) as error:
            raise BadInput(f"{path}: no array of numbers: {first_line(error)}") from None
        if times.ndim != 2 or times.shape[0] != times.shape[1] or not times.size:
            raise BadInput(f"{path}: has shape {array.shape}; it must be (nodes, nodes)")
        np.fill_diagonal(times, 0.0)
        is_hole = ~(np.isfinite(times) & (times >= 0))
        if is_hole.any() and not complete:
            row, column = np.argwhere(is_hole)[0]
            where = f"{path}: row {row}, column {column}"
            raise BadInput(f"{where}: {times[row, column]:g} is no time >= 0; {COMPLETE}")
        names = [str(number) for number in range(len(times))]
        return RoundTrips(path, names, np.where(is_hole, np.nan, times) * UNITS[unit])
    with _opened(path) as file:
        return _matrix_of(path, _rows(path, file), unit, complete)


def _matrix_of(path: Path, rows: Iterable[tuple[int, list[str]]], unit: str, complete: bool) -> RoundTrips:
    times: list[list[float]] = []
    last = 0
    for line, words in rows:
        if times and len(words) != len(times[0]):
            raise BadInput(f"{path}:{line}: has {len(words)} numbers; the first line has {len(times[0])}")
        # Nobody measures the time to itself.
        accepts = [complete or column == len(times) for column in range(len(words))]
        times.append([_time(f"{path}:{line}", *given) for given in zip(words, accepts, strict=True)])
        last = line
    if not times:
        raise BadInput(f"{path}: is empty; it must have a line for each node")
    if len(times) != len(times[0]):
        count = f"has {counted(len(times), 'line')} of {counted(len(times[0]), 'number')}"
        raise BadInput(f"{path}:{last}: {count}; a matrix has as many")
    names = [str(number) for number in range(len(times))]
    return RoundTrips(path, names, np.array(times) * UNITS[unit])


def read_king(path: Path, unit: str, complete: bool) -> RoundTrips:
    """Returns a file of the King data set or of Meridian; raises BadInput.

    Known are matrices, lists of `i j time`, and topologies of p2psim with `i,j time` behind a heading of
    words (pdos.csail.mit.edu/archive/p2psim/kingdata; Wong et al., 2005, data of Meridian). Pairs that are
    listed repeatedly have the median.
    """
    with _opened(path) as file:
        # The heading of p2psim, with a line for each node.
        rows = dropwhile(
            lambda row: row[1][0][:1].isalpha() and row[1][0].lower() not in ("nan", "inf"), _rows(path, file)
        )
        first = next(rows, None)
        if first is None:
            raise BadInput(f"{path}: is empty; it must have lines such as 1 2 35000")
        every = chain([first], rows)
        if len(first[1]) != 3:
            return _matrix_of(path, every, unit, complete)
        pairs = _Pairs(path)
        for line, words in every:
            if len(words) != 3:
                raise BadInput(f"{path}:{line}: has {len(words)} words; it must be like 1 2 35000")
            pairs.add(words[0], words[1], _time(f"{path}:{line}", words[2], complete))
    return pairs.round_trips(unit)


def read_wonder_proxy(path: Path, unit: str, complete: bool) -> RoundTrips:
    """Returns the medians of `avg` in a file of pings of WonderProxy, also packed (.gz); raises BadInput.

    Its columns are source, destination, timestamp, min, avg, max, mdev, in milliseconds
    (wonderproxy.com/blog/a-day-in-the-life-of-the-internet).
    """
    wanted = ("source", "destination", "avg")
    pairs = _Pairs(path)
    with _opened(path) as file:
        try:
            reader = csv.reader(file)
            columns = next(reader, [])
            missing = [name for name in wanted if name not in columns]
            if missing:
                head = "source,destination,timestamp,min,avg,max,mdev"
                raise BadInput(f"{path}:1: has no column {quoted(missing[0])}; the first line must be {head}")
            source, target, average = (columns.index(name) for name in wanted)
            for words in reader:
                if not words:
                    continue
                if len(words) != len(columns):
                    count = f"has {len(words)} columns; the first line has {len(columns)}"
                    raise BadInput(f"{path}:{reader.line_num}: {count}")
                time = _time(f"{path}:{reader.line_num}", words[average], complete)
                pairs.add(words[source], words[target], time)
        except (csv.Error, EOFError, OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: no file of pings: {first_line(error)}") from None
    if not pairs.times:
        raise BadInput(f"{path}: is empty; it must have lines below its heading")
    return pairs.round_trips(unit)


class _Pairs:
    """Measurements by the names of two nodes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.numbers: dict[str, int] = {}
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.times: list[float] = []

    def add(self, source: str, target: str, time: float) -> None:
        self.sources.append(self.numbers.setdefault(source, len(self.numbers)))
        self.targets.append(self.numbers.setdefault(target, len(self.numbers)))
        self.times.append(time)

    def round_trips(self, unit: str) -> RoundTrips:
        """Returns the median of each pair."""
        nodes = len(self.numbers)
        times = np.array(self.times)
        measured = np.flatnonzero(~np.isnan(times))
        pairs = np.array(self.sources)[measured] * nodes + np.array(self.targets)[measured]
        order = np.lexsort((times[measured], pairs))
        pairs, times = pairs[order], times[measured][order]
        found, begins, counts = np.unique(pairs, return_index=True, return_counts=True)
        middle = (times[begins + (counts - 1) // 2] + times[begins + counts // 2]) / 2
        seconds = np.full(nodes * nodes, np.nan)
        seconds[found] = middle * UNITS[unit]
        return RoundTrips(self.path, list(self.numbers), seconds.reshape(nodes, nodes))


def _opened(path: Path) -> TextIO:
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def _rows(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Yields line numbers and words; an empty word between two commas is one, too."""
    try:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            # A pair of p2psim has a comma, and a blank before its time.
            commas = [word.split() or [""] for word in text.split(",")]
            yield number, [word for words in commas for word in words]
    except (EOFError, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: no text: {first_line(error)}") from None


def _time(where: str, word: str, complete: bool) -> float:
    """Returns a time >= 0; NaN for what is none if `complete`, else raises BadInput."""
    is_hole = word in ("", "-")
    try:
        time = np.nan if is_hole else float(word)
    except ValueError:
        raise BadInput(f"{where}: {quoted(word)} is no number") from None
    if 0 <= time < np.inf:
        return time
    if not complete:
        what = "a hole" if is_hole or np.isnan(time) else f"{word} is no time >= 0"
        raise BadInput(f"{where}: {what}; {COMPLETE}")
    return np.nan
