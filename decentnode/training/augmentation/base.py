"""A random change of a training batch: batch -> batch, drawn for each minibatch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from decentnode.core.registry import name_of
from decentnode.core.rng import generator
from decentnode.datasets.base import Batch, LoadedDataset
from decentnode.errors import BadInput


@dataclass(kw_only=True)
class Augmentation(ABC):
    """Changes the training batches of `training.augmentation`; the fields of a subclass are its YAML options.

    Batches of an evaluation are never changed. Randomness comes from the generator alone: its key has the
    seed, the round, the rank, the step and the minibatch, so a resumed node draws the same numbers.
    """

    @abstractmethod
    def apply(self, batch: Batch, random: np.random.Generator) -> Batch:
        """The changed batch; its inputs are normalized, and their memory may be written."""

    def check(self, dataset: LoadedDataset) -> None:  # noqa: B027
        """Raises BadInput unless the samples can be changed so."""


class ImageAugmentation(Augmentation):
    """Changes images of shape (n, channels, height, width), and keeps labels and further inputs."""

    @abstractmethod
    def images(self, images: Tensor, random: np.random.Generator) -> Tensor:
        """The changed images, of the same shape and dtype."""

    def apply(self, batch: Batch, random: np.random.Generator) -> Batch:
        return replace(batch, fields=(self.images(batch.fields[0], random), *batch.fields[1:]))

    def check(self, dataset: LoadedDataset) -> None:
        if dataset.train.has_ids or len(dataset.shape) != 3:
            kind = "ids" if dataset.train.has_ids else "inputs"
            raise BadInput.at(
                "training.augmentation",
                f"{name_of(self)} needs images of shape (channels, height, width); "
                f"the dataset has {kind} of shape {tuple(dataset.shape)}",
            )


def augmented(batch: Batch, augmentations: Iterable[Augmentation], seed: int, *counters: int) -> Batch:
    """The batch after all of these, in their order; the counters are those of its randomness."""
    random = generator(seed, "augmentation", *counters)
    for augmentation in augmentations:
        batch = augmentation.apply(batch, random)
    return batch
