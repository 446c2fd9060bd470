"""Samples that Python already has in memory, as a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.datasets.base import Dataset, LoadedDataset, Samples, image_dataset
from decentnode.errors import DatasetError

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

    def __deepcopy__(self, memo: dict[int, Any]) -> "InMemory":
        """Returns itself: nothing writes to samples."""
        return self


def in_memory(parts: Sequence[Any]) -> InMemory:
    """Returns the dataset of a training and a test set; raises DatasetError.

    Inputs of 8 bits with 3 or 4 dimensions are images, (n, height, width) or (n, channels, height, width).
    They are normalized by the training images; others reach the model as they are. Labels that are whole
    numbers are classes from 0 on.
    """
    if len(parts) != 2:
        raise DatasetError.at("dataset", f"{len(parts)} parts are given; {FORMS}")
    train, test = map(_samples, parts)
    if isinstance(train, Samples) or isinstance(test, Samples):
        if not (isinstance(train, Samples) and isinstance(test, Samples)):
            raise DatasetError.at("dataset", f"one part is Samples, and the other is not; {FORMS}")
        labels, shape = [train.labels, test.labels], train.inputs.shape[1:]
        return InMemory(loaded=LoadedDataset(train, test, _classes(labels), tuple(shape)))
    classes = _classes([train[1], test[1]])
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
        part = part.tensors
    elif isinstance(part, torch.utils.data.Dataset):
        part = _columns(part)
    if not isinstance(part, list | tuple) or len(part) != 2:
        raise DatasetError.at("dataset", f"a part is {type(part).__name__}; {FORMS}")
    inputs, labels = (_tensor(column) for column in part)
    if len(inputs) != len(labels):
        raise DatasetError.at("dataset", f"a part has {len(inputs)} inputs and {len(labels)} labels")
    if inputs.is_floating_point() and inputs.dtype != torch.float64:
        inputs = inputs.float()
    labels = labels.float() if labels.is_floating_point() else labels.long()
    return inputs, labels


def _columns(part: Any) -> tuple[Tensor, Tensor]:
    """Reads all samples of a torch Dataset once."""
    rows = [part[index] for index in range(len(part))]
    if not rows or not all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
        raise DatasetError.at("dataset", f"{type(part).__name__} has no pairs (input, label); {FORMS}")
    inputs, labels = zip(*rows, strict=True)
    return torch.stack([_tensor(row) for row in inputs]), torch.stack([_tensor(label) for label in labels])


def _tensor(values: Any) -> Tensor:
    try:
        tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DatasetError.at("dataset", f"{type(values).__name__} is no tensor: {error}; {FORMS}") from error
    return tensor


def _classes(labels: Sequence[Any]) -> int:
    """Returns the number of classes; 1 for numbers to predict."""
    if any(part.is_floating_point() for part in labels):
        return 1
    return 1 + max(int(part.max()) for part in labels if part.numel())
