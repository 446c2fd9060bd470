"""The axes of a study: what changes from variant to variant, and how axes combine."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import PurePath
from typing import Any

from decentnode.config.yaml_source import SourceLocation

MOST_VALUES = 10_000
"""Values of one range; a longer one is a mistake."""
MOST_LETTERS, KEPT_LETTERS = 40, 32
"""Letters of a label that is made from a value: at most, and those kept of a longer one."""
GRAPH_FILES = {".edges", ".adj", ".adjacency", ".txt"}
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Change:
    """One key of the configuration, and its value in some runs."""

    key: str
    value: Any
    source: SourceLocation
    """The line of the study that says so."""


@dataclass(frozen=True)
class Level:
    """One choice of an axis."""

    label: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class StudyAxis:
    """One thing that differs between variants."""

    name: str
    levels: tuple[Level, ...]

    def find(self, value: Any) -> Level | None:
        """The level with this label, or with this value where the axis is one key."""
        for level in self.levels:
            alone = level.changes[0] if len(level.changes) == 1 else None
            if level.label == value or (alone and alone.key == self.name and alone.value == value):
                return level
        return None


@dataclass(frozen=True)
class PlannedVariant:
    """One combination of levels; its runs differ in the seed."""

    levels: Mapping[str, Level]
    """The level on each axis, by the name of the axis."""

    @property
    def name(self) -> str:
        """The labels of its levels, safe as the name of a directory; `base` without axes."""
        return "_".join(level.label for level in self.levels.values()) or "base"

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of all levels, in the order of the axes."""
        return tuple(change for level in self.levels.values() for change in level.changes)


def combine(axes: Sequence[StudyAxis], zipped: Sequence[Sequence[str]]) -> list[PlannedVariant]:
    """All combinations; axes that are zipped go together, and have equally many levels."""
    by_name = {axis.name: axis for axis in axes}
    partners = {name: group for group in zipped for name in group}
    groups = dict.fromkeys(tuple(partners.get(axis.name, (axis.name,))) for axis in axes)
    choices = [list(zip(*(by_name[name].levels for name in group), strict=True)) for group in groups]
    variants = []
    for combination in product(*choices):
        chosen = {
            name: level
            for group, levels in zip(groups, combination, strict=True)
            for name, level in zip(group, levels, strict=True)
        }
        variants.append(PlannedVariant({axis.name: chosen[axis.name] for axis in axes}))
    return variants


def spread_out(first: float, last: float, step: float | None, count: int | None, log: bool) -> list[float]:
    """The values of a range with both ends; whole numbers where the ends and all values are whole.

    Raises ValueError with what is wrong.
    """
    if (step is None) == (count is None):
        raise ValueError("a range has from, to, and one of step and count")
    if log and (count is None or first <= 0 or last <= 0):
        raise ValueError("a range with log has a count, and from and to above 0")
    if step is not None:
        if step == 0 or (last - first) / step < 0:
            raise ValueError(f"a step of {step:g} does not lead from {first:g} to {last:g}")
        # A step such as 0.1 is no exact number, so the last value may seem to be beyond the end.
        steps = (last - first) / step
        count = math.floor(steps * (1 + 1e-12) + 1e-9) + 1 if steps <= MOST_VALUES else MOST_VALUES + 1
    assert count is not None
    if count > MOST_VALUES:
        raise ValueError(f"a range of more than {MOST_VALUES:,} values; name fewer")
    if count == 1 and step is None:
        raise ValueError("a range with a count has two values or more")
    if first == last and count > 1:
        raise ValueError(f"a range with a count has two different ends, not twice {first:g}")
    if step is not None:
        values = [first + step * i for i in range(count)]
    elif log:
        values = [first * (last / first) ** (i / (count - 1)) for i in range(count)]
    else:
        values = [first + (last - first) * i / (count - 1) for i in range(count)]
    if not all(map(math.isfinite, values)):
        raise ValueError("a range whose ends are too far apart; the values between are not finite")
    # Twelve digits hide the rounding of the sums above.
    values = [float(f"{value:.12g}") for value in values]
    is_whole = isinstance(first, int) and all(value.is_integer() for value in values)
    return [int(value) for value in values] if is_whole else values


def label_of(key: str, value: Any) -> str:
    """A short name of a key's value that depends on nothing else, safe as part of a file's name."""
    label = _UNSAFE.sub("-", _words(key, value)).strip("-.") or "empty"
    if len(label) <= MOST_LETTERS:
        return label
    return f"{label[:KEPT_LETTERS]}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def _words(key: str, value: Any) -> str:
    if isinstance(value, str):
        # `module:Class` is known by its class, a file by its name.
        name = PurePath(value.rpartition(":")[2])
        return name.stem if name.suffix in GRAPH_FILES or "/" in value else name.name
    if isinstance(value, dict):
        options = [_words(name, inner) for name, inner in value.items() if name != "name"]
        return "-".join([str(value.get("name", "")), *options]).strip("-")
    if isinstance(value, list):
        return "+".join(_words(key, inner) for inner in value) or f"{_last_word(key)}-none"
    number = f"{value:.12g}" if isinstance(value, float) else str(value).lower()
    return f"{_last_word(key)}-{number}"


def _last_word(key: str) -> str:
    words: list[str] = _WORD.findall(key)
    return words[-1] if words else key
