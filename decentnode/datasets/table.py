"""Rows of tables: CSV, Parquet and NPZ files."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from decentnode.core.registry import DATASETS, guess
from decentnode.core.rng import generator
from decentnode.datasets import samples
from decentnode.datasets.base import Dataset, LoadedDataset, Samples, merges
from decentnode.datasets.text import check_path
from decentnode.errors import DatasetError

NPZ = ".npz"
PARQUET = (".parquet", ".pq")
UNNAMED = re.compile(r"|unnamed: \d+(\.\d+)?|__index_level_\d+__|level_\d+", re.IGNORECASE)
"""Names of a column that has none: those that pandas and R write and read for the index of the rows."""
NUMBER = r"(no|nr|num|number|code|key|index)\.?"
ROW = "sample|case|row|record|serial|patient|subject|instance|entry|obs|observation"
KEY = re.compile(
    rf"(?i:index|idx|#|sl?\.? ?no\.?|{NUMBER}|row[ _]?names?|({ROW})([ _.]?(code[ _.])?{NUMBER})?"
    r"|(\w+[ _])?(row)?ids?)|\w*[a-z]I[dD]"
)
"""Usual names of a column that tells rows apart."""
SEPARATOR = re.compile(r"[;\t|]")
"""What separates columns in files that are no CSV."""
SAMPLE_FEATURES = 8

Array = NDArray[Any]
ByName = Mapping[str, Array]
"""Columns by name; those of NPZ files may have several numbers in a row."""


@DATASETS.register("table", "csv", "parquet")
@dataclass(kw_only=True)
class TableFile(Dataset):
    """Rows of a CSV, Parquet or NPZ file, one sample each ("tidy data"; Wickham, 2014).

    Features are numbers, normalized by the training rows. Classes are numbered in the order of their names or
    numbers. Needs pyarrow, apart from NPZ files.
    """

    path: Path | None = None
    """The file; not needed for a sample."""
    label: str = "label"
    """The column of the labels."""
    features: tuple[str, ...] | None = None
    """The columns of the features; null: all others. One array of an NPZ file keeps its shape."""
    group: str | None = None
    """The column of the groups, for the partition `natural`; null: there are none."""
    predict: Literal["class", "number"] = "class"
    """number: the label is a number; use a task such as `rating`."""
    test_path: Path | None = None
    """A file with the rows to test with; null: a fraction of the rows of `path`."""
    test_fraction: float = 0.2
    """The rows to test with, drawn by the seed, where there is no test file."""

    def __post_init__(self) -> None:
        check_path(self.path, self)
        check_fraction(self.test_fraction)

    @property
    def steps(self) -> str:
        return "any CSV, Parquet or NPZ file serves; name it as dataset.path"

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        suffix = (self.path or Path("x.csv")).suffix.lower()
        files = {"path": directory / f"train{suffix}"}
        if self.test_path is not None:
            files["test_path"] = directory / f"test{self.test_path.suffix.lower()}"
        names = self.features or tuple(f"feature_{i}" for i in range(SAMPLE_FEATURES))
        for seed, file in enumerate(files.values(), 1):
            made = samples.columns(samples.IMAGES, len(names), self.predict == "number", seed=seed)
            table = dict(zip(names, made.values.T, strict=True)) | {self.label: made.labels}
            write_table(file, table | ({self.group: made.groups} if self.group else {}))
        return files

    def read(self, seed: int) -> LoadedDataset:
        tables = [self._table(path) for path in (self.path, self.test_path) if path is not None]
        labels, classes = self._labels([self._column(*table, self.label, "label") for table in tables])
        groups = self._groups(tables)
        # The columns of the training file, by their names: the test file may have them in another order.
        names = self._names(*tables[0])
        columns = [{name: self._numbers(*table, name) for name in names} for table in tables]
        for name in names:
            shape, *others = (part[name].shape[1:] for part in columns)
            if others and others != [shape]:
                raise DatasetError.at(
                    "dataset.test_path",
                    f"{self.test_path}: rows of {name!r} have the shape {others[0]}, in {self.path} {shape}",
                )
        features = [joined(part)[0] for part in columns]
        if len(tables) == 1:
            is_test = drawn(len(labels[0]), self.test_fraction, seed)
            split = [np.flatnonzero(~is_test), np.flatnonzero(is_test)]
            features, labels = ([arrays[0][rows] for rows in split] for arrays in (features, labels))
            groups = groups and [groups[0][rows] for rows in split]
        return loaded(features, labels, groups, classes=classes, names=joined(columns[0])[1])

    def _table(self, path: Path) -> tuple[Path, ByName]:
        table = read_table(path)
        rows = {len(column) for column in table.values()}
        if not rows or rows == {0}:
            raise DatasetError.at("dataset.path", f"{path}: has no rows")
        if len(rows) > 1:
            raise DatasetError.at("dataset.path", f"{path}: its arrays have different numbers of rows")
        return path, table

    def _column(self, path: Path, table: ByName, name: str, option: str) -> Array:
        if name not in table:
            known = f"{guess(name, list(table))} (columns: {', '.join(table)})"
            raise DatasetError.at(f"dataset.{option}", f"{path} has no column {name!r}{known}")
        column = table[name]
        missing = (row for row, value in enumerate(column, 1) if value is None)
        if column.dtype == object and (row := next(missing, 0)):
            raise DatasetError.at("dataset.path", f"{path}: column {name!r} has no value in row {row}")
        return column

    def _names(self, path: Path, table: ByName) -> Sequence[str]:
        """The columns of the features."""
        if self.features is not None:
            check_features(self.features, self.label)
            return self.features
        names = [name for name in table if name not in (self.label, self.group)]
        if not names:
            raise DatasetError.at("dataset.features", f"{path} has no columns but label and group")
        # Rows are often in the order of their classes, or were before they were shuffled: then the number of
        # a row tells its class.
        for index in (name for name in names if _is_index(name, table[name])):
            raise DatasetError.at(
                "dataset.features",
                f"{path}: column {index!r} numbers the rows, as the index that pandas "
                f"writes; remove it (to_csv(..., index=False)), or name the features",
            )
        return names

    def _numbers(self, path: Path, table: ByName, name: str) -> Array:
        return numbers(self._column(path, table, name, option="features"), f"{path}: column {name!r}")

    def _labels(self, columns: Sequence[Array]) -> tuple[list[Array], int]:
        """The labels of each file, and the number of classes."""
        if self.predict == "number":
            values = [numbers(column, f"column {self.label!r}") for column in columns]
            if any(merges(part, part.astype(np.float32)).any() for part in values):
                raise DatasetError.at(
                    "dataset.label",
                    f"column {self.label!r}: distinct numbers are equal in 32 bits; subtract their mean",
                )
            return [part.astype(np.float32) for part in values], 1
        return numbered(columns, f"column {self.label!r}")

    def _groups(self, tables: Sequence[tuple[Path, ByName]]) -> list[Array] | None:
        if self.group is None:
            return None
        return places([self._column(*table, self.group, "group") for table in tables])[0]


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
    names: Sequence[str],
) -> LoadedDataset:  # fmt: skip
    """Returns training and test rows, normalized by the training rows; `names`: of the features."""
    # Of one type: what is not exact in 32 bits has 64 until it is normalized.
    wide = np.result_type(*features)
    mean, std = features[0].mean(0, dtype=np.float64), features[0].std(0, dtype=np.float64)
    # Rounding gives a column of one number a mean beside it, and a deviation that is not 0.
    std[(std == 0) | (features[0] == features[0][:1]).all(0)] = 1
    center, scale = (torch.from_numpy(np.asarray(of, dtype=wide)) for of in (mean, std))
    train, test = (
        Samples(
            torch.from_numpy(np.ascontiguousarray(features[part], dtype=wide)),
            torch.from_numpy(labels[part]), center, std=scale,
            groups=None if groups is None else torch.from_numpy(groups[part]),
        )
        for part in (0, 1)
    )  # fmt: skip
    return LoadedDataset(train, test, classes, shape=tuple(train.inputs.shape[1:]), names=tuple(names))


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


def numbers(column: Array, name: str) -> Array:
    """The values as floats, of 64 bits where 32 do not have them; raises DatasetError for the first without.

    Decimals are numbers, too.
    """
    if column.dtype.kind in "mM":
        raise DatasetError.at(
            "dataset.path", f"{name} has times, such as {column[0]}; write seconds, or leave it out"
        )
    try:
        values = column.astype(np.float64) if column.dtype.kind in "biufO" else None
    except (TypeError, ValueError):
        values = None
    if values is None:
        row, value = next(filter(_is_no_number, enumerate(column.tolist(), 1)), (1, column.tolist()[0]))
        raise DatasetError.at("dataset.path", f"{name} has {value!r} in row {row}, which is no number")
    wrong = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
    if len(wrong):
        raise DatasetError.at(
            "dataset.path", f"{name} has no finite number in row {wrong[0] + 1}; fill it, or leave it out"
        )
    if column.dtype.kind != "f" and merges(column, values).any():
        raise DatasetError.at(
            "dataset.path", f"{name} has distinct numbers that are equal in 64 bits; subtract the least one"
        )
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return narrow if np.array_equal(narrow, values) else values


def _is_index(name: str, column: Array) -> bool:
    """Whether a column is an index of the rows, by its name and whole numbers, in any order."""
    if column.ndim > 1 or len(column) < 2 or column.dtype.kind not in "iuf":
        return False
    if (np.floor(column) != column).any():
        return False
    # After a split, some numbers are elsewhere; where tables were joined, some are there twice.
    if UNNAMED.fullmatch(name):
        return True
    distinct = len(np.unique(column)) == len(column)
    # R reads the column without a name as X, which may be a coordinate as well.
    has_gaps = np.ptp(column) + 1 != len(column)
    return distinct and bool(KEY.fullmatch(name) or (name == "X" and not has_gaps))


def _is_no_number(cell: tuple[int, Any]) -> bool:
    try:
        float(cell[1])
    except (TypeError, ValueError):
        return True
    return False


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


def numbered(columns: Sequence[Array], name: str) -> tuple[list[Array], int]:
    """Classes by the order of their names or numbers, and how many there are; raises DatasetError."""
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
        raise DatasetError.at(
            "dataset.test_path", f"{name} has {values[missing[0]]!s}, which no training row has"
        )
    return labels, len(values)


def read_table(path: Path) -> ByName:
    """The columns of a file; raises DatasetError."""
    try:
        if path.suffix.lower() == NPZ:
            if not zipfile.is_zipfile(path):
                raise ValueError("it is no zip file; it may be cut off")
            with np.load(path, allow_pickle=False) as arrays:
                return {name: np.atleast_1d(arrays[name]) for name in arrays.files}
        return _read_with_pyarrow(path)
    except OSError as error:
        raise DatasetError.at("dataset.path", f"{path}: {error.strerror or error}") from error
    except (
        ValueError,
        KeyError,
        EOFError,
        NotImplementedError,
        zipfile.BadZipFile,
    ) as error:  # pyarrow's are ValueErrors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError.at("dataset.path", f"{path}: cannot be read: {reason}") from error


def _read_with_pyarrow(path: Path) -> ByName:
    check_pyarrow("table")
    from pyarrow import csv, parquet

    is_parquet = path.suffix.lower() in PARQUET
    # Without threads, because nodes are forked from this process.
    if is_parquet:
        table = parquet.read_table(path, use_threads=False)
    else:
        # A text that is missing is none, as a number that is; quoted, "NA" is a text.
        convert = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        options = csv.ReadOptions(use_threads=False)
        table = csv.read_csv(path, read_options=options, convert_options=convert)
        names = table.column_names
        if len(names) == 1 and (found := SEPARATOR.search(names[0])):
            raise ValueError(f"its columns are separated by {found.group()!r}; write it with commas")
    columns = {name: table.column(name) for name in table.column_names}
    return {
        name: np.array([*column.to_pylist(), None], dtype=object)[:-1]
        if column.null_count
        else column.to_numpy()
        for name, column in columns.items()
    }


def check_pyarrow(name: str) -> None:
    """Raises DatasetError where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise DatasetError.at("dataset", f"{name} needs pyarrow; run: pip install 'decentnode[tasks]'")


def write_table(file: Path, table: ByName) -> None:
    """Writes columns in the format that the suffix names."""
    if file.suffix == NPZ:
        arrays: dict[str, Any] = dict(table)
        np.savez(file, **arrays)
        return
    check_pyarrow("table")
    import pyarrow
    from pyarrow import csv, parquet

    (parquet.write_table if file.suffix in PARQUET else csv.write_csv)(pyarrow.table(table), file)
