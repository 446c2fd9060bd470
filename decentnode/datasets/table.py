"""Rows of tables: files, and tables that Python has."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from decentnode.core.registry import DATASETS
from decentnode.core.rng import generator
from decentnode.core.text import counted, shortened
from decentnode.datasets import samples
from decentnode.datasets.base import (
    Dataset,
    LoadedDataset,
    Samples,
    mean_and_deviation,
    merges,
    values_of,
)
from decentnode.datasets.table_columns import (
    Array,
    Column,
    ColumnSettings,
    Inputs,
    Kind,
    Missing,
    NumberFormat,
    Value,
    check_pyarrow,
    in_numbers,
    inputs_of,
    is_index,
    kind_of,
    numbers_of,
    text_of,
    text_places,
)
from decentnode.datasets.table_files import RawTable, TextFormat, arrow_table, read_table, write_table
from decentnode.datasets.text import check_path
from decentnode.errors import DatasetError, Defect, refuse

T = TypeVar("T")
SAMPLE_FEATURES = 8
Part = Mapping[str, Column]
"""The columns of training rows, or of test rows, by name."""
Standardize = Literal["all", "node", "none"]
TABLES = {"train": "training", "test": "test", "validation": "validation"}
"""The parts that tables may be, in this order."""
SCALES = {
    "all": "are those of the rows of all nodes, who must know them before they train",
    "node": "are those of each node's own rows, which tells other nodes nothing before it trains",
    "none": "are left as they are",
}


@dataclass(kw_only=True)
class TableDataset(Dataset):
    """Rows of a table, one sample each ("tidy data"; Wickham, 2014)."""

    label: str | tuple[str, ...] = "label"
    """The column of the labels; several: each has a number, or 0 or 1 for a class."""
    features: tuple[str, ...] | None = None
    """The columns of the features; null: all others. One array of an NPZ file keeps its shape."""
    columns: Mapping[str, Kind | ColumnSettings] = field(default_factory=dict)
    """What columns are, where their values do not tell it: number, category, ordered, time or skip, or a
    mapping with `kind`, `values`, `max_categories`, `missing`, `format`, `cycles`, `mean` and `std`."""
    missing: Missing | None = None
    """What rows without a value get: mean, median, most_frequent, a number; `category`: a category of their
    own; `indicator`: the mean, and an input that is 1; `drop` leaves them out. null: an error."""
    missing_values: tuple[Value, ...] = ()
    """What also stands for no value, such as '?' or -999."""
    decimal: str = "."
    """The sign before the decimals of numbers."""
    thousands: str = ""
    """The sign between thousands of numbers; empty: there is none."""
    standardize: Standardize = "all"
    """By whose training rows numbers get mean 0 and deviation 1: those of all nodes, or of each node by
    itself. Categories stay 0 or 1."""
    group: str | None = None
    """The column of the groups, for the partition `natural`; null: there are none."""
    predict: Literal["class", "number"] = "class"
    """number: the label is a number; use a task such as `regression`."""
    classes: tuple[Value, ...] | None = None
    """The names of all classes, in the order of their numbers; null: those of the rows, sorted."""
    test_fraction: float = 0.2
    """The rows to test with, drawn by the seed, where there is no test table."""

    def __post_init__(self) -> None:
        check_fraction(self.test_fraction)
        if len(self.decimal) != 1 or len(self.thousands) > 1 or self.decimal == self.thousands:
            raise DatasetError.at("dataset.decimal", "and thousands must be two different signs")
        if self.standardize != "all" and (self.mean, self.std) != (None, None):
            raise DatasetError.at("dataset.standardize", "leave it out where mean and std are given")
        names = [*map(text_of, self.classes or ())]
        if len({*names}) < len(names):
            raise DatasetError.at("dataset.classes", "names a class twice")
        for name in {*self.labels, self.group} & {*self.columns}:
            if self.settings(str(name)) not in (ColumnSettings(), ColumnSettings(missing="drop")):
                raise DatasetError.at(
                    f"dataset.columns.{name}",
                    "is no feature, so it may have nothing but `missing: drop`; see predict and classes",
                )

    @abstractmethod
    def tables(self) -> Sequence[RawTable]:
        """Returns the table, or those to train, to test and to validate with."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of the labels."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def settings(self, name: str) -> ColumnSettings:
        """Returns what is set for a column."""
        given = self.columns.get(name, ColumnSettings())
        return ColumnSettings(kind=given) if isinstance(given, str) else given

    def read(self, seed: int) -> LoadedDataset:
        tables = self.tables()
        features = self._features(tables[0])
        parts = [self._columns(table, features) for table in tables]
        settings = by_name(parts[0], lambda name: self._resolved(parts[0][name], name in features))
        kept = [self._prepared(part, settings) for part in parts]
        parts, dropped = [part for part, _ in kept], sum(count for _, count in kept)
        labels, classes, class_names = self._labels(parts)
        groups = self._groups(parts)
        if len(parts) == 1:
            is_test = drawn(len(labels[0]), self.test_fraction, seed)
            split = [np.flatnonzero(~is_test), np.flatnonzero(is_test)]
            parts = [{name: parts[0][name][rows] for name in features} for rows in split]
            labels = [labels[0][rows] for rows in split]
            groups = groups and [groups[0][rows] for rows in split]
        each = by_name(features, lambda name: inputs_of([part[name] for part in parts], settings[name]))
        inputs = [*each.values()]
        arrays = [joined({one.name: one.parts[part] for one in inputs})[0] for part in range(len(parts))]
        found = loaded(
            arrays, labels, groups, classes, names=[name for one in inputs for name in one.names],
            standardized=np.concatenate([one.is_standardized for one in inputs]).reshape(arrays[0].shape[1:]),
            standardize=self.standardize,
        )  # fmt: skip
        categories = _categories(inputs)
        return replace(
            found, class_names=class_names, fitted=tuple(_fitted(inputs, categories)), categories=categories,
            public=tuple(_public({name: settings[name] for name in features})),
            schema=tuple(self._schema(tables[0], inputs, class_names)),
            notices=tuple(_notices(inputs, dropped)),
        )  # fmt: skip

    def _features(self, table: RawTable) -> Sequence[str]:
        """The columns of the features."""
        for name in self.columns:
            if name not in table.columns:
                raise table.unknown(name, f"columns.{name}")
        if self.features is not None:
            for label in self.labels:
                check_features(self.features, label)
            for name in self.features:
                if self.settings(name).kind == "skip":
                    raise DatasetError.at(f"dataset.columns.{name}", "is skip, but a feature; leave one out")
            return self.features
        others = (*self.labels, self.group)
        names = [name for name in table.columns if name not in others and self.settings(name).kind != "skip"]
        if not names:
            raise DatasetError.at("dataset.features", f"{table.place} has no columns but label and group")
        return names

    def _columns(self, table: RawTable, features: Sequence[str]) -> Part:
        """The columns that are used."""
        found = {name: table.column(name, "features").stripped() for name in features}
        # Names of classes keep their blanks, by which they are sorted.
        found |= {name: table.column(name, "label") for name in self.labels}
        if self.group is not None:
            found[self.group] = table.column(self.group, "group")
        return {name: column.without(self.missing_values) for name, column in found.items()}

    def _resolved(self, column: Column, is_feature: bool) -> ColumnSettings:
        """The settings of a column with its kind, and with what becomes of rows without a value."""
        settings = self.settings(column.name)
        if not is_feature:
            return ColumnSettings(missing=settings.missing or ("drop" if self.missing == "drop" else None))
        # Rows are often in the order of their classes, or were before they were shuffled: then the number of
        # a row tells its class.
        if self.features is None and column.name not in self.columns and is_index(column):
            raise DatasetError.at(
                "dataset.features",
                f"{column.place}: column {column.name!r} numbers the rows, as the index that pandas writes; "
                f"set {column.setting('skip')}, or number if it is a feature",
            )
        kind = settings.kind or kind_of(column, self._format)
        try:
            settings = replace(settings, kind=kind)
        except ValueError as error:
            raise column.error(f"is a {kind}, but {error}") from error
        if settings.missing is not None or self.missing in (None, "drop", "most_frequent"):
            return replace(settings, missing=self.missing if settings.missing is None else settings.missing)
        # A category has no mean, median or number, but it may have one more value.
        usual: Missing | None = None if self.missing == "category" else self.missing
        return replace(settings, missing="category" if settings.kind == "category" else usual)

    def _prepared(self, part: Part, settings: Mapping[str, ColumnSettings]) -> tuple[Part, int]:
        """The columns in numbers, without the rows that are to be left out, and how many these are."""
        dropping = [column for name, column in part.items() if settings[name].missing == "drop"]
        found = by_name(part, lambda name: in_numbers(part[name], settings[name], self._format))
        dropped = np.any([column.missing for column in dropping], axis=0) if dropping else np.zeros(1, bool)
        if not dropped.any():
            return found, 0
        if dropped.all():
            raise dropping[0].error("and others that drop rows have no row left; set another `missing`")
        return {name: column[~dropped] for name, column in found.items()}, int(dropped.sum())

    @property
    def _format(self) -> NumberFormat:
        return NumberFormat(self.decimal, self.thousands)

    def _labels(self, parts: Sequence[Part]) -> tuple[list[Array], int, tuple[str, ...]]:
        """The labels of each part, the number of classes, and their names; none where labels are numbers."""
        each = [[part[name] for part in parts] for name in self.labels]
        if self.predict == "class" and isinstance(self.label, str):
            labels, names = self._class_labels(each[0])
            return labels, len(names), names
        # Each of several columns says whether a row is in a class.
        convert, classes = (self._number_labels, 1) if self.predict == "number" else (_membership, 2)
        found = [convert(columns) for columns in each]
        if isinstance(self.label, str):
            return found[0], classes, ()
        return [np.stack(part, axis=1) for part in zip(*found, strict=True)], classes, ()

    def _number_labels(self, columns: Sequence[Column]) -> list[Array]:
        name = columns[0].name
        found = [numbers_of(column, self._format) for column in columns]
        if any(merges(part, part.astype(np.float32)).any() for part in found):
            raise DatasetError.at(
                "dataset.label",
                f"column {name!r}: distinct numbers are equal in 32 bits; subtract their mean",
            )
        return [part.astype(np.float32) for part in found]

    def _class_labels(self, columns: Sequence[Column]) -> tuple[list[Array], tuple[str, ...]]:
        name = f"column {columns[0].name!r}"
        if self.classes is None:
            values, rows = zip(*(column.distinct for column in columns), strict=True)
            shapes = [column.values for column in columns if column.values.ndim > 1]
            labels, names = numbered(shapes or values, name, columns[-1].option)
            return [label[row] for label, row in zip(labels, rows, strict=True)], names
        found = [text_places(column, self.classes) for column in columns]
        for column, places in zip(columns, found, strict=True):
            if (places < 0).any():
                row = int((places < 0).argmax())
                raise column.error(
                    f"has {column.decoded[row]!s} in row {row + 1}, which is none of dataset.classes"
                )
        return found, tuple(map(text_of, self.classes))

    def _groups(self, parts: Sequence[Part]) -> list[Array] | None:
        if self.group is None:
            return None
        values, rows = zip(*(part[self.group].distinct for part in parts), strict=True)
        return [place[row] for place, row in zip(places(values)[0], rows, strict=True)]

    def _schema(self, table: RawTable, inputs: Sequence[Inputs], class_names: Sequence[str]) -> Iterator[str]:
        """The lines about columns that `validate` prints."""
        cells = [("column", "kind", "inputs", "values", "rows without one")]
        used = {one.name: one for one in inputs}
        for name in table.columns:
            if (one := used.get(name)) is not None:
                missing = f"{one.missing:,}: {one.filled}" if one.missing else ""
                cells.append((name, one.kind, f"{one.count:,}", one.summary, missing))
            elif name in self.labels:
                cells.append((name, "label", "", shortened(", ".join(class_names)), ""))
            else:
                cells.append((name, "group" if name == self.group else "skip", "", "", ""))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for name, kind, count, *more in cells:
            rest = "  ".join(f"{cell:{width}}" for cell, width in zip(more, widths[3:], strict=True))
            yield f"{name:{widths[0]}}  {kind:{widths[1]}}  {count:>{widths[2]}}  {rest}".rstrip()
        yield f"standardize: {self.standardize}: mean and deviation {SCALES[self.standardize]}"


@DATASETS.register("table", "csv", "parquet")
@dataclass(kw_only=True)
class TableFile(TableDataset):
    """Rows of a CSV, Parquet, Arrow (Feather) or NPZ file, one sample each ("tidy data"; Wickham, 2014).

    Numbers and times are normalized, categories are 0 or 1 for each value. Classes are numbered in the order
    of their names or numbers, unless `classes` has another. Needs pyarrow, apart from NPZ files.
    """

    path: Path | None = None
    """The file; not needed for a sample."""
    test_path: Path | None = None
    """A file with the rows to test with; null: a fraction of the rows of `path`."""
    validation_path: Path | None = None
    """A file with validation rows, beside those of `test_path`."""
    separator: str = ","
    """The sign between columns of a CSV file."""
    encoding: str = "utf8"
    """How a CSV file is written, such as latin1 or utf16."""
    names: tuple[str, ...] | None = None
    """The names of the columns of a CSV file that has none in its first line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_path(self.path, self)
        if self.validation_path is not None and self.test_path is None:
            raise DatasetError.at("dataset.validation_path", "needs test_path, too")
        if len(self.separator) != 1:
            raise DatasetError.at("dataset.separator", f"must be one sign, not {self.separator!r}")

    @property
    def steps(self) -> str:
        return "any CSV, Parquet, Arrow or NPZ file serves; name it as dataset.path"

    def tables(self) -> Sequence[RawTable]:
        files = {
            "dataset.path": self.path, "dataset.test_path": self.test_path,
            "dataset.validation_path": self.validation_path,
        }  # fmt: skip
        written = TextFormat(self.separator, self.encoding, self.decimal, self.names)
        return [read_table(path, option, written) for option, path in files.items() if path is not None]

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        suffix = (self.path or Path("x.csv")).suffix.lower()
        files = {"path": directory / f"train{suffix}"}
        for option, path in {"test_path": self.test_path, "validation_path": self.validation_path}.items():
            if path is not None:
                files[option] = directory / f"{option.removesuffix('_path')}{path.suffix.lower()}"
        names = self.features or tuple(f"feature_{i}" for i in range(SAMPLE_FEATURES))
        for seed, file in enumerate(files.values(), 1):
            made = samples.columns(samples.IMAGES, len(names), self.predict == "number", seed=seed)
            table = dict(zip(names, made.values.T, strict=True)) | self._of_kinds(len(made.labels))
            for place, label in enumerate(self.labels):
                table[label] = made.labels if isinstance(self.label, str) else made.labels > place
            if self.classes:
                table[self.labels[0]] = np.array([*map(text_of, self.classes)])[
                    made.labels % len(self.classes)
                ]
            write_table(file, table | ({self.group: made.groups} if self.group else {}))
        return {**files, "separator": ",", "encoding": "utf8", "decimal": ".", "names": None}

    def _of_kinds(self, count: int) -> dict[str, Array]:
        """Returns columns of a sample, of the kinds that are set."""
        found: dict[str, Array] = {}
        for name in self.columns:
            settings = self.settings(name)
            if settings.kind in ("category", "ordered"):
                values = np.array([*map(text_of, settings.values or "abc")])
                found[name] = values[np.arange(count) % len(values)]
            elif settings.kind == "time":
                times = np.datetime64("2024-01-01T00", "s") + 5000 * np.arange(count)
                written = settings.format
                found[name] = (
                    times if written is None else np.array([t.strftime(written) for t in times.tolist()])
                )
            elif name not in (*self.labels, self.group):
                found[name] = np.arange(count) % 7
        return found


@dataclass(kw_only=True)
class TableFromPython(TableDataset):
    """Rows of a table that Python has."""

    given: ClassVar[Sequence[Any]]
    """The table, or those to train, to test and to validate with."""
    reads_files: ClassVar[bool] = False

    def tables(self) -> Sequence[RawTable]:
        names = ["the table"] if len(self.given) == 1 else [f"the {part} table" for part in TABLES.values()]
        return [
            arrow_table(in_arrow(table, name), name, "dataset", True)
            for table, name in zip(self.given, names, strict=False)
        ]


def tables_in(value: object) -> tuple[Any, ...]:
    """Returns the table that an object is, or the two or three that it has; empty for others.

    Tables are those of pandas, polars, pyarrow and all that have the Arrow interface for streams.
    """
    parts = value if isinstance(value, tuple) and len(value) < 3 else (value,)
    # Three need names, which say which is which.
    if isinstance(value, Mapping) and {*value} in ({"train"}, {"train", "test"}, {*TABLES}):
        parts = tuple(value[name] for name in TABLES if name in value)
    # A single column of pandas has that interface, too.
    are_tables = all(hasattr(part, "__arrow_c_stream__") and hasattr(part, "columns") for part in parts)
    return parts if are_tables else ()


def class_of_tables(tables: tuple[Any, ...]) -> type[TableFromPython]:
    """Returns a class of datasets with these tables, whose options are those of tables."""
    return dataclass(kw_only=True)(
        type("Table", (TableFromPython,), {"given": tables, "__doc__": TableFromPython.__doc__})
    )


def in_arrow(table: Any, place: str) -> Any:
    """Returns a table as one of pyarrow; raises DatasetError."""
    check_pyarrow("a table from Python")
    import pyarrow

    try:
        # Of pandas without the index, which numbers rows, or names them.
        if hasattr(table, "iloc"):
            return pyarrow.Table.from_pandas(table, preserve_index=False, nthreads=1)
        return pyarrow.table(table)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = "; ".join(map(str, error.args))
        raise DatasetError.at(
            "dataset", f"{place} cannot be read: {reason}; give each column one type"
        ) from error


def by_name(names: Iterable[str], make: Callable[[str], T]) -> dict[str, T]:
    """Returns what is made for each name; raises DatasetError with the defects of all."""
    found, defects = dict[str, T](), list[Defect]()
    for name in names:
        try:
            found[name] = make(name)
        except DatasetError as error:
            defects += error.defects
    refuse(defects, DatasetError)
    return found


def check_fraction(fraction: float) -> None:
    """Raises DatasetError for a part for testing that leaves nothing, or is nothing."""
    if not 0 < fraction < 1:
        raise DatasetError.at("dataset.test_fraction", f"must be between 0 and 1, not {fraction:g}")


def check_features(names: Sequence[str], label: str | None) -> None:
    """Raises DatasetError where a column is a feature twice, or the label is one."""
    for place, name in enumerate(names):
        if name == label or name in names[:place]:
            what = "is the label, which would tell the class" if name == label else "is there twice"
            raise DatasetError.at("dataset.features", f"column {name!r} {what}; leave it out")


def drawn(count: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Draws the rows for testing; at least one is, and one is not. Raises DatasetError."""
    if count < 2:
        raise DatasetError.at("dataset", "one row is too few to train and to test")
    chosen_rows = np.zeros(count, dtype=bool)
    chosen = min(max(1, round(count * fraction)), count - 1)
    chosen_rows[generator(seed, "test_fraction").permutation(count)[:chosen]] = True
    return chosen_rows


def loaded(
    features: Sequence[Array], labels: Sequence[Array], groups: Sequence[Array] | None, classes: int,
    names: Sequence[str], standardized: Array | None = None, standardize: Standardize = "all",
) -> LoadedDataset:  # fmt: skip
    """Returns rows to train, to test and, if there are any, to validate with; `names`: of the features.

    All are normalized by the training rows.

    `standardized`: which features are normalized, of the shape of a row; None: all.
    """
    # Of one type: what is not exact in 32 bits has 64 until it is normalized.
    wide = np.result_type(*features)
    shape = features[0].shape[1:]
    chosen = np.broadcast_to(True if standardized is None else standardized, shape) & (standardize != "none")
    mean, std = np.zeros(shape), np.ones(shape)
    if chosen.any():
        # A choice of all would be a copy.
        found = mean_and_deviation(features[0] if chosen.all() else features[0][:, chosen])
        mean[chosen], std[chosen] = (values.reshape(-1) for values in found)
    center, scale = (torch.from_numpy(np.asarray(of, dtype=wide)) for of in (mean, std))
    train, test, *validation = (
        Samples(
            torch.from_numpy(np.ascontiguousarray(features[part], dtype=wide)),
            torch.from_numpy(labels[part]), center, std=scale,
            groups=None if groups is None else torch.from_numpy(groups[part]),
        )
        for part in range(len(features))
    )  # fmt: skip
    return LoadedDataset(
        train,
        test,
        classes,
        shape=tuple(train.inputs.shape[1:]),
        names=tuple(names),
        standardized=torch.from_numpy(chosen.copy()),
        by_node=standardize == "node",
        validation=validation[0] if validation else None,
    )


def joined(columns: Mapping[str, Array]) -> tuple[Array, list[str]]:
    """The rows of these columns side by side, and the column of each of their numbers.

    A single column keeps the shape of its rows.
    """
    rows = {name: column.reshape(len(column), -1) for name, column in columns.items()}
    names = [name for name, column in rows.items() for _ in range(column.shape[1])]
    alone = next(iter(columns.values()))
    if len(columns) == 1 and alone.ndim > 1:
        return alone, names
    return np.concatenate(list(rows.values()), axis=1), names


def places(columns: Sequence[Array]) -> tuple[list[Array], Array]:
    """Each value by its place among all distinct ones of the first array, then of the others; and these."""
    together = np.concatenate(columns)
    if together.dtype.kind == "f" and all(column.dtype.kind in "iu" for column in columns):
        # numpy joins whole numbers with and without sign as floats, which merge large ones.
        together = np.concatenate([column.astype(object) for column in columns])
    try:
        values, indices = np.unique(together, return_inverse=True)
    except TypeError as error:
        raise DatasetError.at("dataset.test_path", "texts in one file are numbers in the other") from error
    edges = np.cumsum([len(column) for column in columns])[:-1]
    return [part.astype(np.int64) for part in np.split(indices, edges)], values


def numbered(
    columns: Sequence[Array], name: str, option: str = "dataset.test_path"
) -> tuple[list[Array], tuple[str, ...]]:
    """Classes by the order of their names or numbers, and these; raises DatasetError.

    `option`: the one that names the last of the tables.
    """
    for column in columns:
        if column.ndim > 1 or (column.dtype.kind == "f" and (column % 1 != 0).any()):
            defect = "several values in a row" if column.ndim > 1 else column[column % 1 != 0].tolist()[0]
            raise DatasetError.at(
                "dataset.label", f"{name} has {defect}, which is no class; see dataset.predict"
            )
    labels, values = places(columns)
    first = dict[str, str]()
    for value in filter(lambda value: isinstance(value, str), values.tolist()):
        if (other := first.setdefault(value.strip(), value)) != value:
            raise DatasetError.at(
                "dataset.label",
                f"{name} has {other!r} and {value!r}, one class with other blanks; remove them",
            )
    missing = np.setdiff1d(np.arange(len(values)), labels[0])
    if len(missing):
        raise DatasetError.at(option, f"{name} has {values[missing[0]]!s}, which no training row has")
    return labels, tuple(map(text_of, values))


def _membership(columns: Sequence[Column]) -> list[Array]:
    """Whether each row is in the class that a column stands for, 1 or 0; raises DatasetError."""
    found = []
    for column in columns:
        places = text_places(column, [0, 1, False, True])
        if (places < 0).any():
            row = int((places < 0).argmax())
            what = f"has {column.decoded[row]!s} in row {row + 1}, but of several labels each is 0 or 1"
            raise column.error(f"{what}; set dataset.predict: number for numbers")
        found.append(places % 2)
    return found


def _categories(inputs: Sequence[Inputs]) -> dict[str, range]:
    """The inputs of each column of which nothing was computed but its categories, and with names apart."""
    ends = [*accumulate(one.count for one in inputs)]
    times = Counter(name for one in inputs for name in one.names)
    return {
        one.name: range(end - one.count, end)
        for one, end in zip(inputs, ends, strict=True)
        if one.kind == "category"
        and one.fitted == ("categories",)
        and all(times[name] == 1 for name in one.names)
    }


def _fitted(inputs: Sequence[Inputs], categories: Collection[str]) -> Iterator[str]:
    """What was computed from training rows; `categories`: columns that stand by themselves."""
    if categories:
        yield values_of(categories)
    if names := [one.name for one in inputs if "categories" in one.fitted and one.name not in categories]:
        yield values_of(names)
    for what, text, remedy in (
        ("frequent", "which values are frequent in", "leave out max_categories"),
        ("fill", "what fills rows without a value in", "set a number as missing"),
    ):
        if names := [one.name for one in inputs if what in one.fitted]:
            yield f"{text} {shortened(', '.join(names))} ({remedy})"


def _public(settings: Mapping[str, ColumnSettings]) -> Iterator[str]:
    """What the options say about columns that would be computed from training rows else."""
    for what, known in (
        ("the values of", [name for name, one in settings.items() if one.values]),
        ("mean and deviation of", [name for name, one in settings.items() if one.mean is not None]),
    ):
        if known:
            yield f"{what} {shortened(', '.join(known))} (dataset.columns)"


def _notices(inputs: Sequence[Inputs], dropped: int) -> Iterator[str]:
    if dropped:
        yield f"dataset: {counted(dropped, 'row')} without a value left out (missing: drop)"
    if unknown := [f"{one.name} in {counted(one.unknown, 'row')}" for one in inputs if one.unknown]:
        yield f"dataset: test rows have categories that no input stands for: {', '.join(unknown)}"
