"""Samples that Python has: arrays, Datasets of torch and Hugging Face, and what a function returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from inspect import isgenerator, isgeneratorfunction, signature
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from decentnode.datasets.base import (
    COUNTED_IMAGES,
    Dataset,
    LoadedDataset,
    NamedClasses,
    Samples,
    draw,
    statistics_of,
)
from decentnode.datasets.columns import (
    FORMS,
    LAST,
    Choice,
    PartColumns,
    classes_in,
    columns_of,
    distinct_labels,
    in_order,
    label_column,
    taken_apart,
)
from decentnode.datasets.hugging_face_library import (
    chosen,
    columns_of_library,
    described_rows,
    has_transform,
    is_of_library,
)
from decentnode.datasets.per_step import DatasetRows, ReadSamples
from decentnode.datasets.ragged import LazyRows, Ragged, lengths_of
from decentnode.datasets.row_workers import RowWorkers
from decentnode.datasets.streams import StreamRows, StreamSamples, is_stream
from decentnode.datasets.table import drawn
from decentnode.datasets.validation import Share
from decentnode.errors import BadInput, DatasetError, explained, is_out_of_memory
from decentnode.options import NonNegative, option

TEST_FRACTION = 0.2
"""The samples that are for the test where there is no test part and nobody says how many."""
PARTS = ("train", "test", "validation")
Part = Samples | PartColumns | DatasetRows
"""A part as it was given: whole samples, columns in memory, or rows to be read per step."""


@dataclass(kw_only=True)
class FromPython(NamedClasses):
    """The options of samples from Python, beside those of every dataset."""

    inputs: tuple[str, ...] | None = None
    """The columns that the model gets, in this order; null: all but the label, without texts."""
    label: str | None = None
    """The column of the labels; null: the one called label, labels, target, targets or y."""
    test_fraction: Share | None = None
    """The samples for the test, drawn by the seed, where there is no test part; null: 0.2."""
    rows: Literal["auto", "once", "per_step"] = "auto"
    """When the rows of a Dataset are read: `once` at the start, or `per_step`, for each batch anew; auto: per
    step where the same index gives another sample."""
    workers: NonNegative = option(0, changes="nothing", per_host=True)
    """Processes of each process of nodes that read rows per step, and the next batch ahead; 0: none."""
    test: Mapping[str, Any] | None = None
    """Arguments of the class or function for the test part, in place of those with these names."""


@dataclass(kw_only=True)
class Given(FromPython):
    """The samples that a function returns, or that are a Dataset of a class."""

    make: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reads_files: ClassVar[bool] = False

    def read(self, seed: int) -> LoadedDataset:
        found = self._made(self.arguments)
        if isinstance(found, Dataset):
            return found.read(seed)
        if isinstance(found, LoadedDataset):
            return found
        parts = parts_of(found)
        if self.test is not None:
            if "test" in parts:
                raise DatasetError.at("dataset.test", "there is a test part; leave it out")
            parts["test"] = self._made({**self.arguments, **self.test})
        return self._loaded(parts, seed)

    def _made(self, arguments: Mapping[str, Any]) -> Any:
        if isgeneratorfunction(self.make):
            return partial(self.make, **arguments)
        try:
            return self.make(**arguments)
        except Exception as error:  # the user's own code may raise anything
            if isinstance(error, BadInput) or is_out_of_memory(error):
                raise
            raise DatasetError.at("dataset", f"{self.make.__name__} raises {explained(error)}") from error

    def _loaded(self, given: Mapping[str, Any], seed: int) -> LoadedDataset:
        notices = [f"dataset: the part {name} is left out" for name in given if name not in PARTS]
        if "test" not in given and "validation" in given:
            notices.append("dataset: the part validation is for the test, as there is no test part")
            given = {"train": given["train"], "test": given["validation"]}
        if "test" in given and self.test_fraction is not None:
            raise DatasetError.at("dataset.test_fraction", "there is a test part; leave it out")
        if is_stream(given["train"]):
            given = self._of_stream(given)
        parts = {name: self._part(name, given[name]) for name in PARTS if name in given}
        for part in parts.values():
            notices += [] if isinstance(part, Samples) else part.notices
        samples, classes, names = self._samples([*parts.values()])
        found = dict(zip(parts, samples, strict=True))
        if "test" not in found:
            train = found["train"]
            is_test = drawn(len(train), self.test_fraction or TEST_FRACTION, seed)
            found["train"], found["test"] = (
                train.subset(torch.from_numpy(np.flatnonzero(chosen))) for chosen in (~is_test, is_test)
            )
            count = f"{is_test.sum():,} of {len(is_test):,} samples"
            notices.append(f"dataset: {count}, drawn by the seed, are the test part (dataset.test_fraction)")
        first = parts["train"]
        arguments = () if isinstance(first, Samples) else first.arguments
        _check_alike(found)
        loaded = LoadedDataset(
            found["train"], found["test"], classes, _shape(found.values()), found.get("validation"),
            class_names=names, arguments=arguments, notices=tuple(dict.fromkeys(notices)),
        )  # fmt: skip
        is_whole = any(isinstance(part, Samples) for part in parts.values())
        return loaded if is_whole else _normalized_images(loaded)

    def _of_stream(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of a dataset that is trained on a stream; the others are read into memory."""
        choice, parts, skipped = Choice(self.inputs, self.label), dict(given), 0
        if self.rows == "once":
            raise DatasetError.at("dataset.rows", "samples of a stream are read when they come; leave it out")
        if "test" not in given:
            if self.test_size is None:
                problem = "a stream has no test part; give one, (train, test), or dataset.test_size"
                raise DatasetError.at("dataset.test_size", f"{problem}, so many first samples")
            skipped, parts["test"] = self.test_size, given["train"]
        for name in parts.keys() - {"train"}:
            if is_stream(parts[name]):
                size = None if name == "validation" else self.test_size
                rows = described_rows(StreamRows(parts[name], choice))
                parts[name] = columns_of_rows(rows, rows.first(size))
        stream = StreamRows(given["train"], choice, epoch_size=self.train_size, skipped=skipped)
        described_rows(stream).count_rows()
        return parts | {"train": stream}

    def drawn(self, dataset: LoadedDataset, seed: int) -> LoadedDataset:
        if not dataset.train.is_stream:
            return super().drawn(dataset, seed)
        # The size of a stream is that of an epoch, and was taken while it was read.
        size = None if self.test_size == len(dataset.test) else self.test_size
        return replace(dataset, test=draw(dataset.test, size, "test", seed))

    def _part(self, name: str, given: Any) -> Part:
        choice, what = Choice(self.inputs, self.label), type(given).__name__
        if isinstance(given, Part):
            return given
        if is_stream(given):
            raise DatasetError.at(
                "dataset", f"the part {name} is a stream, and the training part is none; {FORMS}"
            )
        if isinstance(given, TensorDataset):
            columns = taken_apart(given.tensors)
            if columns is None:
                raise DatasetError.at("dataset", f"{what} has one tensor; its last one must be the labels")
            return columns_of(columns, choice, what)
        if is_of_library(given) and not has_transform(given) and self.rows != "per_step":
            return columns_of_library(given, choice)
        is_dataset = isinstance(given, torch.utils.data.Dataset) and not isinstance(given, IterableDataset)
        if is_of_library(given) or is_dataset:
            choice = chosen(given, choice) if is_of_library(given) else choice
            rows = described_rows(DatasetRows(given, choice))
            is_random = rows.is_random
            if self.rows == "auto" and is_random:
                rows.remark = (
                    f"dataset: {rows.name} has another sample at each reading, so each step reads anew"
                )
            if self.rows == "per_step" or rows.remark:
                return rows
            if is_random:
                problem = f"{rows.name} has other samples at each reading, as by a random transform"
                raise DatasetError.at("dataset.rows", f"{problem}; use per_step, or leave it out")
            return columns_of_rows(rows, rows.all())
        columns = taken_apart(given)
        if columns is None or isinstance(given, DataLoader):
            raise DatasetError.at("dataset", f"a part is {what}; {_remedy(given)}")
        return columns_of(columns, choice, f"the part {name}" if isinstance(given, Mapping) else "a part")

    def _samples(self, parts: Sequence[Part]) -> tuple[list[Samples], int, tuple[str, ...]]:
        """The samples of each part, the number of classes, and their names, if they have any."""
        whole = [part for part in parts if isinstance(part, Samples)]
        if whole and len(whole) < len(parts):
            raise DatasetError.at("dataset", f"one part is Samples, and the other is not; {FORMS}")
        if whole:
            return whole, classes_in([part.labels for part in whole]), ()
        columns = [part for part in parts if not isinstance(part, Samples)]
        labels: list[Any] = [part.labels for part in columns]
        described = [part.class_names for part in columns if part.class_names]
        if len({*described}) > 1:
            # Each part numbers classes in its own way, so their names count.
            if len(described) < len(columns) or any(isinstance(part, DatasetRows) for part in columns):
                problem = "the parts number their classes in different ways"
                raise DatasetError.at("dataset.label", f"{problem}; cast the column to one ClassLabel")
            labels = [[names[i] for i in part] for names, part in zip(described, labels, strict=True)]
        if self.classes is not None and _are_classes(labels):
            found = {*map(str, distinct_labels(labels))}
            if found <= {*map(str, self.classes)}:
                # They are what the samples have, and no names of the classes 0, 1, ...
                labels = [part.tolist() for part in labels]
        is_named = [isinstance(part, list) for part in labels]
        if all(is_named):
            order = in_order(one for part in labels for one in part)
            number_of = {one: number for number, one in enumerate(order)}
            labels = [torch.tensor([number_of[one] for one in part]) for part in labels]
            for part in columns:
                if isinstance(part, DatasetRows):
                    part.class_numbers = number_of
            names, classes = tuple(map(str, order)), len(order)
        elif any(is_named):
            raise DatasetError.at("dataset.label", "labels are numbers in one part, and texts in another")
        else:
            names = described[0] if described else ()
            classes = len(names) or classes_in(labels)
            if not names and _are_classes(labels):
                check_labels(labels)
        if self.workers and not any(type(part) is DatasetRows for part in columns):
            raise DatasetError.at("dataset.workers", "no rows of a Dataset are read per step; leave it out")
        samples = [
            _samples_of(part, label, self.workers) for part, label in zip(columns, labels, strict=True)
        ]
        return samples, classes, names

    def ignoring(self, loaded: LoadedDataset, label: int) -> LoadedDataset:
        """Returns these samples, of which a label is no class."""
        changed = super().ignoring(loaded, label)
        if loaded.class_names or loaded.train.is_stream:
            return changed
        return replace(changed, num_classes=classes_in([loaded.train.labels, loaded.test.labels], label))


def returning(value: Any) -> Callable[[], Any]:
    """Returns a function that returns an object, for `Given`."""

    def samples() -> Any:
        return value

    return samples


def dataset_of(cls: Callable[..., Any], options: Mapping[str, Any]) -> Dataset:
    """The plug-in for `module:Class`: a Dataset with these options, or a Dataset of torch of that class.

    Also what a function returns: anything that Python may pass. Options of `FromPython` are not those of the
    class or the function, unless its own arguments include one of that name.
    """
    if isinstance(cls, type) and issubclass(cls, Dataset):
        return cls(**options)
    own, of_base = signature(cls).parameters, {one.name for one in fields(FromPython)}
    ours = {name: options[name] for name in options if name in of_base and name not in own}
    return Given(make=cls, arguments={n: options[n] for n in options if n not in ours}, **ours)


def parts_of(value: Any) -> dict[str, Any]:
    """The parts of what Python passes, by name; raises DatasetError for what has none.

    (train, test) is a pair of parts; any other pair is one part, (inputs, labels).
    """
    if isinstance(value, Mapping) and "train" in value:
        return dict(value)
    if isinstance(value, Mapping) and any(map(is_part, value.values())):
        raise DatasetError.at("dataset", f"there is no part train, but {', '.join(map(str, value))}")
    if isinstance(value, list | tuple) and len(value) == 4 and not any(map(is_part, value)):
        x = "((X_train, y_train), (X_test, y_test))"
        raise DatasetError.at("dataset", f"4 arrays are given; write them as {x}")
    if isinstance(value, list | tuple) and len(value) > 1 and all(map(is_part, value)):
        if len(value) > 2:
            named = '{"train": ..., "test": ..., "validation": ...}'
            raise DatasetError.at("dataset", f"{len(value)} parts are given; name them: {named}")
        _check_columns(value)
        return {"train": value[0], "test": value[1]}
    return {"train": value}


def is_part(value: Any) -> bool:
    """Whether it has inputs and labels, so that a pair of such is (train, test), and not (inputs, labels)."""
    if isinstance(value, Samples | torch.utils.data.Dataset | DataLoader | Mapping) or is_of_library(value):
        return True
    if isgenerator(value) or isgeneratorfunction(value) or hasattr(value, "columns"):
        return True
    if not isinstance(value, list | tuple) or not all(hasattr(one, "__len__") for one in value):
        return False
    # A list of rows is no part, but the inputs or the labels of one.
    return len(value) == 2 if any(hasattr(one, "shape") for one in value) else isinstance(value, tuple)


def _check_columns(parts: Sequence[Any]) -> None:
    """Raises DatasetError where two tables of pandas have the same columns in another order."""
    columns = [[*getattr(part[0], "columns", ())] for part in parts if isinstance(part, list | tuple)]
    if len(columns) == 2 and columns[0] != columns[1] and all(columns):
        what = f"the test inputs have the columns {columns[1]}, the training inputs {columns[0]}"
        raise DatasetError.at("dataset", f"{what}; select them by these names: test[list(train.columns)]")


def _remedy(value: Any) -> str:
    """Returns what would be right instead of an object that is no part of a dataset."""
    if isinstance(value, DataLoader):
        return "pass its dataset (loader.dataset), and its batch size as training.batch_size"
    if hasattr(value, "columns"):
        return (
            "give tables as {'train': frame, 'test': frame, 'label': COLUMN}, also with 'validation', or "
            "(frame[features].to_numpy(), frame[label].to_numpy()) for each part"
        )
    return FORMS


def columns_of_rows(rows: DatasetRows, values: Iterable[list[Any]]) -> PartColumns:
    """The columns of some rows, which are read once."""
    *inputs, labels = zip(*values, strict=True)
    by_name = dict(zip(rows.form.inputs, map(list, inputs), strict=True))
    read = columns_of(
        {**by_name, LAST: label_column([*labels], f"labels of {rows.name}")}, Choice(), rows.name
    )
    return replace(read, notices=(*rows.left_out, *read.notices), class_names=rows.class_names)


def _samples_of(part: PartColumns | DatasetRows, labels: Any, workers: int) -> Samples:
    if isinstance(part, StreamRows):
        lazy_labels = LazyRows((part.count, *part.label_kind[0]), part.label_kind[1])
        first, *rest = (LazyRows((part.count, *shape), dtype) for shape, dtype in part.kinds)
        return StreamSamples(first, lazy_labels, more=tuple(rest), reader=part, places=torch.empty(0))
    if isinstance(part, DatasetRows):
        lazy_rows, *others = (LazyRows((part.count, *shape), dtype) for shape, dtype in part.kinds)
        places = torch.arange(part.count)
        reader = RowWorkers(part, workers) if workers else part
        return ReadSamples(lazy_rows, labels, more=tuple(others), reader=reader, places=places)
    inputs, *more = part.inputs.values()
    if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and inputs.dim() == 3:
        inputs = inputs.unsqueeze(1)
    if any(values.dtype == torch.uint8 and values.dim() > 2 for values in more):
        raise DatasetError.at("dataset.inputs", "images of 8 bits must be the first input; or give floats")
    return Samples(inputs, labels, more=tuple(more))


def _are_classes(labels: Sequence[Any]) -> bool:
    """Whether labels are whole numbers, one for each sample."""
    return all(
        isinstance(part, Tensor) and part.dim() == 1 and not part.is_floating_point() for part in labels
    )


def check_labels(labels: Sequence[Tensor]) -> None:
    """Raises DatasetError for classes that are written in another way than by numbers from 0 on."""
    values = distinct_labels(labels).tolist()
    order = "or say their order (dataset.classes)"
    if values == [*range(1, len(values) + 1)] and len(values) > 1:
        problem = f"labels are 1 to {len(values)}; classes are numbered from 0: labels - 1"
        raise DatasetError.at("dataset", f"{problem}, {order}")
    # Another negative label may be one that the loss ignores.
    if values == [-1, 1]:
        problem = "labels are -1 and 1; classes are numbered from 0: (labels + 1) // 2"
        raise DatasetError.at("dataset", f"{problem}, {order}")


def _check_alike(parts: Mapping[str, Samples]) -> None:
    """Raises DatasetError for parts that were not prepared in one way."""
    train, test = parts["train"], parts["test"]
    if (train.inputs.dtype == torch.uint8) != (test.inputs.dtype == torch.uint8):
        kinds = f"{str(train.inputs.dtype)[6:]}, the test inputs {str(test.inputs.dtype)[6:]}"
        raise DatasetError.at(
            "dataset", f"the training inputs are {kinds}, so they have other units; prepare both in one way"
        )
    for name, labels in ((name, part.labels) for name, part in parts.items()):
        if not isinstance(labels, Tensor) or labels.dim() != 2:
            continue
        if (
            labels.shape[1] > 1
            and distinct_labels([labels]).tolist() == [0, 1]
            and (labels.sum(1) == 1).all()
        ):
            raise DatasetError.at(
                "dataset", "labels have a 1 for each class; give its number: labels.argmax(1)"
            )
        if labels.shape[1] == 1 and not labels.is_floating_point():
            problem = f"{name} labels have the shape (n, 1)"
            raise DatasetError.at("dataset", f"{problem}; a class each is labels.flatten()")


def _shape(parts: Any) -> tuple[int, ...]:
    """The shape of one input; of inputs of unequal length that of the longest."""
    several = [part.inputs for part in parts if len(part)]
    if isinstance(several[0], Ragged):
        return (max(int(lengths_of(inputs).max()) for inputs in several),)
    return tuple(several[0].shape[1:])


def _normalized_images(loaded: LoadedDataset) -> LoadedDataset:
    """The samples, images of 8 bits normalized by the training images."""
    train = loaded.train
    if train.inputs.dtype != torch.uint8 or train.inputs.dim() != 4:
        return loaded
    blocks = (train.rows(indices, ())[0] for indices in train.in_batches(COUNTED_IMAGES))
    mean, std = statistics_of(blocks, train.inputs.shape[1])
    return loaded.changed(lambda samples: replace(samples, mean=mean, std=std))


def from_object(value: Any, **options: Any) -> Given:
    """Returns the dataset of an object, with options of `FromPython`."""
    return Given(make=returning(value), **options)
