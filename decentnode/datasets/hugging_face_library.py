"""Datasets of the Hugging Face library `datasets` as they are in memory; nothing here imports it."""

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from decentnode.datasets.base import IGNORED
from decentnode.datasets.columns import Choice, Name, PartColumns, column, features_joined, label_column
from decentnode.datasets.hugging_face import is_list, list_lengths
from decentnode.datasets.per_step import DatasetRows
from decentnode.datasets.ragged import Ragged, Rows
from decentnode.errors import DatasetError

R = TypeVar("R", bound=DatasetRows)


def is_of_library(given: Any) -> bool:
    """Whether it is a Dataset with rows; a DatasetDict is a mapping, an IterableDataset one of torch."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(given, getattr(library, "Dataset", ()))


def has_transform(given: Any) -> bool:
    """Whether rows are what a function makes of them when they are read (`set_transform`)."""
    return bool(given.format["type"] == "custom")


def chosen(given: Any, choice: Choice) -> Choice:
    """The choice with the label that is described as classes, where there is one alone and nobody says it."""
    names = [name for name, feature in given.features.items() if hasattr(feature, "names")]
    return choice if choice.label or len(names) != 1 else Choice(choice.inputs, names[0])


def class_names_of(given: Any, label: Name) -> tuple[str, ...]:
    """The names of the classes of a column, where it is described as classes."""
    return tuple(getattr(given.features.get(label), "names", None) or ())


def columns_of_library(given: Any, choice: Choice) -> PartColumns:
    """The columns of a Dataset; raises DatasetError."""
    what = "the Dataset"
    if not len(given):
        raise DatasetError.at("dataset", f"{what} has no samples")
    kinds: dict[Name, Any] = {
        name: "" if str(getattr(feature, "dtype", "")).endswith("string") else None
        for name, feature in given.features.items()
    }
    inputs, label, texts = chosen(given, choice).of(kinds, what)
    notices = [f"dataset: column {name!r} is left out, as it has texts" for name in texts]
    if text := next((name for name in inputs if kinds[name] == ""), None):
        raise DatasetError.at("dataset.inputs", f"column {text!r} has texts; tokenize them with map")
    rows, joined = features_joined({name: _input(given, str(name)) for name in inputs})
    labels = label_column(_labels(given, str(label)), f"labels of {what}")
    names = class_names_of(given, label)
    return PartColumns(rows, labels, names, notices=(*notices, *joined))


def described_rows(rows: R) -> R:
    """Rows with the names of their classes, where the library describes them."""
    if isinstance(getattr(rows.dataset, "features", None), Mapping):
        rows.class_names = class_names_of(rows.dataset, rows.form.label)
    return rows


def _input(given: Any, name: str) -> Rows:
    if type(given.features[name]).__name__ == "Image":
        return column(given.select_columns([name]).with_format(None)[:][name], f"column {name!r}")
    return column(_values(given, name, fill=0), f"column {name!r}")


def _labels(given: Any, name: str) -> Any:
    if type(given.features[name]).__name__ == "Image":
        return given.select_columns([name]).with_format(None)[:][name]
    values = _values(given, name, fill=IGNORED)
    return values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values


def _values(given: Any, name: str, fill: int) -> Any:
    """A column as an array, or as Ragged where it has lists of ids of unequal length."""
    table = given.select_columns([name]).with_format("arrow")[:]
    values = table.column(name).combine_chunks()
    if values.null_count:
        row = values.is_null().to_pylist().index(True)
        raise DatasetError.at("dataset", f"column {name!r} has no value in row {row}; leave such rows out")
    if not is_list(values):
        is_plain = not str(values.type).startswith("extension")
        return values.to_numpy(zero_copy_only=False) if is_plain else _arrays(given, name)
    inner = values.flatten()
    if is_list(inner):
        return _arrays(given, name)
    lengths, flat = list_lengths(values), np.array(inner)
    if len({*lengths.tolist()}) == 1:
        return flat.reshape(len(values), -1)
    if flat.dtype.kind not in "iub":
        problem = f"column {name!r} has lists of {lengths.min()} to {lengths.max()} numbers"
        raise DatasetError.at("dataset", f"{problem}; all must have as many, or be ids")
    if not lengths.min():
        problem = f"column {name!r} has no ids in row {int(lengths.argmin())}"
        raise DatasetError.at("dataset", f"{problem}; leave such rows out")
    sizes = torch.from_numpy(lengths)
    return Ragged(torch.from_numpy(flat.astype(np.int64)), sizes.cumsum(0) - sizes, sizes, fill)


def _arrays(given: Any, name: str) -> Any:
    """A column of arrays of several dimensions."""
    return np.stack([*given.select_columns([name]).with_format("numpy")[:][name]])
