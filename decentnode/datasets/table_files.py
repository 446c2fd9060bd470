"""Tables as they are read: CSV, Parquet, Arrow and NPZ files, and those that Python has."""

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from decentnode.core.registry import guess
from decentnode.core.text import first_line
from decentnode.datasets.table_columns import Array, Column, Kind, check_pyarrow, is_number, text_of
from decentnode.errors import DatasetError

NPZ = ".npz"
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
WORKBOOKS = (".xlsx", ".xls", ".ods")
SEPARATOR = re.compile(r"[;\t|]")
"""What separates columns in files that are no CSV."""
BLOCK = 1 << 28
"""The bytes of a CSV file by which the types of its columns are found."""
PACKED = 32
"""How much larger a packed file may be than it is on disk."""


@dataclass(frozen=True)
class TextFormat:
    """How a CSV file is written."""

    separator: str = ","
    encoding: str = "utf8"
    decimal: str = "."
    names: Sequence[str] | None = None
    """The names of its columns, where its first line has none."""


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table whose columns are converted when they are asked for."""

    place: str
    """Where it is from, for messages."""
    option: str
    """The option that names it."""
    columns: Mapping[str, Callable[[], Column]]
    """What converts each column."""

    def __post_init__(self) -> None:
        if not self.columns:
            raise self.error("has no columns")

    def error(self, problem: str) -> DatasetError:
        """Returns the error of a table with this problem."""
        return DatasetError.at(self.option, f"{self.place}: {problem}")

    def unknown(self, name: str, option: str) -> DatasetError:
        """Returns the error of a column that the table does not have; `option` names the column."""
        known = f"{guess(name, list(self.columns))} (columns: {', '.join(self.columns)})"
        # A file without names has the values of its first row there.
        numbers = [known for known in self.columns if is_number(known)]
        if numbers and self.option == "dataset.path":
            known += f"; if {numbers[0]!r} is no name but a value, name the columns in dataset.names"
        return DatasetError.at(f"dataset.{option}", f"{self.place} has no column {name!r}{known}")

    def column(self, name: str, option: str) -> Column:
        """Returns a column; raises DatasetError where there is none, or no row. `option` names the column."""
        if name not in self.columns:
            raise self.unknown(name, option)
        column = self.columns[name]()
        if not len(column):
            raise self.error("has no rows")
        return column


def read_table(path: Path, option: str, text_format: TextFormat) -> RawTable:
    """Reads a file; raises DatasetError."""
    try:
        if path.suffix.lower() == NPZ:
            return _arrays(path, option)
        return arrow_table(_read_with_pyarrow(path, text_format), str(path), option)
    except OSError as error:
        raise DatasetError.at(option, f"{path}: {error.strerror or error}") from error
    except (
        ValueError,
        KeyError,
        EOFError,
        NotImplementedError,
        LookupError,
        zipfile.BadZipFile,
    ) as error:  # pyarrow's are ValueErrors
        reason = first_line(error)
        if "invalid UTF8 data" in reason:
            reason = "its names are no UTF-8; set dataset.encoding: latin1, or what it is written in"
        raise DatasetError.at(option, f"{path}: cannot be read: {reason}") from error


def _arrays(path: Path, option: str) -> RawTable:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no zip file; it may be cut off")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: np.atleast_1d(file[name]) for name in file.files}
    if len({len(array) for array in arrays.values()}) > 1:
        raise DatasetError.at(option, f"{path}: its arrays have different numbers of rows")

    def column(name: str, values: Array) -> Column:
        missing = np.isnat(values) if values.dtype.kind in "mM" else np.zeros(len(values), bool)
        if values.dtype.kind != "U" or values.ndim > 1:
            return Column(name, str(path), option, values, missing)
        texts, places = np.unique(values, return_inverse=True)
        return Column(name, str(path), option, places, missing, texts.astype(object))

    return RawTable(
        str(path), option, {name: partial(column, name, values) for name, values in arrays.items()}
    )


def _read_with_pyarrow(path: Path, text_format: TextFormat) -> Any:
    check_pyarrow("table")
    import pyarrow
    from pyarrow import csv, ipc, parquet

    # Without threads, because nodes are forked from this process.
    suffix = path.suffix.lower()
    if suffix in PARQUET:
        return parquet.read_table(path, use_threads=False)
    if suffix in ARROW:
        with pyarrow.memory_map(str(path)) as file:
            options = ipc.IpcReadOptions(use_threads=False)
            try:
                return ipc.open_file(file, options=options).read_all()
            except pyarrow.ArrowInvalid:
                file.seek(0)
                return ipc.open_stream(file, options=options).read_all()
    if suffix in WORKBOOKS:
        raise ValueError("it is a workbook; save its sheet as CSV")
    # A text that is missing is none, as a number that is; quoted, "NA" is a text.
    convert = csv.ConvertOptions(
        strings_can_be_null=True, quoted_strings_can_be_null=False, decimal_point=text_format.decimal
    )
    with path.open("rb") as start:
        if text_format.encoding == "utf8" and start.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise ValueError("it is UTF-16; set dataset.encoding: utf16")
    options = csv.ReadOptions(
        use_threads=False, encoding=text_format.encoding, column_names=text_format.names,
        block_size=min(BLOCK, max(1 << 20, PACKED * path.stat().st_size)),
    )  # fmt: skip
    parse = csv.ParseOptions(delimiter=text_format.separator, newlines_in_values=True)
    table = csv.read_csv(path, read_options=options, parse_options=parse, convert_options=convert)
    names = table.column_names
    if len(names) == 1 and (found := SEPARATOR.search(names[0])):
        raise ValueError(f"its columns are separated by {found[0]!r}; set dataset.separator: {found[0]!r}")
    return table


def arrow_table(table: Any, place: str, option: str, is_from_python: bool = False) -> RawTable:
    """Returns a table of pyarrow; raises DatasetError.

    `is_from_python`: whether numbers whose type is that of categories are categories.
    """
    twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    if twice:
        raise DatasetError.at(option, f"{place}: several columns are named {twice[0]!r}; rename all but one")
    return RawTable(
        place, option,
        {
            name: partial(_column, table.column(name), name, place, option, is_from_python)
            for name in table.column_names
        },
    )  # fmt: skip


def _column(chunks: Any, name: str, place: str, option: str, is_from_python: bool) -> Column:
    """Returns a column of pyarrow; raises DatasetError for types that are no numbers, texts or times."""
    import pyarrow
    from pyarrow import types

    missing = np.asarray(chunks.is_null(nan_is_null=True))
    kind = chunks.type
    if types.is_dictionary(kind) and (is_from_python or _is_text(kind.value_type)):
        declared: Kind | None = "ordered" if kind.ordered else "category"
        values, texts = _texts(chunks)
        return Column(
            name, place, option, values, missing, texts, order=tuple(texts) if kind.ordered else (),
            declared_kind=declared if is_from_python else None,
        )  # fmt: skip
    if _is_text(kind):
        values, texts = _texts(chunks.cast(pyarrow.large_string()).dictionary_encode())
        return Column(name, place, option, values, missing, texts)
    try:
        return Column(name, place, option, _values(chunks), missing)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise DatasetError.at(option, f"{place}: column {name!r} {first_line(error)}") from error


def _texts(chunks: Any) -> tuple[Array, Array]:
    """The place of each row's text among all, and these; rows without one have any place."""
    codes = chunks.unify_dictionaries().combine_chunks()
    texts = [text if isinstance(text, str) else text_of(text) for text in codes.dictionary.to_pylist()]
    return np.asarray(codes.indices.fill_null(0)).astype(np.int64), np.array(texts, object)


def _values(chunks: Any) -> Array:
    """The numbers or times of all rows, shape (n,), or (n, length) of lists; raises ValueError."""
    import pyarrow
    from pyarrow import compute, types

    kind = chunks.type
    if types.is_dictionary(kind):
        chunks, kind = chunks.cast(kind.value_type), kind.value_type
    if types.is_null(kind):
        return np.zeros(len(chunks))
    if (types.is_primitive(kind) and not types.is_temporal(kind)) or types.is_decimal(kind):
        filled = chunks.fill_null(pyarrow.scalar(0).cast(kind)) if chunks.null_count else chunks
        return np.asarray(filled.to_numpy())
    if types.is_time(kind):
        integers = chunks.cast(pyarrow.int32() if types.is_time32(kind) else pyarrow.int64())
        return np.asarray(integers.fill_null(0)).astype(f"timedelta64[{kind.unit}]")
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return np.asarray(chunks.to_numpy())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        rows = chunks.combine_chunks()
        lengths = np.unique(np.asarray(compute.list_value_length(rows)))
        if rows.null_count or len(lengths) > 1:
            raise ValueError("has lists of several lengths, or none in some rows; give all one length")
        return np.asarray(compute.list_flatten(rows)).reshape(len(rows), -1)
    if types.is_binary(kind) or types.is_large_binary(kind):
        raise ValueError("has bytes that are no UTF-8; set dataset.encoding: latin1, or how it is written")
    raise ValueError(f"has values of type {kind}, no numbers, texts or times; set its kind: skip")


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def write_table(file: Path, table: Mapping[str, Any]) -> None:
    """Writes columns in the format that the suffix names."""
    if file.suffix == NPZ:
        arrays: dict[str, Any] = dict(table)
        np.savez(file, **arrays)
        return
    check_pyarrow("table")
    import pyarrow
    from pyarrow import csv, feather, parquet

    content = pyarrow.table(dict(table))
    if file.suffix in PARQUET:
        parquet.write_table(content, file)
    elif file.suffix in ARROW:
        feather.write_feather(content, str(file))
    else:
        csv.write_csv(content, file)
