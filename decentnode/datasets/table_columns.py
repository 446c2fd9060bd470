"""Columns of tables: of which kind each is, and the inputs of a model that it becomes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from decentnode.core.text import first_line, quoted, shortened
from decentnode.datasets.base import merges
from decentnode.errors import DatasetError
from decentnode.options import Positive, PositiveFloat

Array = NDArray[Any]
Kind = Literal["number", "category", "ordered", "time", "skip"]
Missing = Literal["mean", "median", "most_frequent", "category", "indicator", "drop"] | float
Cycle = Literal["day", "week", "year"]
Value = str | int | float | bool
DAY, WEEK = 86_400, 7 * 86_400
MONDAY = 4 * DAY
"""The first Monday after the start of 1970, in seconds."""
LONGEST_DURATION = 366 * DAY
"""Seconds; more are a time since 1970, and no time of a day."""
MOST_CATEGORIES = 1000
"""The most categories of a column that does not say how many it may have."""
FEW_TEXTS = 50
"""So many distinct texts are categories even if nearly every row has another one."""
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?")
ORDERS = ("%d %m %Y", "%m %d %Y", "%Y %m %d", "%d %m %y", "%m %d %y", "%d %b %Y", "%d %B %Y", "%b %d %Y")
"""The usual orders of a date, with spaces for what is between its parts."""
MOST_TRIED = 1000
"""Texts that a format of times is tried with."""
OTHER_TIME = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}(\D.*)?|\d{1,2}[. -]+[A-Za-z]{3,9}[., -]+\d{2,4}.*")
"""Texts that are dates, but do not tell which number is the day."""
THOUSANDS = re.compile(r"[-+]?\d{1,3}([,.' \u00a0\u202f])\d{3}(\1\d{3})*([.,]\d*)?")
COMMA = re.compile(r"[-+]?\d*(,)\d+")
UNNAMED = re.compile(r"|unnamed: \d+(\.\d+)?|__index_level_\d+__|level_\d+", re.IGNORECASE)
"""Names of a column that has none: those that pandas and R write and read for the index of the rows."""
NUMBER = r"(no|nr|num|number|code|key|index)\.?"
ROW = "sample|case|row|record|serial|patient|subject|instance|entry|obs|observation"
KEY = re.compile(
    rf"(?i:index|idx|#|sl?\.? ?no\.?|{NUMBER}|row[ _]?names?|({ROW})([ _.]?(code[ _.])?{NUMBER})?"
    r"|(\w+[ _])?(row)?ids?)|\w*[a-z]I[dD]"
)
"""Usual names of a column that tells rows apart."""


@dataclass(frozen=True, kw_only=True)
class ColumnSettings:
    """What a column of a table is, and what becomes of it."""

    kind: Kind | None = None
    """A category becomes an input for each value, 1 or 0; what is ordered its place among the values; a time
    seconds since 1970; what is skipped nothing. null: the values tell which it is."""
    values: tuple[Value, ...] = ()
    """All values of what is ordered, the least first, or all categories; empty: those of training rows."""
    max_categories: Positive | None = None
    """A category becomes at most so many inputs: the most frequent values, and one for all others."""
    missing: Missing | None = None
    """What becomes of rows without a value; null: as the table's option `missing` says."""
    format: str | None = None
    """How texts are written that are times, as in strptime; null: as ISO 8601 has it."""
    cycles: tuple[Cycle, ...] = ()
    """A time also becomes sine and cosine of its place in the day, the week or the year."""
    mean: float | None = None
    """What is subtracted, if it is known without the rows; null: as `standardize` of the table says."""
    std: PositiveFloat | None = None
    """What numbers are divided by after that."""

    def __post_init__(self) -> None:
        for option, kinds in {
            "values": ("ordered", "category"), "max_categories": ("category",), "format": ("time",),
            "cycles": ("time",),
        }.items():  # fmt: skip
            if getattr(self, option) not in ((), None) and self.kind not in kinds:
                raise ValueError(f"{option} is for kind: {' or '.join(kinds)}; name that, too")
        if (self.mean is None) != (self.std is None) or (self.mean is not None and self.kind == "category"):
            raise ValueError("mean and std go together, and a category has none")
        if self.missing == "category" and self.kind not in (None, "category"):
            raise ValueError(f"missing: category is for kind: category, not {self.kind}")
        if self.kind == "category" and (self.missing in ("mean", "median") or is_number(self.missing)):
            raise ValueError("a category has no mean or number; set missing: category or most_frequent")


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table, as it was read."""

    name: str
    place: str
    """The table that it is from, for messages."""
    option: str
    """The option that names that table."""
    values: Array
    """Shape (n,), or (n, ...) where a row has several numbers: numbers, times, or places among `texts`."""
    missing: NDArray[np.bool_]
    """Shape (n,): the rows without a value; what `values` has there means nothing."""
    texts: Array | None = None
    """The different texts of a column of texts, of type object."""
    declared_kind: Kind | None = None
    """The kind that the table itself has for it."""
    order: tuple[str, ...] = ()
    """The order of its texts, where the table has one."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Array) -> "Column":
        return replace(self, values=self.values[rows], missing=self.missing[rows])

    def error(self, problem: str) -> DatasetError:
        """Returns the error of a column with this problem."""
        return DatasetError.at(self.option, f"{self.place}: column {self.name!r} {problem}")

    def setting(self, text: str) -> str:
        """Returns an option of this column as a configuration has it."""
        name = self.name if re.fullmatch(r"\w+([ -]\w+)*", self.name) else repr(self.name)
        return f"dataset.columns: {{{name}: {text}}}"

    @cached_property
    def distinct(self) -> tuple[Array, NDArray[np.int64]]:
        """The different values of rows, ascending, and the place of each row's among them; -1: none."""
        values, places = np.unique(self.values[~self.missing], return_inverse=True)
        if self.texts is not None:
            texts = self.texts[values]
            order = np.argsort(texts)
            values, places = texts[order], np.argsort(order)[places]
        found = np.full(len(self), -1, np.int64)
        found[~self.missing] = places
        return values, found

    @property
    def decoded(self) -> Array:
        """The values of all rows, texts as objects; a row without one gets that of another."""
        values = self.values if self.texts is None else self.texts[self.values]
        if self.missing.any():
            values = values.copy()
            values[self.missing] = values[self.missing.argmin()]
        return values

    def without(self, markers: Sequence[Value]) -> "Column":
        """Returns the column in which rows with these values have none, nor have those with NaN."""
        missing = self.missing
        if self.texts is not None:
            words = {text_of(marker) for marker in markers}
            marked = np.array([text.strip() in words for text in self.texts], bool)
            missing = missing | marked[self.values] if len(marked) else missing
        elif self.values.ndim == 1:
            if numbers := [marker for marker in markers if not isinstance(marker, str)]:
                missing = missing | np.isin(self.values, numbers)
            if self.values.dtype.kind == "f":
                missing = missing | np.isnan(self.values)
        return replace(self, missing=missing)

    def stripped(self) -> "Column":
        """Returns the column with texts without the blanks around them; one of blanks alone is no value."""
        if self.texts is None:
            return self
        place_of: dict[str, int] = {"": 0}
        places = [place_of.setdefault(text.strip(), len(place_of)) for text in self.texts]
        values = np.array([*places, 0])[self.values]
        order = tuple(text.strip() for text in self.order)
        texts = np.array([*place_of], object)
        return replace(self, values=values, missing=self.missing | (values == 0), texts=texts, order=order)


@dataclass(frozen=True)
class NumberFormat:
    """How texts have numbers."""

    decimal: str = "."
    thousands: str = ""

    def plain(self, text: str) -> str:
        """Returns a number as Python has it; a text without one stays without."""
        text = text.replace(self.thousands, "") if self.thousands else text
        return text if self.decimal == "." else text.replace(".", "?").replace(self.decimal, ".")


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs that a column becomes, in training and test rows."""

    column: Column
    kind: Kind
    parts: Sequence[Array]
    """Shape (n, inputs), or (n, ...) for a column that has several numbers in a row."""
    names: tuple[str, ...]
    """The name of each input."""
    standardized: int
    """How many of them are normalized, the first ones."""
    fitted: tuple[str, ...] = ()
    """What was computed from the training rows: `categories`, `frequent`, `fill`."""
    missing: int = 0
    """The rows without a value, of both parts."""
    filled: str = ""
    """What these have become."""
    unknown: int = 0
    """The test rows with a category that no input stands for."""
    levels: tuple[str, ...] = ()
    """The values of what is ordered, or the categories."""

    @property
    def summary(self) -> str:
        """The values of training rows in words."""
        if self.levels:
            return shortened((" < " if self.kind == "ordered" else ", ").join(self.levels))
        present = self.column.values[~self.column.missing]
        least, most = float(present.min()), float(present.max())
        if self.kind == "time" and least > LONGEST_DURATION:
            return " to ".join(str(np.datetime64(int(end), "s")).replace("T", " ") for end in (least, most))
        return f"{least:.6g} to {most:.6g}" if least < most else f"always {least:.6g}"

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.column.name

    @property
    def count(self) -> int:
        """The number of inputs."""
        return len(self.names)

    @property
    def is_standardized(self) -> NDArray[np.bool_]:
        """Whether each input is normalized, shape (inputs,)."""
        return np.arange(self.count) < self.standardized


def as_time(texts: Array) -> str:
    """Returns the setting of a time in the first usual format that all texts fit, with the day first."""
    dates = [order.replace(" ", sign) for sign in "/.- " for order in ORDERS]
    formats = [f"{date}{time}" for date in dates for time in ("", " %H:%M", " %H:%M:%S")]

    def fits(written: str) -> bool:
        try:
            return all(datetime.strptime(text, written) for text in texts[:MOST_TRIED].tolist())
        except ValueError:
            return False

    return f"{{kind: time, format: {next(filter(fits, formats), formats[0])!r}}}"


def kind_of(column: Column, number_format: NumberFormat) -> Kind:
    """Returns what a column is by its values; raises DatasetError, with what to set, where that is open."""
    if column.missing.all():
        raise column.error(f"has no value in any row; set {column.setting('skip')}")
    if column.declared_kind is not None:
        return column.declared_kind
    if column.texts is None:
        return "time" if column.values.dtype.kind in "mM" else "number"
    texts, places = column.distinct
    rows = np.bincount(places[places >= 0])
    are_numbers = np.array([is_number(number_format.plain(text)) for text in texts])
    if are_numbers.all():
        return "number"
    if all(map(ISO_TIME.fullmatch, texts)):
        return "time"
    meant = column.setting("category")
    for pattern, what, remedy in (
        (THOUSANDS, "a sign between thousands", "dataset.thousands: SIGN"),
        (COMMA, "a decimal comma", "dataset.decimal: ','"),
        (OTHER_TIME, "a time", column.setting(as_time(texts)) + " (%d is the day, %m the month)"),
    ):
        found = [pattern.fullmatch(text) for text in texts]
        match = next(filter(None, found), None)
        if match and all(fits or number for fits, number in zip(found, are_numbers, strict=True)):
            remedy = remedy.replace("SIGN", repr(match[1]))
            raise column.error(f"has {quoted(match[0])}, as with {what}; set {remedy}, or {meant}")
    odd = np.flatnonzero(~are_numbers)[rows[~are_numbers].argmax()]
    if rows[are_numbers].sum() >= rows[~are_numbers].sum():
        shown = f"has {quoted(texts[odd])} in {rows[odd]:,} of {len(column):,} rows, and numbers in others"
        remedy = f"set dataset.missing_values: [{texts[odd]!r}]"
        raise column.error(f"{shown}; if that is no value, {remedy}, else {meant}")
    if len(texts) > max(FEW_TEXTS, rows.sum() / 2):
        raise column.error(
            f"has {len(texts):,} different texts in {rows.sum():,} rows, such as {quoted(texts[odd])}; "
            f"set {column.setting('skip')}, or {meant}"
        )
    return "category"


def is_number(value: object) -> bool:
    """Whether a value, or what a text has, is a number."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def is_index(column: Column) -> bool:
    """Whether a column is an index of the rows, by its name and whole numbers, in any order."""
    name, values = column.name, column.values[~column.missing]
    if column.texts is not None or values.ndim > 1 or len(values) < 2 or values.dtype.kind not in "iuf":
        return False
    if (np.floor(values) != values).any():
        return False
    # After a split, some numbers are elsewhere; where tables were joined, some are there twice.
    if UNNAMED.fullmatch(name):
        return True
    distinct = len(np.unique(values)) == len(values)
    # R reads the column without a name as X, which may be a coordinate as well.
    has_gaps = np.ptp(values) + 1 != len(values)
    return distinct and bool(KEY.fullmatch(name) or (name == "X" and not has_gaps))


def text_of(value: Any) -> str:
    """Returns a value as the name of a category: that of 3.0 is `3`, that of true `true`."""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def text_places(column: Column, values: Sequence[Value]) -> NDArray[np.int64]:
    """Returns the place of each row among these values, compared as texts; -1: it has none of them."""
    place_of = {text_of(value): place for place, value in enumerate(values)}
    distinct, rows = column.distinct
    # The last one is for rows without a value.
    return np.array([*(place_of.get(text_of(value), -1) for value in distinct), -1], np.int64)[rows]


def in_numbers(column: Column, settings: ColumnSettings, number_format: NumberFormat) -> Column:
    """Returns a column of numbers or times as floats, times in seconds; others as they are.

    Raises DatasetError, also where rows have no value, and nothing says what becomes of them.
    """
    if column.missing.any() and settings.missing is None:
        usual = {None: "drop", "category": "category"}.get(settings.kind, "median")
        count, row = int(column.missing.sum()), int(column.missing.argmax()) + 1
        rows = f"{count:,} of {len(column):,} rows, first in row {row}"
        remedy = f"set dataset.missing, or {column.setting(f'{{missing: {usual}}}')}"
        raise column.error(f"has no value in {rows}; {remedy}")
    if column.values.ndim > 1 and settings.kind not in (None, "number"):
        raise column.error(f"has several numbers in a row, and they are no {settings.kind}")
    if settings.kind not in ("number", "time"):
        return column
    if column.missing.all():
        return replace(column, values=np.zeros(len(column), np.float32), texts=None)
    is_time = settings.kind == "time" and (column.texts is not None or column.values.dtype.kind in "mM")
    values = _seconds(column, settings.format) if is_time else numbers_of(column, number_format)
    return replace(column, values=values, texts=None)


def inputs_of(columns: Sequence[Column], settings: ColumnSettings) -> Inputs:
    """Returns what a column becomes; `columns`: its training rows and its test rows, as of `in_numbers`.

    All that is computed is computed from the training rows. Raises DatasetError.
    """
    train = columns[0]
    if train.missing.all():
        raise train.error(f"has no value in any training row; set {train.setting('skip')}")
    if settings.kind == "category":
        return _categories(columns, settings)
    for column in columns:
        if column.values.shape[1:] != (shape := train.values.shape[1:]):
            raise column.error(f"has rows of shape {column.values.shape[1:]}, in {train.place} {shape}")
    values, fitted, levels = [column.values for column in columns], tuple[str, ...](), tuple[str, ...]()
    kind = settings.kind or "number"
    if kind == "ordered":
        values, fitted, levels = _ordered(columns, settings)
    missing, fill = sum(int(column.missing.sum()) for column in columns), ""
    if missing:
        values, fill = _filled(values, columns, settings.missing)
        fitted += ("fill",) if isinstance(settings.missing, str) else ()
    times = values
    if settings.mean is not None and settings.std is not None:
        values = [narrowed((part.astype(np.float64) - settings.mean) / settings.std) for part in values]
    standardized = 0 if settings.mean is not None else 1
    if train.values.ndim > 1:
        return Inputs(
            train, kind, values, (train.name,) * values[0][0].size, standardized * values[0][0].size
        )
    names, parts = [train.name], [[part[:, None]] for part in values]
    for cycle in settings.cycles:
        names += [f"{train.name}: {function} of the {cycle}" for function in ("sine", "cosine")]
        for part, seconds in zip(parts, times, strict=True):
            angle = 2 * np.pi * _phase(seconds, cycle)
            part.append(np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32))
    # Where all training rows have a value, nothing can be learned from such an input.
    if settings.missing == "indicator" and train.missing.any():
        names.append(f"{train.name}: missing")
        for part, column in zip(parts, columns, strict=True):
            part.append(column.missing[:, None].astype(np.float32))
    joined = [np.concatenate(part, axis=1) for part in parts]
    return Inputs(
        train, kind, joined, names=tuple(names), standardized=standardized, fitted=fitted, missing=missing,
        filled=fill, levels=levels,
    )  # fmt: skip


def _categories(columns: Sequence[Column], settings: ColumnSettings) -> Inputs:
    """An input for each category, 1 in the rows that have it ("one-hot"); none is for an unknown one."""
    train = columns[0]
    fitted: tuple[str, ...] = () if settings.values else ("categories",)
    levels = [*map(text_of, settings.values or train.distinct[0])]
    places = [text_places(column, levels) for column in columns]
    missing, fill = sum(int(column.missing.sum()) for column in columns), ""
    if missing:
        fill = "a category"
        level = len(levels)
        if settings.missing == "most_frequent":
            level = int(np.bincount(places[0][places[0] >= 0]).argmax())
            fill, fitted = levels[level], (*fitted, "fill")
        elif train.missing.any():
            levels.append("missing")
        for part, column in zip(places, columns, strict=True):
            part[column.missing] = level if level < len(levels) else -1
    unknown = int((places[1] < 0).sum())
    most = settings.max_categories or max(MOST_CATEGORIES, len(settings.values))
    if len(levels) > most:
        if settings.max_categories is None:
            remedy = train.setting("{kind: category, max_categories: 100}")
            raise train.error(f"has {len(levels):,} categories; set {remedy}, or skip")
        rows = np.bincount(places[0][places[0] >= 0], minlength=len(levels))
        frequent = np.sort(np.argsort(-rows, kind="stable")[: most - 1])
        fitted = (*fitted, "frequent")
        # The last one is for unknown ones, which are rare, too.
        new = np.full(len(levels) + 1, most - 1)
        new[frequent] = np.arange(most - 1)
        places, levels = [new[part] for part in places], [*(levels[place] for place in frequent), "others"]
    parts = []
    for part in places:
        inputs = np.zeros((len(part), len(levels)), np.float32)
        known = np.flatnonzero(part >= 0)
        inputs[known, part[known]] = 1
        parts.append(inputs)
    names = tuple(f"{train.name}={level}" for level in levels)
    return Inputs(
        train, "category", parts, names=names, standardized=0, fitted=fitted, missing=missing, filled=fill,
        unknown=unknown, levels=tuple(levels),
    )  # fmt: skip


def _ordered(
    columns: Sequence[Column], settings: ColumnSettings
) -> tuple[list[Array], tuple[str, ...], tuple[str, ...]]:
    """The place of each row's value in their order, what was computed from training rows, and the values."""
    train = columns[0]
    values: Sequence[Value] = settings.values or train.order
    fitted: tuple[str, ...] = () if values else ("categories",)
    if not values:
        distinct = train.distinct[0]
        if train.texts is not None:
            shown = ", ".join([*map(str, distinct[:5]), *(["..."] if len(distinct) > 5 else [])])
            remedy = train.setting(f"{{kind: ordered, values: [{shown}]}}")
            raise train.error(f"has texts, whose order is not known; set {remedy}, the least first")
        values = [*map(text_of, distinct)]
    found = []
    for column in columns:
        places = text_places(column, values)
        if (wrong := (places < 0) & ~column.missing).any():
            value, known = text_of(column.decoded[wrong.argmax()]), ", ".join(map(text_of, values[:9]))
            raise column.error(f"has {quoted(value)}, which is none of its values ({known})")
        found.append(places.astype(np.float32))
    return found, fitted, tuple(map(text_of, values))


def numbers_of(column: Column, number_format: NumberFormat) -> Array:
    """The numbers of all rows; raises DatasetError for the first that is none."""
    if column.texts is not None:
        column = replace(column, texts=np.array([*map(number_format.plain, column.texts)], object))
    return numbers(column.decoded, f"{column.place}: column {column.name!r}", column.option)


def _seconds(column: Column, written: str | None) -> Array:
    """Seconds since 1970, of times of a day since midnight, and of durations; NaN where a row has none."""
    values = column.values
    if column.texts is not None:
        texts, places = column.distinct
        values = _times(column, texts, written)[places]
    if values.dtype.kind == "M":
        values = values - np.zeros(1, values.dtype)
    return narrowed(np.where(column.missing, np.nan, values / np.timedelta64(1, "s")))


def _times(column: Column, texts: Array, written: str | None) -> Array:
    """The times that texts are, in UTC where these name a zone; raises DatasetError for one that is none."""
    check_pyarrow(f"column {column.name!r}")
    import pyarrow
    from pyarrow import compute

    array = pyarrow.array(texts)
    if written is not None:
        times = compute.strptime(array, format=written, unit="s", error_is_null=True)
        wrong = np.asarray(times.is_null())
    else:
        wrong = np.array([not ISO_TIME.fullmatch(text) for text in texts])
    if wrong.any():
        how = "ISO 8601" if written is None else repr(written)
        remedy = column.setting(as_time(texts))
        raise column.error(f"has {quoted(texts[wrong.argmax()])}, which is no time as {how}; set {remedy}")
    if written is None:
        zone = "UTC" if any(":" in text[19:] or text[10:].endswith("Z") for text in texts) else None
        try:
            times = compute.cast(array, pyarrow.timestamp("us", zone))
        except pyarrow.ArrowInvalid as error:
            raise column.error(f"has times that cannot be read: {first_line(error)}") from error
    found: Array = times.to_numpy(zero_copy_only=False)
    return found


def _phase(seconds: Array, cycle: Cycle) -> Array:
    """The place of times in their day, week (from Monday) or year, from 0 to 1."""
    if cycle != "year":
        start, length = (0, DAY) if cycle == "day" else (MONDAY, WEEK)
        phase: Array = (seconds.astype(np.float64) - start) % length / length
        return phase
    times = np.round(seconds).astype("datetime64[s]")
    years = times.astype("datetime64[Y]")
    starts, ends = (year.astype("datetime64[s]") for year in (years, years + 1))
    phase = (times - starts) / (ends - starts)
    return phase


def _filled(
    values: Sequence[Array], columns: Sequence[Column], how: Missing | None
) -> tuple[list[Array], str]:
    """The numbers of both parts with what rows without one get, and that in words."""
    present = values[0][~columns[0].missing].astype(np.float64)
    if how == "median":
        number = float(np.median(present))
    elif how == "most_frequent":
        distinct, counts = np.unique(present, return_counts=True)
        number = distinct[counts.argmax()]
    else:
        number = float(how) if isinstance(how, int | float) else float(present.mean())
    found = [
        narrowed(np.where(column.missing, number, part.astype(np.float64)))
        for part, column in zip(values, columns, strict=True)
    ]
    return found, str(how).replace("indicator", "mean, indicator").replace("_", " ")


def numbers(column: Array, name: str, option: str = "dataset.path") -> Array:
    """The values as floats, of 64 bits where 32 do not have them; raises DatasetError for the first without.

    Decimals are numbers, too. `name` and `option`: of the column and its table, for messages.
    """
    if column.dtype.kind in "mM":
        raise DatasetError.at(option, f"{name} has times, such as {column[0]}; set its kind: time")
    try:
        values = column.astype(np.float64) if column.dtype.kind in "biufO" else None
    except (TypeError, ValueError):
        values = None
    if values is None:
        row, value = next(
            ((row, value) for row, value in enumerate(column.tolist(), 1) if not is_number(value)),
            (1, column.tolist()[0]),
        )
        raise DatasetError.at(option, f"{name} has {value!r} in row {row}, which is no number")
    wrong = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
    if len(wrong):
        raise DatasetError.at(
            option, f"{name} has no finite number in row {wrong[0] + 1}; fill it, or leave it out"
        )
    if column.dtype.kind != "f" and merges(column, values).any():
        raise DatasetError.at(
            option, f"{name} has distinct numbers that are equal in 64 bits; subtract the least one"
        )
    return narrowed(values)


def narrowed(values: Array) -> Array:
    """Returns numbers in 32 bits, if these have all of them."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return narrow if np.array_equal(narrow, values, equal_nan=True) else values


def check_pyarrow(name: str) -> None:
    """Raises DatasetError where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise DatasetError.at("dataset", f"{name} needs pyarrow; run: pip install 'decentnode[tasks]'")
