"""The file format of LEAF: JSON files with the samples of users, in `train` and `test`."""

import codecs
import mmap
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.datasets import samples
from decentnode.datasets.base import LoadedDataset, Samples
from decentnode.datasets.locate import ClientDataset
from decentnode.errors import UNDECODABLE, DatasetError

ADDRESS = "https://github.com/TalwalkarLab/leaf"
RELEASED_BYTES = 1 << 24
"""Bytes of a file whose memory is released at a time."""
GROWTH = 16
"""Rows grow by this part where they are full."""

Arrays = tuple[NDArray[Any], NDArray[np.int64]]


class _File(msgspec.Struct):
    """The content of a file; `num_samples` is not read, as tools disagree on what it counts."""

    users: list[str]
    user_data: dict[str, msgspec.Raw]


class User(msgspec.Struct):
    """The samples of one user; subclasses say of which types."""

    x: list[Any]
    y: list[Any]


@dataclass(frozen=True)
class Part:
    """The samples of all users of one directory."""

    inputs: Tensor
    labels: Tensor
    groups: Tensor
    """Shape (n,), int64: the number of each sample's user."""

    def samples(self, mean: Tensor | None = None, std: Tensor | None = None) -> Samples:
        """Returns these images as samples, normalized by these statistics, or not at all."""
        samples = Samples(self.inputs, self.labels, groups=self.groups)
        return samples if mean is None or std is None else replace(samples, mean=mean, std=std)


@dataclass(kw_only=True)
class Leaf(ClientDataset):
    """A dataset of LEAF (Caldas et al., 2018, "LEAF: A benchmark for federated settings").

    `train` and `test` have JSON files, one for each user as decentralizepy writes them or of many users as
    LEAF does. Users are the groups of partition `natural`.
    """

    uses_seed: ClassVar[bool] = False
    user: ClassVar[type[User]]
    name: ClassVar[str]
    """The folder of the dataset in LEAF."""
    places: ClassVar[tuple[str, ...]] = ("train_path", "test_path")
    """Options that name other places of some files."""
    suffix: ClassVar[str] = ".json"
    content: ClassVar[str] = "JSON files of LEAF"

    @property
    def title(self) -> str:
        return f"LEAF {self.name}"

    @property
    def folders(self) -> tuple[str, ...]:
        return f"{self.name}/data", self.name, f"leaf/data/{self.name}/data"

    @property
    def steps(self) -> str:
        make = f"cd {{folder}}/leaf/data/{self.name} && ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample"
        return f"make them with: git clone {ADDRESS} {{folder}}/leaf && {make}"

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        """A sample of 100 users."""
        write = getattr(samples, self.name, None)
        if write is None:
            return super().write_sample(directory)
        # Two levels deep, as in LEAF: Reddit's vocabulary is beside the parent of `train`.
        write(directory / "data", users=samples.CLIENTS)
        return {"path": str(directory / "data"), **dict.fromkeys(self.places)}

    @abstractmethod
    def arrays(self, user: Any) -> Arrays:
        """Inputs (n, *shape) and labels (n,) of one user; raises ValueError with what is wrong."""

    def parts(self) -> tuple[Part, Part]:
        """All training and test samples; raises DatasetError with file and user."""
        numbers: dict[str, int] = {}
        train, test = (self._part(directory, numbers) for directory in self.directories().values())
        return train, test

    def _part(self, directory: Path, numbers: dict[str, int]) -> Part:
        inputs, labels, groups = _Rows(), _Rows(), _Rows()
        file_of: dict[str, Path] = {}
        files = self.files(directory)
        for file in files:
            for user, content in read_file(file):
                if user in file_of:
                    raise DatasetError.at("dataset.path", f"{file}: user {user!r} is also in {file_of[user]}")
                file_of[user] = file
                x, y = self._arrays(file, user, content)
                if len(y):
                    inputs.append(x)
                    labels.append(y)
                    groups.append(np.full(len(y), numbers.setdefault(user, len(numbers)), dtype=np.int64))
        if not len(labels):
            raise DatasetError.at("dataset.path", f"{directory}: no sample in {len(files)} files")
        return Part(inputs.tensor(), labels.tensor(), groups.tensor())

    def _arrays(self, file: Path, user: str, content: msgspec.Raw) -> Arrays:
        place = f"{file}: user {user!r}"
        try:
            samples = msgspec.json.decode(content, type=self.user)
        except UNDECODABLE as error:
            raise DatasetError.at("dataset.path", f"{place}: no samples of {self.title}: {error}") from error
        if len(samples.x) != len(samples.y):
            raise DatasetError.at(
                "dataset.path", f"{place}: {len(samples.y)} labels y for {len(samples.x)} inputs x"
            )
        try:
            return self.arrays(samples)
        except ValueError as error:
            raise DatasetError.at("dataset.path", f"{place}: {error}") from error


def read_file(file: Path) -> Iterator[tuple[str, msgspec.Raw]]:
    """The users of a file with their samples, not yet decoded; raises DatasetError.

    The file is mapped, and what was read of it is released, so that it and its samples are never in memory
    both in whole.
    """
    try:
        content = _mapped(file)
        start = len(codecs.BOM_UTF8) if content[: len(codecs.BOM_UTF8)] == codecs.BOM_UTF8 else 0
        parsed = msgspec.json.decode(memoryview(content)[start:], type=_File)
    except UNDECODABLE as error:
        raise DatasetError.at("dataset.path", f"{file}: no JSON file of LEAF: {error}") from error
    except OSError as error:
        raise DatasetError.at("dataset.path", f"{file}: {error.strerror}") from error
    named = set(parsed.users)
    for user in parsed.user_data:
        if user not in named:
            raise DatasetError.at("dataset.path", f"{file}: user {user!r} of user_data is not in users")
    read = released = 0
    for user in parsed.users:
        if user not in parsed.user_data:
            raise DatasetError.at("dataset.path", f"{file}: user {user!r} has no samples in user_data")
        raw = parsed.user_data[user]
        yield user, raw
        # Users are in this order in the file, usually; pages that are needed again are read again.
        read += memoryview(raw).nbytes
        if read - released >= RELEASED_BYTES and isinstance(content, mmap.mmap):
            end = read - read % mmap.PAGESIZE
            content.madvise(mmap.MADV_DONTNEED, released, end - released)
            released = end


def _mapped(file: Path) -> mmap.mmap | bytes:
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size or not hasattr(mmap, "MADV_DONTNEED"):
            return opened.read()
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


class _Rows:
    """Rows that are appended; the memory grows in place, so that at no time all are there twice."""

    def __init__(self) -> None:
        self._rows: NDArray[Any] = np.empty(0)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, rows: NDArray[Any]) -> None:
        """Adds rows, all of the shape and type of the first."""
        if not self._count:
            self._rows = np.empty((0, *rows.shape[1:]), dtype=rows.dtype)
        end = self._count + len(rows)
        if end > len(self._rows):
            self._resize(end + len(self._rows) // GROWTH)
        self._rows[self._count : end] = rows
        self._count = end

    def tensor(self) -> Tensor:
        """All rows, without a copy."""
        self._resize(self._count)
        return torch.from_numpy(self._rows)

    def _resize(self, count: int) -> None:
        # Nobody else has the array; where it is large, the system moves pages and copies nothing.
        self._rows.resize((count, *self._rows.shape[1:]), refcheck=False)


def check_labels(labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """The labels in int64; raises ValueError unless all are classes."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes) | (labels % 1 != 0))
    if len(wrong):
        raise ValueError(f"y[{wrong[0]}] is {labels[wrong[0]]}; it must be one of 0..{classes - 1}")
    return labels.astype(np.int64)


def dataset_of(parts: tuple[Part, Part], classes: int) -> LoadedDataset:
    """Samples of ids, as a dataset."""
    train, test = (replace(part.samples(), ids=True) for part in parts)
    return LoadedDataset(train, test, classes, shape=tuple(parts[0].inputs.shape[1:]))
