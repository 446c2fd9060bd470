"""The columns of a part of the samples, from arrays, tensors, lists, rows, images and texts of Python."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import guess
from decentnode.datasets.base import IGNORED
from decentnode.datasets.ragged import Ragged, Rows
from decentnode.errors import DatasetError

Name = str | int
"""The name of a column, or its place where samples are tuples."""
LAST = -1
"""The place of the label in a tuple."""
LABELS = ("label", "labels", "target", "targets", "y")
"""What columns of labels are called where nobody says which one it is."""
COLORS = (1, 3, 4)
"""Channels of usual images."""
MOST_LISTED = 8
FORMS = (
    "a dataset from Python is (train, test), each of them (inputs, labels) as tensors or arrays, a Dataset "
    "of such rows, a mapping of columns with one called label, or Samples"
)


@dataclass(frozen=True)
class PartColumns:
    """The columns of one part of a dataset."""

    inputs: Mapping[Name, Rows]
    """The arguments of the network."""
    labels: Any
    """A tensor, Ragged, or a list of what stands for classes, such as texts."""
    class_names: tuple[str, ...] = ()
    """The names of classes that are numbers already."""
    notices: tuple[str, ...] = ()
    """What was decided about columns, a line each."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the inputs; empty where they have none."""
        return names_in(self.inputs)


@dataclass(frozen=True)
class Choice:
    """Which columns are inputs, and which one has the labels, as far as the user says it."""

    inputs: tuple[str, ...] | None = None
    label: str | None = None

    def of(self, row: Mapping[Name, Any], what: str) -> tuple[list[Name], Name, list[Name]]:
        """The columns of inputs, that of the labels, and texts that are left out; raises DatasetError.

        `row`: a value of each column; `what`: what has the columns, for messages.
        """
        names = [*map(str, row)]
        listed = ", ".join(names[:MOST_LISTED]) + (", ..." if len(names) > MOST_LISTED else "")
        for option, name in [("label", self.label), *(("inputs", name) for name in self.inputs or ())]:
            if name is not None and name not in row:
                known = (
                    f"{guess(name, names)} (columns: {listed})" if LAST not in row else "; rows are tuples"
                )
                raise DatasetError.at(f"dataset.{option}", f"{what} has no column {name!r}{known}")
        label = self.label if self.label is not None else next((n for n in (LAST, *LABELS) if n in row), None)
        if label is None:
            problem = f"{what} has no column label; name the one that has it (columns: {listed})"
            raise DatasetError.at("dataset.label", problem)
        if self.inputs is not None:
            if label in self.inputs:
                raise DatasetError.at("dataset.inputs", f"{label!r} is the label, which would tell the class")
            return [*self.inputs], label, []
        inputs = [name for name in row if name != label]
        texts = [name for name in inputs if isinstance(row[name], str)]
        if texts == inputs and label == LAST:
            raise DatasetError.at("dataset", f"the inputs of {what} are texts; tokenize them")
        if texts == inputs:
            problem = f"{what} has no column of numbers or images beside {label!r} (columns: {listed})"
            raise DatasetError.at("dataset", f"{problem}; tokenize texts with map")
        return [name for name in inputs if name not in texts], label, texts


def names_in(inputs: Iterable[Name]) -> tuple[str, ...]:
    """The names of inputs; none where one is a place."""
    names = tuple(name for name in inputs if isinstance(name, str))
    return names if len(names) == len([*inputs]) else ()


def taken_apart(row: Any) -> dict[Name, Any] | None:
    """The values of a row by name, or by place with the label as LAST; None for what is no row.

    A row is a mapping, or a tuple whose last value is the label: (x, y), (x1, x2, y), ((x1, x2), y) or
    ({"a": x1, "b": x2}, y). The columns of a part are taken apart in the same way.
    """
    if isinstance(row, Mapping):
        return dict(row)
    if not isinstance(row, list | tuple) or len(row) < 2:
        return None
    *inputs, label = row
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return {**inputs[0], LAST: label}
    if (
        len(inputs) == 1
        and isinstance(inputs[0], tuple)
        and not all(isinstance(x, Number) for x in inputs[0])
    ):
        inputs = [*inputs[0]]
    return {**dict(enumerate(inputs)), LAST: label}


def columns_of(part: Mapping[Name, Any], choice: Choice, what: str) -> PartColumns:
    """The columns of a part from its arrays or lists; raises DatasetError."""
    if odd := next((values for values in part.values() if not hasattr(values, "__len__")), None):
        raise DatasetError.at("dataset", f"{what} has {type(odd).__name__} as a column; {FORMS}")
    counts = {name: len(values) for name, values in part.items()}
    if len({*counts.values()}) > 1:
        (first, count), *others = counts.items()
        other = next(name for name, size in others if size != count)
        if LAST in counts and len(counts) == 2:
            raise DatasetError.at("dataset", f"a part has {counts[0]} inputs and {counts[LAST]} labels")
        raise DatasetError.at(
            "dataset", f"{what}: column {first!r} has {count} rows, column {other!r} {counts[other]}"
        )
    if not next(iter(counts.values()), 0):
        raise DatasetError.at("dataset", f"{what} has no samples")
    inputs, label, texts = choice.of({name: _first(values) for name, values in part.items()}, what)
    notices = [f"dataset: column {name!r} is left out, as it has texts" for name in texts]
    rows = {name: column(part[name], f"{place(name)} of {what}") for name in inputs}
    rows, joined = features_joined(rows)
    return PartColumns(rows, label_column(part[label], f"labels of {what}"), notices=(*notices, *joined))


def _first(values: Any) -> Any:
    return (
        values.iloc[0] if hasattr(values, "iloc") else values[0] if hasattr(values, "__getitem__") else None
    )


def are_features(numbers: Mapping[Name, Rows]) -> bool:
    """Whether numbers, or columns of them, are one input: each has a name, and some are floats.

    Whole numbers alone are ids, and stay arguments of their own.
    """
    has_names = all(isinstance(name, str) for name in numbers)
    return has_names and any(values.is_floating_point() for values in numbers.values())


def features_joined(rows: dict[Name, Rows]) -> tuple[dict[Name, Rows], list[str]]:
    """The columns, joined to one input of shape (n, columns) where they are `are_features`; and a notice."""
    numbers = [values for values in rows.values() if isinstance(values, Tensor) and values.dim() == 1]
    if len(numbers) < len(rows) or not are_features(rows):
        return rows, []
    joined = torch.stack([values.double() for values in numbers], 1)
    if torch.equal(joined.float().double(), joined):
        joined = joined.float()
    names = ", ".join(map(str, rows))
    return {0: joined}, [f"dataset: {names} are one input of {len(rows)} numbers"] if len(rows) > 1 else []


def place(name: Name) -> str:
    """How messages call the column of an input."""
    return f"column {name!r}" if isinstance(name, str) else "inputs" if not name else f"input {name + 1}"


def column(values: Any, name: str) -> Rows:
    """A column of inputs as a tensor, or Ragged for lists of ids of unequal length; raises DatasetError."""
    if isinstance(values, Ragged):
        return values
    if isinstance(values, list | tuple) and len(values) and _has_parts(values[0]):
        return stacked([value(one) for one in values], name)
    tensor = as_tensor(values)
    if tensor.dtype == torch.uint8 and tensor.dim() == 4:
        check_channels(tuple(tensor.shape))
    return in_usual_type(tensor)


def in_usual_type(tensor: Tensor) -> Tensor:
    """The tensor, in 32 bits where it has floats of fewer."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def check_channels(shape: tuple[int, ...]) -> None:
    """Raises DatasetError for images of 8 bits whose channels come last."""
    count, *_, last = shape
    if last in COLORS and shape[1] not in COLORS:
        wanted = (count, last, *shape[1:3])
        raise DatasetError.at(
            "dataset", f"images have the shape {shape}, not {wanted}; use inputs.permute(0, 3, 1, 2)"
        )


def label_column(values: Any, name: str) -> Any:
    """A column of labels: numbers as a tensor or Ragged, anything else as a list of what can be hashed."""
    if isinstance(values, Ragged | Tensor):
        return _label_type(values if isinstance(values, Ragged) else as_tensor(values))
    several = [*values] if isinstance(values, Sequence) else values
    if isinstance(several, list) and several and _has_parts(several[0]):
        labels = stacked([value(one) for one in several], name, fill=IGNORED)
        return _label_type(labels)
    array = np.array(several)
    if array.dtype.kind in "biufc" or array.ndim > 1:
        return _label_type(as_tensor(array if not isinstance(several, np.ma.MaskedArray) else several))
    names = array.tolist() if array.dtype.kind in "US" else [*several]
    for row, one in enumerate(names):
        try:
            hash(one)
        except TypeError as error:
            problem = f"the label of sample {row} is {type(one).__name__}, which is no class"
            raise DatasetError.at("dataset.label", problem) from error
        if one is None or one != one:
            raise DatasetError.at("dataset.label", f"sample {row} has no label; leave such samples out")
    return names


def _label_type(labels: Rows) -> Rows:
    if not isinstance(labels, Tensor):
        return labels
    return labels.float() if labels.is_floating_point() else labels.long()


def _has_parts(one: Any) -> bool:
    """Whether a value is a tensor, an array, an image or a list, and no single number or text."""
    return is_image(one) or isinstance(one, Tensor | list | tuple) or (
        isinstance(one, np.ndarray) and one.ndim > 0
    )  # fmt: skip


def is_image(one: Any) -> bool:
    """Whether it is an image of Pillow, which is not imported to find out."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(one, module.Image)


def value(one: Any) -> Tensor:
    """One value of a column as a tensor; images as (channels, height, width), or (height, width) in gray."""
    if is_image(one):
        if one.mode not in ("L", "RGB", "RGBA"):
            one = one.convert("L" if one.mode in ("1", "I;16") else "RGB")
        pixels = torch.from_numpy(np.array(one))
        return pixels if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()
    return as_tensor(one)


def stacked(values: Sequence[Tensor], name: str, fill: int = 0) -> Rows:
    """Values of one shape as a tensor; lists of ids of unequal length as Ragged. Raises DatasetError."""
    shapes = [*dict.fromkeys(tuple(one.shape) for one in values)]
    if len(shapes) > 1 and {len(shape) for shape in shapes} == {2, 3} and values[0].dtype == torch.uint8:
        # Gray images among those with colors.
        colors = next(shape[0] for shape in shapes if len(shape) == 3)
        values = [one.expand(colors, *one.shape) if one.dim() == 2 else one for one in values]
        shapes = [*dict.fromkeys(tuple(one.shape) for one in values)]
    if len(shapes) == 1:
        return in_usual_type(torch.stack([*values]))
    if (0,) in shapes:
        row = [len(one) for one in values if one.dim() == 1].index(0)
        raise DatasetError.at("dataset", f"{name}: row {row} is empty; leave such samples out")
    if all(len(shape) == 1 for shape in shapes) and not any(one.is_floating_point() for one in values):
        lengths = torch.tensor([len(one) for one in values])
        flat = torch.cat([one.long() for one in values])
        return Ragged(flat, lengths.cumsum(0) - lengths, lengths, fill)
    what = f"{name} have the shapes {shapes[0]} and {shapes[1]}"
    remedy = "all must have one: resize images, pad rows"
    raise DatasetError.at("dataset", f"{what}; {remedy}, or use ids, which may be of unequal length")


def as_tensor(values: Any) -> Tensor:
    """The numbers of an array, a list or a tensor, on the CPU; raises DatasetError."""
    if np.ma.is_masked(values):
        raise DatasetError.at("dataset", "an array has masked values; fill them: array.filled(...)")
    try:
        if isinstance(values, Tensor):
            tensor = values.detach().cpu()
        else:
            array = np.array(values)
            # Files of other machines (FITS, IDX) have other byte orders.
            tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError, RuntimeError) as error:
        remedy = "texts are ids first: tokenize them" if _are_texts(values) else FORMS
        if hasattr(values, "columns"):
            remedy = "its texts are read in a table: {'train': X.assign(label=y), 'label': 'label'}"
        raise DatasetError.at(
            "dataset", f"{type(values).__name__} is no tensor of numbers; {remedy}"
        ) from error
    if tensor.layout != torch.strided or tensor.is_complex():
        kind = "complex; give real and imaginary parts" if tensor.is_complex() else "sparse; call .to_dense()"
        raise DatasetError.at("dataset", f"a tensor is {kind}")
    return tensor


def _are_texts(values: Any) -> bool:
    try:
        return np.array(values).dtype.kind in "UTO"
    except ValueError:  # lists of unequal length are no array at all
        return False


def in_order(values: Iterable[Any]) -> list[Any]:
    """The distinct values, sorted; those of different types by their types first."""
    distinct = {*values}
    try:
        return sorted(distinct)
    except TypeError:
        return sorted(distinct, key=lambda one: (type(one).__name__, str(one)))


def classes_in(labels: Sequence[Rows], ignored: int = IGNORED) -> int:
    """The number of classes of labels that are numbers from 0 on; 1 for numbers to predict."""
    if any(part.is_floating_point() for part in labels):
        return 1
    # In 64 bits, because torch has no comparison of 16 without sign.
    flat = [part.flatten().long() for part in labels]
    counted = (part[(part != IGNORED) & (part != ignored)] for part in flat)
    return 1 + max((int(part.max()) for part in counted if part.numel()), default=0)


def distinct_labels(labels: Sequence[Tensor]) -> NDArray[Any]:
    """The distinct labels that count, ascending."""
    together = torch.cat([part.flatten() for part in labels])
    distinct: NDArray[Any] = np.unique(together[together != IGNORED].numpy())
    return distinct
