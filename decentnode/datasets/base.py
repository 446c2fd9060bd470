"""What a dataset gives: labelled samples that are loaded once per machine and read by all its processes.

The launcher loads before it forks, so the tensors below are shared copy-on-write: nothing here may write
to them, and nothing may make a float copy of a whole image set.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from decentnode.errors import DatasetError
from decentnode.options import Positive
from decentnode.randomness import generator


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs with labels; inputs stay in their compact type and are normalized batch by batch."""

    inputs: Tensor
    """Shape (n, *shape); uint8 images or float32 features."""
    labels: Tensor
    """Shape (n,), int64, 0..num_classes-1."""
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Float32; broadcasts against one sample."""
    std: Tensor = field(default_factory=lambda: torch.ones(()))
    groups: Tensor | None = None
    """Shape (n,), int64: who the sample came from (a writer, a client), where the dataset knows."""

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Normalized float32 inputs, shape (batch, *shape), and labels, shape (batch,)."""
        inputs = self.inputs.index_select(0, indices).to(torch.float32)
        return inputs.sub_(self.mean).div_(self.std), self.labels.index_select(0, indices)

    def subset(self, indices: Tensor) -> "Samples":
        """Only the named samples, normalized as before."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, inputs=self.inputs[indices], labels=self.labels[indices], groups=groups)


@dataclass(frozen=True, eq=False)
class LoadedDataset:
    """A training and a test set of the same kind."""

    train: Samples
    test: Samples
    num_classes: int
    shape: tuple[int, ...]
    """The shape of one input."""


@dataclass(kw_only=True)
class Dataset(ABC):
    """A source of samples; the fields of a subclass are its YAML options."""

    train_size: Positive | None = None
    """Use only that many training samples, drawn by the seed."""
    test_size: Positive | None = None

    @abstractmethod
    def read(self, seed: int) -> LoadedDataset:
        """Everything there is; raises DatasetError when it is missing or broken."""

    def load(self, seed: int) -> LoadedDataset:
        """What the experiment uses: all of it, or the subsets that `train_size` and `test_size` ask for."""
        whole = self.read(seed)
        train = draw(whole.train, self.train_size, "train", seed)
        test = draw(whole.test, self.test_size, "test", seed)
        return replace(whole, train=train, test=test)


def draw(samples: Samples, size: int | None, part: str, seed: int) -> Samples:
    """`size` samples without replacement, in their old order; all of them when `size` is None."""
    if size is None:
        return samples
    if size > len(samples):
        raise DatasetError(
            f"dataset.{part}_size: {size} samples asked for, the {part} set has {len(samples)}"
        )
    chosen = generator(seed, f"{part}_size").permutation(len(samples))[:size]
    return samples.subset(torch.from_numpy(chosen).sort().values)


def image_dataset(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], num_classes: int
) -> LoadedDataset:
    """From uint8 images (n, channels, height, width) with int64 labels; normalized by the training images."""
    mean, std = channel_statistics(train[0])
    parts = [Samples(images, labels, mean, std) for images, labels in (train, test)]
    return LoadedDataset(parts[0], parts[1], num_classes, tuple(train[0].shape[1:]))


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Exact mean and deviation of each channel of uint8 images, shape (channels, 1, 1), from histograms."""
    values = torch.arange(256, dtype=torch.float64)
    channels = range(images.shape[1])
    counts = torch.stack([torch.bincount(images[:, c].reshape(-1), minlength=256) for c in channels]).double()
    frequency = counts / counts.sum(1, keepdim=True)
    mean = frequency @ values
    variance = (frequency * (values - mean[:, None]) ** 2).sum(1)
    std = torch.where(variance > 0, variance, 1.0).sqrt()
    return mean.float()[:, None, None], std.float()[:, None, None]
