"""Where the files of a dataset lie."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from decentnode.errors import DatasetError

ENVIRONMENT = "DECENTNODE_DATASETS"


def usual_roots() -> list[Path]:
    """Directories that hold one folder per dataset, the user's own first."""
    named = os.environ.get(ENVIRONMENT)
    return [Path(root) for root in (named, "data", "datasets", "/usr/share/datasets") if root]


def locate(
    name: str, path: str | None, folders: Iterable[str], complete: Callable[[Path], bool], remedy: str
) -> Path:
    """The first complete directory: `path` or a folder in it; without `path`, the same of the usual roots.

    Raises DatasetError that lists where it looked and ends with `remedy`.
    """
    roots = usual_roots() if path is None else [Path(path)]
    candidates = [root / folder for root in roots for folder in ("", *folders)]
    try:
        found = next((candidate for candidate in candidates if complete(candidate)), None)
    except OSError as error:
        raise DatasetError(f"dataset.path: cannot be searched: {error.strerror}") from error
    if found is None:
        places = ", ".join(map(str, roots))
        raise DatasetError(f"dataset.path: no complete set of {name} files in {places}; {remedy}")
    return found
