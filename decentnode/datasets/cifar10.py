"""CIFAR-10 from the files of its home page."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import DATASETS
from decentnode.datasets.base import LoadedDataset, image_dataset
from decentnode.datasets.cifar10_batches import read_batch
from decentnode.datasets.locate import FileDataset
from decentnode.errors import DatasetError

CLASSES = 10
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = ("test_batch",)


@DATASETS.register("cifar10")
@dataclass(kw_only=True)
class Cifar10(FileDataset):
    """CIFAR-10, 60,000 color images of 32x32 (Krizhevsky, 2009, chapter 3), python or binary batches."""

    uses_seed: ClassVar[bool] = False
    title = "cifar10"
    folders = ("cifar-10-batches-py", "cifar-10-batches-bin")
    remedy = (
        "fetch them with: mkdir -p {folder} && curl -f "
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz | tar xz -C {folder}"
    )

    def read(self, seed: int) -> LoadedDataset:
        directory = self.directory()
        return image_dataset(read_batches(directory, TRAIN), read_batches(directory, TEST), CLASSES)

    def is_complete(self, directory: Path) -> bool:
        """Whether all six batches are there, in one of the two formats."""
        files = [[directory / f"{batch}{suffix}" for batch in TRAIN + TEST] for suffix in ("", ".bin")]
        return any(all(path.is_file() for path in paths) for paths in files)


def read_batches(directory: Path, batches: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """The images (n, 3, 32, 32), uint8, and labels of some batches in their order."""
    parts = [read_file(directory, batch) for batch in batches]
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    return images.view(-1, *SHAPE), torch.from_numpy(np.concatenate([labels for _, labels in parts]))


def read_file(directory: Path, batch: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One batch: pixels (n, 3072) and labels; raises DatasetError that names file and defect."""
    path = directory / batch
    read = read_batch
    if not path.is_file():
        path, read = path.with_suffix(".bin"), read_records
    try:
        images, labels = read(path.read_bytes())
        check(images, labels)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: {error}") from error
    return images, labels


def read_records(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A binary batch: records of one label byte and the pixels."""
    size = PIXELS + 1
    if len(content) % size:
        raise ValueError(
            f"{len(content)} bytes are not a whole number of records of {size} bytes; it may be cut"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    return records[:, 1:], records[:, 0].astype(np.int64)


def check(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    """Raises ValueError unless there are images of the right size with as many labels in range."""
    if not len(images) or images.shape[1] != PIXELS:
        raise ValueError(f"images of shape {images.shape}, expected (n, {PIXELS}) with n > 0")
    if labels.ndim != 1:
        raise ValueError(f"labels of shape {labels.shape}, expected (n,)")
    if len(labels) != len(images):
        raise ValueError(f"{len(labels)} labels for {len(images)} images")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise ValueError(f"labels {labels.min()}..{labels.max()}, expected 0..{CLASSES - 1}")
