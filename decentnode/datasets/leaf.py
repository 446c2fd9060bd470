"""The file format of LEAF: JSON files with the samples of users, in `train` and `test`."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.datasets.base import LoadedDataset, Samples
from decentnode.datasets.locate import FileDataset
from decentnode.errors import UNDECODABLE, DatasetError

PARTS = ("train", "test")
ADDRESS = "https://github.com/TalwalkarLab/leaf"

Arrays = tuple[NDArray[Any], NDArray[np.int64]]


class _File(msgspec.Struct):
    """What is in a file; `num_samples` is not read, as tools disagree on what it counts."""

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
        """The same as samples, normalized by these statistics, or not at all."""
        found = Samples(self.inputs, self.labels, groups=self.groups)
        return found if mean is None or std is None else replace(found, mean=mean, std=std)


@dataclass(kw_only=True)
class Leaf(FileDataset):
    """A dataset of LEAF (Caldas et al., 2018, "LEAF: A benchmark for federated settings").

    `train` and `test` have JSON files, one for each user as decentralizepy writes them or of many users as
    LEAF does. Users are the groups of partition `natural`.
    """

    train_path: str | None = None
    """The directory of the training files; null: `train` in the directory of the dataset."""
    test_path: str | None = None
    """The directory of the test files; null: `test` in the directory of the dataset."""

    uses_seed: ClassVar[bool] = False
    user: ClassVar[type[User]]
    name: ClassVar[str]
    """Its folder in LEAF."""

    @property
    def title(self) -> str:
        return f"LEAF {self.name}"

    @property
    def folders(self) -> tuple[str, ...]:
        return f"{self.name}/data", self.name, f"leaf/data/{self.name}/data"

    @property
    def remedy(self) -> str:
        make = f"cd {{folder}}/leaf/data/{self.name} && ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample"
        return f"make them with: git clone {ADDRESS} {{folder}}/leaf && {make}"

    def is_complete(self, directory: Path) -> bool:
        """Whether both directories, apart from those with an option of their own, have JSON files."""
        given = (self.train_path, self.test_path)
        return all(path or json_files(directory / part) for part, path in zip(PARTS, given, strict=True))

    def directories(self) -> dict[str, Path]:
        """Those of the training and the test files; raises DatasetError."""
        given = {"train": self.train_path, "test": self.test_path}
        root = Path() if all(given.values()) else self._root()
        found = {part: root / part if path is None else Path(path) for part, path in given.items()}
        for part, directory in found.items():
            if not json_files(directory):
                option = "path" if given[part] is None else f"{part}_path"
                raise DatasetError(f"dataset.{option}: {directory}: no directory with JSON files of LEAF")
        return found

    def _root(self) -> Path:
        if self.path is not None and any(json_files(Path(self.path) / part) for part in PARTS):
            return Path(self.path)
        return self.directory()

    @abstractmethod
    def arrays(self, user: Any) -> Arrays:
        """Inputs (n, *shape) and labels (n,) of one user; raises ValueError with what is wrong."""

    def parts(self) -> tuple[Part, Part]:
        """All training and test samples; raises DatasetError with file and user."""
        numbers: dict[str, int] = {}
        train, test = (self._part(directory, numbers) for directory in self.directories().values())
        return train, test

    def _part(self, directory: Path, numbers: dict[str, int]) -> Part:
        inputs, labels, groups = [], [], []
        file_of: dict[str, Path] = {}
        for file in json_files(directory):
            for user, content in read_file(file):
                if user in file_of:
                    raise DatasetError(f"dataset.path: {file}: user {user!r} is also in {file_of[user]}")
                file_of[user] = file
                x, y = self._arrays(file, user, content)
                if len(y):
                    inputs.append(x)
                    labels.append(y)
                    groups.append(np.full(len(y), numbers.setdefault(user, len(numbers)), dtype=np.int64))
        if not labels:
            raise DatasetError(f"dataset.path: {directory}: no sample in {len(json_files(directory))} files")
        return Part(joined(inputs), joined(labels), joined(groups))

    def _arrays(self, file: Path, user: str, content: msgspec.Raw) -> Arrays:
        place = f"dataset.path: {file}: user {user!r}"
        try:
            found = msgspec.json.decode(content, type=self.user)
        except UNDECODABLE as error:
            raise DatasetError(f"{place}: no samples of {self.title}: {error}") from error
        if len(found.x) != len(found.y):
            raise DatasetError(f"{place}: {len(found.y)} labels y for {len(found.x)} inputs x")
        try:
            return self.arrays(found)
        except ValueError as error:
            raise DatasetError(f"{place}: {error}") from error


def json_files(directory: Path) -> list[Path]:
    """The JSON files of a directory in the order of their names; none where there is no directory."""
    return sorted(directory.glob("*.json"))


def read_file(file: Path) -> Iterator[tuple[str, msgspec.Raw]]:
    """The users of a file with their samples, not yet decoded; raises DatasetError."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_File)
    except UNDECODABLE as error:
        raise DatasetError(f"dataset.path: {file}: no JSON file of LEAF: {error}") from error
    except OSError as error:
        raise DatasetError(f"dataset.path: {file}: {error.strerror}") from error
    named = set(found.users)
    for user in found.user_data:
        if user not in named:
            raise DatasetError(f"dataset.path: {file}: user {user!r} of user_data is not in users")
    for user in found.users:
        if user not in found.user_data:
            raise DatasetError(f"dataset.path: {file}: user {user!r} has no samples in user_data")
        yield user, found.user_data[user]


def joined(pieces: list[NDArray[Any]]) -> Tensor:
    """All rows in one tensor; empties the list, so that at no time all are there twice.

    Small integers are ids, which have 16 bits at least; images stay in 8.
    """
    first = pieces[0]
    dtype = np.dtype(np.int16) if first.dtype == np.int8 else first.dtype
    rows = np.empty((sum(map(len, pieces)), *first.shape[1:]), dtype=dtype)
    start = 0
    pieces.reverse()
    while pieces:
        piece = pieces.pop()
        rows[start : start + len(piece)] = piece
        start += len(piece)
    return torch.from_numpy(rows)


def check_labels(labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """The labels in int64; raises ValueError unless all are classes."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes) | (labels % 1 != 0))
    if len(wrong):
        raise ValueError(f"y[{wrong[0]}] is {labels[wrong[0]]}; it must be one of 0..{classes - 1}")
    return labels.astype(np.int64)


def dataset_of(parts: tuple[Part, Part], classes: int) -> LoadedDataset:
    """Samples that are not normalized, as a dataset."""
    train, test = (part.samples() for part in parts)
    return LoadedDataset(train, test, classes, tuple(parts[0].inputs.shape[1:]))
