"""Finds the files of a dataset."""

import os
import shlex
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decentnode.datasets.base import Dataset
from decentnode.errors import DatasetError

ENVIRONMENT = "DECENTNODE_DATASETS"
FOLDERS = ("data", "datasets")
"""Beside the configuration or in the current folder, with one folder for each dataset."""
SYSTEM = "/usr/share/datasets"


@dataclass(kw_only=True)
class FileDataset(Dataset):
    """A dataset in files of one directory, which is searched for where `path` does not name it."""

    path: str | None = None
    """The directory with the files; without it the usual places are searched."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name in messages."""

    @property
    @abstractmethod
    def folders(self) -> Sequence[str]:
        """The usual names of the directory with its files."""

    @property
    @abstractmethod
    def remedy(self) -> str:
        """How to get the files: a command with `{folder}` for their directory."""

    @abstractmethod
    def is_complete(self, directory: Path) -> bool:
        """Whether all files are there."""

    def find(self, roots: Iterable[Path]) -> Path | None:
        """The first complete directory: a root, or one of `folders` in it. Raises DatasetError."""
        candidates = (root / folder for root in roots for folder in ("", *self.folders))
        try:
            return next((candidate for candidate in candidates if self.is_complete(candidate)), None)
        except OSError as error:
            raise DatasetError(f"dataset.path: cannot be searched: {error.strerror}") from error

    def directory(self) -> Path:
        """The directory of the files; raises DatasetError with the places that it searched and a remedy."""
        own = own_roots()
        here = [Path(folder) for folder in FOLDERS]
        found = self.find([*own, *here, Path(SYSTEM)] if self.path is None else [Path(self.path)])
        if found is None:
            usual = f"{' or '.join(FOLDERS)} (beside the configuration or in the current folder)"
            places = [*map(str, own), usual, SYSTEM] if self.path is None else [self.path]
            remedy = self.remedy.format(folder=shlex.quote(self.path or FOLDERS[0]))
            raise DatasetError(
                f"dataset.path: no complete set of {self.title} files in {', '.join(places)}; {remedy}"
            )
        return found


def own_roots() -> list[Path]:
    """The directories of the user's environment variable, which are searched first."""
    named = os.environ.get(ENVIRONMENT)
    return [Path(named).absolute()] if named else []


def path_beside(dataset: Dataset, folder: Path) -> str | None:
    """The directory of a dataset's files, where it is in `data` or `datasets` of a configuration's folder.

    None where there is none, where `path` is set, and for a dataset without files. Raises DatasetError.
    """
    if not isinstance(dataset, FileDataset) or dataset.path is not None:
        return None
    found = dataset.find([*own_roots(), *(folder / name for name in FOLDERS)])
    return None if found is None else str(found)
