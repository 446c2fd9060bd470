"""Rows of a torch Dataset, read when a batch needs them: random transforms, files, more than memory holds.

What a row draws is seeded by the run's seed, the rank, the epoch and the index of the row. So a node that is
resumed, or whose step another process computes, reads the same bits. A test set is always read in one way.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from decentnode.core.rng import key, restored_generators, seed_generators
from decentnode.datasets.base import IGNORED, Reading, Samples
from decentnode.datasets.columns import (
    LAST,
    Choice,
    Name,
    are_features,
    in_usual_type,
    is_image,
    label_column,
    names_in,
    place,
    taken_apart,
    value,
)
from decentnode.datasets.ragged import LazyRows
from decentnode.errors import BadInput, DatasetError, explained

REPEATED_ROWS = 256
"""Rows that are read several times at the start, to find out whether they change."""
CHANGED: Reading = (1,)
"""The counters of another reading than the first, which has none."""
TARGETS = ("targets", "labels")
"""What datasets of torchvision call the labels of all rows."""


class RowReader(ABC):
    """Where the rows of samples come from that are not in memory."""

    @abstractmethod
    def read(self, places: Tensor, reading: Reading) -> tuple[Tensor, ...]:
        """The inputs of some rows, each of shape (rows, ...), and their labels; raises DatasetError."""

    def expect(self, places: Tensor, reading: Reading) -> None:  # noqa: B027
        """Is told which rows will be read next, and may read them ahead."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadSamples(Samples):
    """Samples whose rows are read for each batch; of them the labels alone may be in memory."""

    reader: RowReader
    places: Tensor
    """The row of each sample, shape (n,), int64."""
    numbers: Tensor | None = None
    """The numbers of classes instead of those that rows have (`relabelled`); None: these."""

    def rows(self, indices: Tensor, reading: Reading) -> tuple[Tensor, ...]:
        return self.numbered_rows(self.reader.read(self.places.index_select(0, indices), reading))

    def expect(self, indices: Tensor, reading: Reading) -> None:
        self.reader.expect(self.places.index_select(0, indices), reading)

    def numbered_rows(self, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Rows as the reader has them, with the numbers of classes that these samples have."""
        *fields, labels = rows
        if self.numbers is not None:
            labels = torch.where(labels == IGNORED, labels, self.numbers[labels.clamp(min=0)])
        return (*fields, labels)

    def relabelled(self, numbers: Tensor) -> Self:
        known = self if isinstance(self.labels, LazyRows) else super().relabelled(numbers)
        numbers = numbers if self.numbers is None else numbers[self.numbers]
        return replace(cast(Self, known), numbers=numbers)

    def subset(self, indices: Tensor) -> Self:
        return replace(cast(Self, super().subset(indices)), places=self.places[indices])


@dataclass(frozen=True)
class RowForm:
    """How rows are taken apart: which of their values are inputs, and which one is the label."""

    inputs: tuple[Name, ...]
    label: Name
    text_columns: tuple[Name, ...] = ()
    """Columns that are left out."""

    @classmethod
    def of(cls, row: Mapping[Name, Any], choice: Choice, what: str) -> "RowForm":
        """The form of a row; raises DatasetError."""
        inputs, label, texts = choice.of(row, what)
        return cls(tuple(inputs), label, tuple(texts))


@dataclass(eq=False)
class DatasetRows(RowReader):
    """The rows of a torch Dataset of the map style, whose rows have one form."""

    dataset: Any
    choice: Choice
    class_names: tuple[str, ...] = ()
    """The names of classes that are numbers already."""
    class_numbers: dict[Any, int] = field(default_factory=dict)
    """The number of each class that is no number; filled where all parts are known."""
    remark: str = ""
    """Why rows are read per step; empty: the user says so."""
    form: RowForm = field(init=False)
    kinds: list[tuple[tuple[int, ...], torch.dtype]] = field(init=False)
    """The shape and type of each value of a row, except a label that is no number."""

    def __post_init__(self) -> None:
        function = getattr(self.dataset, "func", self.dataset)
        self.name = getattr(function, "__name__", type(self.dataset).__name__)
        self.count = self._length()
        if not self.count:
            raise DatasetError.at("dataset", f"{self.name} has no samples")
        with restored_generators():
            self.form = RowForm.of(self._row(0, ()), self.choice, f"{self.name}[0]")
            *inputs, label = self.values(0)
        self.kinds = [(_of_image(tuple(one.shape), one.dtype), one.dtype) for one in inputs]
        by_name = dict(zip(self.form.inputs, inputs, strict=True))
        self.is_joined = not any(one.dim() for one in inputs) and are_features(by_name)
        """Whether the inputs are numbers of one input (`columns.features_joined`)."""
        if self.is_joined:
            self.kinds = [((len(inputs),), torch.float32)]
        self.label_kind = (
            (tuple(label.shape), label.dtype) if isinstance(label, Tensor) else ((), torch.int64)
        )

    def _length(self) -> int:
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError) as error:
            problem = f"{self.name} has no length; give it __len__, or tensors"
            raise DatasetError.at("dataset", problem) from error

    @cached_property
    def known_labels(self) -> list[Any]:
        """The labels of all rows: an attribute of the dataset, or read."""
        return self._labels_of_attribute() or [values[LAST] for values in self.all()]

    @property
    def labels(self) -> Any:
        """The labels as `PartColumns` has them."""
        return label_column(self.known_labels, f"labels of {self.name}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the inputs; empty where they have none."""
        return () if self.is_joined else names_in(self.form.inputs)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that are left out, a line each."""
        texts = self.form.text_columns
        return tuple(f"dataset: column {name!r} is left out, as it has texts" for name in texts)

    @property
    def notices(self) -> tuple[str, ...]:
        """What was decided about columns, a line each."""
        return tuple(filter(None, [*self.left_out, self.remark]))

    def values(self, index: int, reading: Reading = ()) -> list[Any]:
        """The inputs of a row as tensors, and its label as a tensor or as it is; raises DatasetError.

        Seeds the global generators, which who reads rows restores.
        """
        row, form = self._row(index, reading), self.form
        if missing := next((name for name in (*form.inputs, form.label) if name not in row), None):
            raise DatasetError.at("dataset", f"{self.name}[{index}] has no {missing!r}, which row 0 has")
        return [*(in_usual_type(value(row[name])) for name in form.inputs), label_of_row(row[form.label])]

    def _raw(self, index: int, reading: Reading) -> Any:
        """What the dataset has at an index."""
        seed, *counters = reading or (0,)
        seed_generators(key(seed, "row", *counters, index))
        return self.dataset[index]

    def _row(self, index: int, reading: Reading) -> dict[Name, Any]:
        try:
            row = self._raw(index, reading)
        except Exception as error:  # the user's own class may raise anything
            if isinstance(error, BadInput):
                raise
            raise DatasetError.at("dataset", f"{self.name}[{index}] raises {explained(error)}") from error
        parts = taken_apart(row)
        if parts is None:
            kind = f"{type(row).__name__} of {len(row)}" if isinstance(row, Sized) else type(row).__name__
            what = f"{self.name}[{index}] is {kind}, and no row (inputs, label)"
            raise DatasetError.at("dataset", f"{what}; return a tuple, or a dict with a label")
        return parts

    def read(self, places: Tensor, reading: Reading) -> tuple[Tensor, ...]:
        with restored_generators():
            rows = [self.fitting(index, self.values(index, reading)) for index in places.tolist()]
        kinds = [*self.kinds, self.label_kind]
        if not rows:
            return tuple(torch.empty(0, *shape, dtype=dtype) for shape, dtype in kinds)
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    def fitting(self, index: int, values: list[Any]) -> list[Tensor]:
        """The values of a row as batches have them; raises DatasetError where they are of another shape."""
        *inputs, label = values
        if self.class_numbers:
            label = label.item() if isinstance(label, Tensor) else label
            if label not in self.class_numbers:
                problem = f"{self.name}[{index}] has the label {label!r}, which no row had before"
                raise DatasetError.at("dataset.label", problem)
            label = torch.tensor(self.class_numbers[label])
        if self.is_joined:
            inputs = [torch.stack([one.double() for one in inputs])]
        found = []
        kinds, names = [*self.kinds, self.label_kind], (*self.form.inputs[: len(inputs)], "label")
        for name, one, (shape, dtype) in zip(names, [*inputs, label], kinds, strict=True):
            if one.dim() == 2 and len(shape) == 3 and one.dtype == torch.uint8:
                one = one.expand(shape[0], *one.shape)
            if tuple(one.shape) != shape:
                what = f"{place(name)} of {self.name} have the shapes {shape} and {tuple(one.shape)}"
                raise DatasetError.at("dataset", f"{what}; all must have one: resize images, pad rows")
            found.append(one.to(dtype))
        return found

    @property
    def is_random(self) -> bool:
        """Whether rows are others at each reading; raises DatasetError where no seed sets what they draw."""
        indices = np.linspace(0, self.count - 1, min(self.count, REPEATED_ROWS)).astype(int).tolist()
        with restored_generators():
            changes = False
            for index in indices:
                first, other, again = (self.values(index, reading) for reading in ((), CHANGED, ()))
                if not _same(first, again):
                    raise DatasetError.at(
                        "dataset",
                        f"{self.name}[{index}] is another sample at each reading, and no seed sets what it "
                        "draws; draw from torch, numpy.random or random, without a generator of its own",
                    )
                changes = changes or not _same(first, other)
        return changes

    def _labels_of_attribute(self) -> list[Any]:
        """The labels of all rows where an attribute has them and fits the rows; otherwise empty."""
        for attribute in TARGETS:
            known = getattr(self.dataset, attribute, None)
            if not isinstance(known, Sequence | np.ndarray | Tensor) or len(known) != self.count:
                continue
            checked = np.linspace(0, self.count - 1, min(self.count, 8)).astype(int).tolist()
            if all(_same([self.values(index)[LAST]], [label_of_row(known[index])]) for index in checked):
                return [label_of_row(label) for label in known]
        return []

    def all(self) -> Iterator[list[Any]]:
        """Yields the values of all rows, read one after another."""
        with restored_generators():
            for index in range(self.count):
                yield self.values(index)


def label_of_row(label: Any) -> Any:
    """A label as a tensor; as it is where it is no number, but a text or another object for a class."""
    is_class = isinstance(label, str | bytes) or not (
        isinstance(label, Tensor | np.ndarray | np.generic | list | int | float) or is_image(label)
    )
    if is_class:
        return label
    number = value(label)
    return number.float() if number.is_floating_point() else number.long()


def _of_image(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """The shape of an input; that of gray pixels with one channel."""
    return (1, *shape) if dtype == torch.uint8 and len(shape) == 2 else shape


def _same(row: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two rows have the same values; what is no number is none again."""
    for one, another in zip(row, other, strict=True):
        if not isinstance(one, Tensor) or not isinstance(another, Tensor):
            if one != another:
                return False
        elif one.shape != another.shape or not ((one == another) | (one != one)).all():
            return False
    return True
