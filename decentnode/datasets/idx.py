"""MNIST and its relatives, from their published IDX files."""

import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, cast

import torch
from torch import Tensor

from decentnode.core.registry import DATASETS
from decentnode.datasets import samples
from decentnode.datasets.base import LoadedDataset, Source, image_dataset
from decentnode.datasets.locate import FileDataset
from decentnode.errors import DatasetError

Variant = Literal[
    "fashion-mnist", "mnist", "kmnist",
    "emnist-balanced", "emnist-byclass", "emnist-bymerge", "emnist-digits", "emnist-letters", "emnist-mnist",
]  # fmt: skip

UNSIGNED_BYTE = 0x08
BLOCK = 1 << 24
MOST_BYTES = 1 << 40
"""A limit above the size of all these data sets; a header with a larger size is damaged."""
GZIP_MAGIC = b"\x1f\x8b"
EMNIST_FOLDERS = ("emnist", "EMNIST/raw", "gzip")
FOLDERS = {
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw"),
    "mnist": ("mnist", "MNIST/raw"),
    "kmnist": ("kmnist", "KMNIST/raw"),
}
CLASSES = {"emnist-balanced": 47, "emnist-bymerge": 47, "emnist-byclass": 62, "emnist-letters": 26}
"""The other variants have ten classes."""
NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class _Origin:
    """Where the files of a variant are, as in torchvision's list, in the order of `NAMES`."""

    url: str
    licence: str
    sizes: tuple[int, ...]
    md5: tuple[str, ...]


ORIGINS = {
    "fashion-mnist": _Origin(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", "MIT",
        (26421880, 29515, 4422102, 5148),
        md5=("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
         "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "mnist": _Origin(
        "https://ossci-datasets.s3.amazonaws.com/mnist", "CC BY-SA 3.0",
        (9912422, 28881, 1648877, 4542),
        md5=("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
         "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "kmnist": _Origin(
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist", "CC BY-SA 4.0",
        (18165135, 29497, 3041136, 5120),
        md5=("bdb82020997e1d708af4cf47b453dcf7", "e144d726b3acfaa3e44228e80efcd344",
         "5c965bf0a639b31b8f53240b1b52f4d7", "7320c461ea6c1c855c0b718fb2a4b134"),
    ),
}  # fmt: skip
EMNIST = Source(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", 561753746, "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    unpack=True,
)  # fmt: skip


@DATASETS.register("idx", "mnist", "fashion_mnist", "fmnist", "kmnist", "emnist")
@dataclass(kw_only=True)
class Idx(FileDataset):
    """MNIST and its relatives Fashion-MNIST, KMNIST and EMNIST, from IDX files (LeCun et al., 1998).

    Fashion-MNIST: Xiao et al., 2017. KMNIST: Clanuwat et al., 2018. EMNIST: Cohen et al., 2017; its images
    are stored transposed and are transposed back here; the labels of its letters start at 1, here at 0.
    """

    variant: Variant = "fashion-mnist"

    uses_seed: ClassVar[bool] = False

    @property
    def title(self) -> str:
        return self.variant

    @property
    def folders(self) -> Sequence[str]:
        return FOLDERS.get(self.variant, EMNIST_FOLDERS)

    @property
    def licence(self) -> str:  # type: ignore[override]
        return "none stated; made by NIST" if self._is_emnist else ORIGINS[self.variant].licence

    @property
    def sources(self) -> Sequence[Source]:
        if self._is_emnist:
            return [EMNIST]
        origin, folder = ORIGINS[self.variant], FOLDERS[self.variant][0]
        return [
            Source(f"{origin.url}/{name}-ubyte.gz", size, f"md5:{md5}", folder=folder)
            for name, size, md5 in zip(NAMES, origin.sizes, origin.md5, strict=True)
        ]

    @property
    def download_words(self) -> Sequence[str]:
        return ("idx", f"variant={self.variant}")

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        prefix = f"{self.variant}-" if self._is_emnist else ""
        classes = CLASSES.get(self.variant, 10)
        samples.idx(
            directory, self.variant, prefix, test=self._test_name, classes=classes, first=self._first_label
        )
        return {"path": str(directory)}

    def read(self, seed: int) -> LoadedDataset:
        directory = self.directory()
        train, test = self._part(directory, "train"), self._part(directory, self._test_name)
        if train[0].shape[1:] != test[0].shape[1:]:
            raise DatasetError(f"{directory}: training and test images have different sizes")
        return image_dataset(train, test, 1 + int(max(train[1].max(), test[1].max())))

    @property
    def _is_emnist(self) -> bool:
        return self.variant.startswith("emnist")

    @property
    def _first_label(self) -> int:
        return 1 if self.variant == "emnist-letters" else 0

    @property
    def _test_name(self) -> str:
        return "test" if self._is_emnist else "t10k"

    def _find(self, directory: Path, part: str, content: str) -> Path | None:
        """The file of one part ("train") and content ("images-idx3") under any of its usual names."""
        prefix = f"{self.variant}-" if self._is_emnist else ""
        stems = [f"{prefix}{part}-{content}-ubyte", f"{prefix}{part}-{content.replace('-', '.')}-ubyte"]
        paths = [directory / f"{stem}{suffix}" for stem in stems for suffix in (".gz", "")]
        return next((path for path in paths if path.is_file()), None)

    def is_complete(self, directory: Path) -> bool:
        # MNIST's relatives have the same file names: among the usual places only the folder identifies them.
        folders = FOLDERS.get(self.variant)
        if self.path is None and folders and not directory.as_posix().endswith(folders):
            return False
        parts = ("train", self._test_name)
        return all(self._find(directory, part, c) for part in parts for c in ("images-idx3", "labels-idx1"))

    def _part(self, directory: Path, part: str) -> tuple[Tensor, Tensor]:
        images_path = cast(Path, self._find(directory, part, "images-idx3"))
        labels_path = cast(Path, self._find(directory, part, "labels-idx1"))
        images, labels = read_pair(images_path, labels_path)
        if self._is_emnist:
            images = images.transpose(2, 3).contiguous()
        first = self._first_label
        last = first + CLASSES.get(self.variant, 10) - 1
        wrong = labels[(labels < first) | (labels > last)]
        if len(wrong):
            defect = f"holds a label {int(wrong[0])}, those of {self.variant} are {first}..{last}"
            raise DatasetError(f"{labels_path}: {defect}")
        return images, labels - first


def read_pair(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    """Images as uint8 (n, 1, height, width) and as many int64 labels."""
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1).long()
    if len(images) != len(labels):
        raise DatasetError(
            f"{labels_path}: {len(labels)} labels for the {len(images)} images in {images_path.name}"
        )
    return images.unsqueeze(1), labels


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The uint8 array of an IDX file, gzipped or plain; raises DatasetError that names file and defect."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            return parse_idx(cast(BinaryIO, gzip.GzipFile(fileobj=file)) if zipped else file, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error


def _read(stream: BinaryIO, most: int) -> bytearray:
    """Reads up to `most` bytes, block by block: the size in a damaged header may not fit into memory."""
    content = bytearray()
    while block := stream.read(min(BLOCK, most - len(content))):
        content += block
    return content


def parse_idx(stream: BinaryIO, dimensions: int) -> Tensor:
    """The array in `stream`; raises ValueError. Reads no more than the header announces."""
    magic = stream.read(4)
    wanted = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if magic != wanted:
        raise ValueError(f"starts with 0x{magic.hex()}, an IDX file of this kind with 0x{wanted.hex()}")
    header = stream.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise ValueError("ends within its header")
    shape = [int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4)]
    if prod(shape) > MOST_BYTES:
        raise ValueError(f"its header announces {'x'.join(map(str, shape))} bytes; it is damaged")
    content = _read(stream, prod(shape) + 1)
    if len(content) != prod(shape) or not content:
        surplus = "more follow" if len(content) > prod(shape) else f"{len(content)} follow"
        raise ValueError(f"its header announces {'x'.join(map(str, shape))} = {prod(shape)} bytes, {surplus}")
    return torch.frombuffer(content, dtype=torch.uint8).view(shape)
