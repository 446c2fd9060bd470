"""A data set: any tensors."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from decentnode.datasets import Dataset, LoadedDataset, Samples
from decentnode.options import Positive


@dataclass(kw_only=True)
class MyDataset(Dataset):
    """Points in 10 dimensions around one center for each of 4 classes."""

    reads_files: ClassVar = False
    size: Positive = 2000
    """Samples in all; the fields are the options in YAML."""

    def read(self, seed: int) -> LoadedDataset:
        """Returns the samples for training and for the test; every machine must make the same."""
        classes, width = 4, 10
        random = torch.Generator().manual_seed(seed)
        # Your own tensors here: inputs (n, ...), floats or uint8 images; labels (n,), int64.
        labels = torch.randint(classes, (self.size,), generator=random)
        centers = torch.randn(classes, width, generator=random)
        inputs = centers[labels] + torch.randn(self.size, width, generator=random)
        last = self.size // 5
        train, test = Samples(inputs[:-last], labels[:-last]), Samples(inputs[-last:], labels[-last:])
        return LoadedDataset(train, test, classes, (width,))
