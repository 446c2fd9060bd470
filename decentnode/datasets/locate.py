"""Finds the files of a dataset."""

import os
import shlex
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from decentnode.core.registry import name_of
from decentnode.datasets.base import Dataset
from decentnode.datasets.samples import PARTS
from decentnode.errors import DatasetError

ENVIRONMENT = "DECENTNODE_DATASETS"
FOLDERS = ("data", "datasets")
"""Folders beside the configuration or in the current folder, with one folder for each dataset."""
SYSTEM = "/usr/share/datasets"


@dataclass(kw_only=True)
class FileDataset(Dataset):
    """A dataset in files of one directory, which is searched for where `path` does not name it."""

    path: str | None = None
    """The directory with the files; without it the usual places are searched."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The name of the dataset in messages."""

    @property
    @abstractmethod
    def folders(self) -> Sequence[str]:
        """The usual names of the directory with its files."""

    @property
    def remedy(self) -> str:
        """How to get the files: a command with `{folder}` for their directory."""
        if not self.sources:
            return self.steps
        return f"fetch them with: decentnode download {' '.join(self.download_words)} --to {{folder}}"

    @property
    def download_words(self) -> Sequence[str]:
        """The dataset in `decentnode download`: its name, and options that choose other files."""
        return (name_of(self),)

    @abstractmethod
    def is_complete(self, directory: Path) -> bool:
        """Whether all files are there."""

    def find(self, roots: Iterable[Path]) -> Path | None:
        """The first complete directory: a root, or one of `folders` in it. Raises DatasetError."""
        candidates = (root / folder for root in roots for folder in ("", *self.folders))
        try:
            return next((candidate for candidate in candidates if self.is_complete(candidate)), None)
        except OSError as error:
            raise DatasetError.at("dataset.path", f"cannot be searched: {error.strerror}") from error

    def directory(self) -> Path:
        """The directory of the files; raises DatasetError with the places that it searched and a remedy."""
        roots = own_roots()
        here = [Path(folder) for folder in FOLDERS]
        directory = self.find([*roots, *here, Path(SYSTEM)] if self.path is None else [Path(self.path)])
        if directory is None:
            usual = f"{' or '.join(FOLDERS)} (beside the configuration or in the current folder)"
            places = [*map(str, roots), usual, SYSTEM] if self.path is None else [self.path]
            remedy = self.remedy.format(folder=shlex.quote(self.path or FOLDERS[0]))
            raise DatasetError.at(
                "dataset.path", f"no complete set of {self.title} files in {', '.join(places)}; {remedy}"
            )
        return directory


@dataclass(kw_only=True)
class ClientDataset(FileDataset):
    """A dataset in `train` and `test`, two directories with the files of clients."""

    train_path: str | None = None
    """The directory of the training files; null: `train` in the directory of the dataset."""
    test_path: str | None = None
    """The directory of the test files; null: `test` in the directory of the dataset."""

    suffix: ClassVar[str]
    """The suffix of the files."""
    content: ClassVar[str]
    """The files in messages."""

    def is_complete(self, directory: Path) -> bool:
        """Whether both directories, apart from those with an option of their own, have files."""
        paths = (self.train_path, self.test_path)
        return all(path or self.files(directory / part) for part, path in zip(PARTS, paths, strict=True))

    def files(self, directory: Path) -> list[Path]:
        """The files of a directory in the order of their names; none where there is no directory."""
        return sorted(file for file in directory.glob(f"*{self.suffix}") if not is_hidden(file))

    def directories(self) -> dict[str, Path]:
        """Returns the directories of the training and the test files; raises DatasetError."""
        paths = {"train": self.train_path, "test": self.test_path}
        root = Path() if all(paths.values()) else self._root()
        directories = {part: root / part if path is None else Path(path) for part, path in paths.items()}
        for part, directory in directories.items():
            if not self.files(directory):
                option = "path" if paths[part] is None else f"{part}_path"
                raise DatasetError.at(f"dataset.{option}", f"{directory}: no directory with {self.content}")
        return directories

    def _root(self) -> Path:
        if self.path is not None and any(self.files(Path(self.path) / part) for part in PARTS):
            return Path(self.path)
        return self.directory()


def is_hidden(path: Path) -> bool:
    """Whether a system or an editor left it among the data: `._NAME`, `.DS_Store`, `.ipynb_checkpoints`."""
    return path.name.startswith(".") or path.name == "__MACOSX"


def own_roots() -> list[Path]:
    """The directories of the user's environment variable, which are searched first."""
    named = os.environ.get(ENVIRONMENT)
    return [Path(named).absolute()] if named else []


def path_in_folder(dataset: Dataset, folder: Path) -> str | None:
    """The directory of a dataset's files, where it is in `data` or `datasets` of a configuration's folder.

    None where there is none, where `path` is set, and for a dataset without files. Raises DatasetError.
    """
    if not isinstance(dataset, FileDataset) or dataset.path is not None or dataset.is_sample:
        return None
    directory = dataset.find([*own_roots(), *(folder / name for name in FOLDERS)])
    return None if directory is None else str(directory)
