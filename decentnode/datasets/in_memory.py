"""Samples that Python already has in memory, as a dataset."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.datasets.base import IGNORED, Dataset, LoadedDataset, Samples, counts, image_dataset
from decentnode.datasets.ragged import Ragged, lengths_of
from decentnode.errors import DatasetError, explained

COLORS = (1, 3, 4)
"""Channels of usual images."""
REPEATED_ROWS = 256
"""Samples that are read twice, to find out whether they change."""
NO_LENGTH = (torch.utils.data.IterableDataset, torch.utils.data.DataLoader)
FORMS = (
    "a dataset from Python is (train, test), and each of both is (inputs, labels) as tensors or arrays, "
    "a torch Dataset of such pairs, or Samples"
)


@dataclass(kw_only=True)
class InMemory(Dataset):
    """Samples that were loaded before; all copies share the tensors."""

    loaded: LoadedDataset
    reads_files: ClassVar[bool] = False
    uses_seed: ClassVar[bool] = False

    def read(self, seed: int) -> LoadedDataset:
        return self.loaded

    def ignoring(self, loaded: LoadedDataset, label: int) -> LoadedDataset:
        """Returns these samples, of which a label is no class."""
        classes = _classes([loaded.train.labels, loaded.test.labels], label)
        return replace(super().ignoring(loaded, label), num_classes=classes)

    def __deepcopy__(self, memo: dict[int, Any]) -> "InMemory":
        """Returns itself: nothing writes to samples."""
        return self


def in_memory(value: Any) -> InMemory:
    """Returns the dataset of a training and a test set; raises DatasetError.

    Inputs of 8 bits with 3 or 4 dimensions are images, (n, height, width) or (n, channels, height, width).
    They are normalized by the training images; others reach the model as they are. Labels that are whole
    numbers are classes from 0 on.
    """
    if not isinstance(value, tuple):
        raise DatasetError.at("dataset", f"{type(value).__name__} is no pair of parts; {_remedy(value)}")
    if len(value) != 2:
        raise DatasetError.at("dataset", f"{len(value)} parts are given; {FORMS}")
    # The columns of two tables of pandas may be the same, in another order.
    columns = [
        [*getattr(part[0], "columns", ())] for part in value if isinstance(part, list | tuple) and part
    ]
    if len(columns) == 2 and columns[0] != columns[1] and all(columns):
        what = f"the test inputs have the columns {columns[1]}, the training inputs {columns[0]}"
        raise DatasetError.at("dataset", f"{what}; select them by these names: test[list(train.columns)]")
    train, test = map(_samples, value)
    if isinstance(train, Samples) or isinstance(test, Samples):
        if not (isinstance(train, Samples) and isinstance(test, Samples)):
            raise DatasetError.at("dataset", f"one part is Samples, and the other is not; {FORMS}")
        labels, shape = [train.labels, test.labels], tuple(train.inputs.shape[1:])
        if isinstance(train.inputs, Ragged):
            shape = (max(int(lengths_of(part.inputs).max()) for part in (train, test) if len(part)),)
        return InMemory(loaded=LoadedDataset(train, test, _classes(labels), shape))
    _check_labels(train[1], test[1])
    classes = _classes([train[1], test[1]])
    if (train[0].dtype == torch.uint8) != (test[0].dtype == torch.uint8):
        kinds = f"{str(train[0].dtype)[6:]}, the test inputs {str(test[0].dtype)[6:]}"
        raise DatasetError.at(
            "dataset", f"the training inputs are {kinds}, so they have other units; prepare both in one way"
        )
    if train[0].dtype == torch.uint8 and train[0].dim() in (3, 4):
        images = [
            (inputs.unsqueeze(1) if inputs.dim() == 3 else inputs, labels) for inputs, labels in (train, test)
        ]
        return InMemory(loaded=image_dataset(images[0], images[1], classes))
    loaded = LoadedDataset(Samples(*train), Samples(*test), classes, tuple(train[0].shape[1:]))
    return InMemory(loaded=loaded)


def _samples(part: Any) -> Samples | tuple[Tensor, Tensor]:
    if isinstance(part, Samples):
        return part
    if isinstance(part, torch.utils.data.TensorDataset):
        columns: Any = part.tensors
    elif isinstance(part, torch.utils.data.Dataset) and not isinstance(part, NO_LENGTH):
        columns = _columns(part)
    else:
        columns = part
    if not isinstance(columns, list | tuple) or len(columns) != 2:
        raise DatasetError.at("dataset", f"a part is {type(part).__name__}; {_remedy(part)}")
    inputs, labels = (_tensor(column) for column in columns)
    if len(inputs) != len(labels):
        raise DatasetError.at("dataset", f"a part has {len(inputs)} inputs and {len(labels)} labels")
    if inputs.dtype == torch.uint8 and inputs.dim() == 4:
        count, *_, last = shape = tuple(inputs.shape)
        if last in COLORS and shape[1] not in COLORS:
            wanted = (count, last, *shape[1:3])
            raise DatasetError.at(
                "dataset",
                f"images have the shape {shape}, not {wanted}; use inputs.permute(0, 3, 1, 2)",
            )
    if inputs.is_floating_point() and inputs.dtype != torch.float64:
        inputs = inputs.float()
    labels = labels.float() if labels.is_floating_point() else labels.long()
    return inputs, labels


def _remedy(value: Any) -> str:
    """Returns what would be right instead of an object that is neither a dataset nor a part of one."""
    if isinstance(value, torch.utils.data.DataLoader):
        return "pass its dataset (loader.dataset), and its batch size as training.batch_size"
    if isinstance(value, NO_LENGTH):
        return "it has no length and no order; collect what it yields as tensors (inputs, labels)"
    if isinstance(value, torch.utils.data.TensorDataset):
        more = "Samples(inputs, labels, more=(others,)) takes further arguments of the model"
        return f"it has {len(value.tensors)} tensors, not inputs and labels; {more}"
    if hasattr(value, "save_to_disk"):
        return "write it with save_to_disk, and use {'name': 'hugging_face', 'path': ...}"
    if hasattr(value, "columns"):
        return (
            "give (frame[features].to_numpy(), frame[label].to_numpy()), or write it with "
            "to_csv(..., index=False), and use {'name': 'table', 'path': ...}"
        )
    if isinstance(value, Mapping):
        return f"give the parts without names, (value['train'], value['test']); {FORMS}"
    return FORMS


def _columns(part: Any) -> tuple[Tensor, Tensor]:
    """Reads all samples of a torch Dataset once; raises DatasetError where that is not what it is."""
    name = type(part).__name__
    try:
        count = len(part)
    except (TypeError, NotImplementedError) as error:
        raise DatasetError.at("dataset", f"{name} has no length; give it __len__, or tensors") from error
    rows = [_row(part, index, count) for index in range(count)]
    if not rows:
        raise DatasetError.at("dataset", f"{name} has no samples")
    for index in np.linspace(0, count - 1, min(count, REPEATED_ROWS)).astype(int).tolist():
        for before, again in zip(rows[index], _row(part, index, count), strict=True):
            # What is no number is none again.
            if before.shape != again.shape or not ((before == again) | (before != before)).all():
                raise DatasetError.at(
                    "dataset",
                    f"{name}[{index}] is another sample at each reading, as by a random transform, but it is "
                    "read once; leave that out, and use training.augmentation",
                )
    columns = []
    for side, values in zip(("inputs", "labels"), zip(*rows, strict=True), strict=True):
        shapes = [*dict.fromkeys(tuple(value.shape) for value in values)]
        if len(shapes) > 1:
            what = f"{side} of {name} have the shapes {shapes[0]} and {shapes[1]}"
            raise DatasetError.at("dataset", f"{what}; all must have one, or be Ragged in Samples")
        columns.append(torch.stack(values))
    return columns[0], columns[1]


def _row(part: Any, index: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns a sample of a torch Dataset, as tensors."""
    try:
        row = part[index]
    except Exception as error:  # the user's own class may raise anything
        what = f"{type(part).__name__}[{index}] raises {explained(error)}"
        raise DatasetError.at("dataset", f"{what}; its length is {count}") from error
    if not isinstance(row, list | tuple) or len(row) != 2:
        kind = f"{type(row).__name__} of {len(row)}" if isinstance(row, Sized) else type(row).__name__
        what = f"{type(part).__name__}[{index}] is {kind}, and no pair (input, label)"
        raise DatasetError.at("dataset", f"{what}; return a pair, or give Samples, which has more fields")
    return _tensor(row[0]), _tensor(row[1])


def _tensor(values: Any) -> Tensor:
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
        try:
            # Lists of unequal length are no array at all.
            texts = np.array(values).dtype.kind in "UTO"
        except ValueError:
            texts = False
        remedy = "number classes: numpy.unique(labels, return_inverse=True)[1]" if texts else FORMS
        raise DatasetError.at(
            "dataset", f"{type(values).__name__} is no tensor of numbers; {remedy}"
        ) from error
    if tensor.layout != torch.strided or tensor.is_complex():
        kind = "complex; give real and imaginary parts" if tensor.is_complex() else "sparse; call .to_dense()"
        raise DatasetError.at("dataset", f"a tensor is {kind}")
    return tensor


def _check_labels(train: Tensor, test: Tensor) -> None:
    """Raises DatasetError for classes that are written in another way than by numbers from 0 on."""
    labels = torch.cat([train.flatten(), test.flatten()])
    values = np.unique(labels[counts(labels)].numpy()).tolist()
    if train.dim() == 2 and train.shape[1] > 1 and values == [0, 1] and (train.sum(1) == 1).all():
        raise DatasetError.at("dataset", "labels have a 1 for each class; give its number: labels.argmax(1)")
    if train.is_floating_point() or not values:
        return
    if train.dim() == 2 and train.shape[1] == 1:
        raise DatasetError.at("dataset", "labels have the shape (n, 1); a class each is labels.flatten()")
    # Those of several places may be ids of a vocabulary, whose 0 is that of padding.
    if train.dim() == 1 and values == [*range(1, len(values) + 1)] and len(values) > 1:
        remedy = "classes are numbered from 0: labels - 1"
        raise DatasetError.at("dataset", f"labels are 1 to {len(values)}; {remedy}")
    # Another negative label may be one that the loss ignores.
    if values == [-1, 1]:
        raise DatasetError.at(
            "dataset", "labels are -1 and 1; classes are numbered from 0: (labels + 1) // 2"
        )


def _classes(labels: Sequence[Any], ignored: int = IGNORED) -> int:
    """Returns the number of classes; 1 for numbers to predict."""
    if any(part.is_floating_point() for part in labels):
        return 1
    # In 64 bits, because torch has no comparison of 16 without sign.
    flat = [part.flatten().long() for part in labels]
    counted = (part[counts(part, ignored)] for part in flat)
    return 1 + max((int(part.max()) for part in counted if part.numel()), default=0)
