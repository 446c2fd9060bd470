"""CIFAR-10 and CIFAR-100 from the files of their home page."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.registry import DATASETS
from decentnode.datasets import samples
from decentnode.datasets.base import LoadedDataset, Source, image_dataset
from decentnode.datasets.cifar10_batches import read_batch
from decentnode.datasets.locate import FileDataset
from decentnode.errors import DatasetError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
HOME = "https://www.cs.toronto.edu/~kriz"
SUFFIX = ".bin"
FINE_OF_COARSE = 5
"""Classes of each superclass of CIFAR-100."""

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(kw_only=True)
class Cifar(FileDataset):
    """Batches of images in files, python or binary, of which some are for training."""

    uses_seed: ClassVar[bool] = False
    licence: ClassVar[str] = "none stated; its authors ask to cite Krizhevsky (2009)"
    train_files: ClassVar[tuple[str, ...]]
    test_files: ClassVar[tuple[str, ...]]
    label_bytes: ClassVar[int] = 1
    """The number of label bytes at the start of a binary record."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """Labels are below it."""

    @abstractmethod
    def read_python(self, content: bytes) -> Arrays:
        """The images and labels of a python batch; raises ValueError."""

    @property
    @abstractmethod
    def label_place(self) -> int:
        """The byte of a binary record that is its label."""

    def read(self, seed: int) -> LoadedDataset:
        directory = self.directory()
        train, test = (self._batches(directory, names) for names in (self.train_files, self.test_files))
        return image_dataset(train, test, self.classes)

    def is_complete(self, directory: Path) -> bool:
        """Whether all batches are there, in one of the two formats."""
        names = self.train_files + self.test_files
        files = [[directory / f"{name}{suffix}" for name in names] for suffix in ("", SUFFIX)]
        return any(all(path.is_file() for path in paths) for paths in files)

    def _batches(self, directory: Path, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """The images (n, 3, 32, 32), uint8, and labels of some batches in their order."""
        parts = [self._file(directory, name) for name in names]
        images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
        return images.view(-1, *SHAPE), torch.from_numpy(np.concatenate([labels for _, labels in parts]))

    def _file(self, directory: Path, name: str) -> Arrays:
        """One batch: pixels (n, 3072) and labels; raises DatasetError that names file and defect."""
        path, read = directory / name, self.read_python
        if not path.is_file():
            path = path.with_suffix(SUFFIX)
            read = partial(read_records, label_bytes=self.label_bytes, place=self.label_place)
        try:
            images, labels = read(path.read_bytes())
            check(images, labels, self.classes)
        except (OSError, ValueError) as error:
            raise DatasetError(f"{path}: {error}") from error
        return images, labels


@DATASETS.register("cifar10")
@dataclass(kw_only=True)
class Cifar10(Cifar):
    """CIFAR-10, 60,000 color images of 32x32 (Krizhevsky, 2009, chapter 3), python or binary batches."""

    title = "cifar10"
    folders = ("cifar-10-batches-py", "cifar-10-batches-bin")
    classes = 10
    label_place = 0
    train_files: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{i}" for i in range(1, 6))
    test_files: ClassVar[tuple[str, ...]] = ("test_batch",)

    @property
    def sources(self) -> Sequence[Source]:
        archive = "cifar-10-python.tar.gz"
        return [Source(f"{HOME}/{archive}", 170498071, "md5:c58f30108f718f92721af3b95e74349a", unpack=True)]

    def read_python(self, content: bytes) -> Arrays:
        return read_batch(content)

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        batches = {f"{name}{SUFFIX}": samples.IMAGES // 5 for name in self.train_files}
        files = batches | {f"test_batch{SUFFIX}": samples.TEST_IMAGES}
        samples.cifar(directory, "cifar10", files, label_bytes=lambda labels: labels[:, None])
        return {"path": str(directory)}


@DATASETS.register("cifar100")
@dataclass(kw_only=True)
class Cifar100(Cifar):
    """CIFAR-100, 60,000 color images of 32x32 (Krizhevsky, 2009, chapter 3), python or binary files."""

    labels: Literal["fine", "coarse"] = "fine"
    """fine: 100 classes; coarse: their 20 superclasses."""

    title = "cifar100"
    folders = ("cifar-100-python", "cifar-100-binary")
    train_files: ClassVar[tuple[str, ...]] = ("train",)
    test_files: ClassVar[tuple[str, ...]] = ("test",)
    label_bytes: ClassVar[int] = 2

    @property
    def classes(self) -> int:
        return 100 if self.labels == "fine" else 20

    @property
    def label_place(self) -> int:
        return 1 if self.labels == "fine" else 0

    @property
    def sources(self) -> Sequence[Source]:
        archive = "cifar-100-python.tar.gz"
        return [Source(f"{HOME}/{archive}", 169001437, "md5:eb9058c3a382ffc7106e4002c42a8d85", unpack=True)]

    def read_python(self, content: bytes) -> Arrays:
        return read_batch(content, f"{self.labels}_labels", "CIFAR-100")

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        files = {f"train{SUFFIX}": samples.IMAGES, f"test{SUFFIX}": samples.TEST_IMAGES}
        both = lambda labels: np.stack([labels // FINE_OF_COARSE, labels], 1)  # noqa: E731
        samples.cifar(directory, "cifar100", files, label_bytes=both)
        return {"path": str(directory)}


def read_records(content: bytes, label_bytes: int, place: int) -> Arrays:
    """A binary batch: records of one or two label bytes and the pixels."""
    size = PIXELS + label_bytes
    if len(content) % size:
        raise ValueError(
            f"{len(content)} bytes are not a whole number of records of {size} bytes; it may be cut"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    return records[:, label_bytes:], records[:, place].astype(np.int64)


def check(images: NDArray[np.uint8], labels: NDArray[np.int64], classes: int) -> None:
    """Raises ValueError unless there are images of the right size with as many labels in range."""
    if not len(images) or images.shape[1] != PIXELS:
        raise ValueError(f"images of shape {images.shape}, expected (n, {PIXELS}) with n > 0")
    if labels.ndim != 1:
        raise ValueError(f"labels of shape {labels.shape}, expected (n,)")
    if len(labels) != len(images):
        raise ValueError(f"{len(labels)} labels for {len(images)} images")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels {labels.min()}..{labels.max()}, expected 0..{classes - 1}")
