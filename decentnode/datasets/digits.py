"""The dataset of the quickstart: small, real, and shipped with the package."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from decentnode.core.registry import DATASETS
from decentnode.datasets.base import Dataset, LoadedDataset, image_dataset
from decentnode.datasets.idx import read_pair

FILES = Path(__file__).parent / "files"
CLASSES = 10
TEST_EVERY = 5


@DATASETS.register("digits")
@dataclass(kw_only=True)
class Digits(Dataset):
    """The UCI optical digits, 1,797 images of 8x8 (Alpaydin & Kaynak, 1998, UCI repository), shipped.

    Every fifth image of each class is for testing: 1,437 to train with and 360 to test, for every seed.
    """

    uses_seed: ClassVar[bool] = False
    reads_files: ClassVar[bool] = False  # of the user

    def read(self, seed: int) -> LoadedDataset:
        images, labels = read_pair(
            FILES / "optdigits-images-idx3-ubyte.gz", FILES / "optdigits-labels-idx1-ubyte.gz"
        )
        by_class = torch.argsort(labels, stable=True)
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        is_test[by_class[::TEST_EVERY]] = True
        return image_dataset(
            (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test]), CLASSES
        )
