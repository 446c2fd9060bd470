"""Ratings of films."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from decentnode.core.registry import DATASETS
from decentnode.core.rng import generator
from decentnode.datasets import samples
from decentnode.datasets.base import LoadedDataset, Samples, Source
from decentnode.datasets.locate import FileDataset
from decentnode.errors import DatasetError

FILE = "ratings.csv"
SMALL = Source(
    "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip", 978202,
    "sha256:696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436", unpack=True,
)  # fmt: skip
COLUMNS = ("userId", "movieId", "rating")


@DATASETS.register("movielens")
@dataclass(kw_only=True)
class MovieLens(FileDataset):
    """Ratings of films by users, from ratings.csv (Harper and Konstan, 2015, "The MovieLens Datasets").

    A sample is (user, film), numbered from 0 in the order of their ids; the label is the rating. Users are
    the groups of partition `natural`. Of each user's ratings a part is for testing, drawn by the seed, as in
    decentralizepy (Dhasade et al., 2023).
    """

    test_fraction: float = 0.3

    task: ClassVar[str] = "rating"
    licence: ClassVar[str] = "for research, not to be passed on; README.txt in it has the terms"

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise DatasetError.at(
                "dataset.test_fraction", f"must be between 0 and 1, not {self.test_fraction:g}"
            )

    @property
    def title(self) -> str:
        return "MovieLens"

    @property
    def folders(self) -> Sequence[str]:
        return ("ml-latest-small", "ml-latest", "ml-25m", "movielens")

    @property
    def sources(self) -> Sequence[Source]:
        return [SMALL]

    def is_complete(self, directory: Path) -> bool:
        return (directory / FILE).is_file()

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        samples.movielens(directory / FILE)
        return {"path": str(directory)}

    def read(self, seed: int) -> LoadedDataset:
        users, films, ratings = read_ratings(self.directory() / FILE)
        ids = np.stack([np.unique(column, return_inverse=True)[1] for column in (users, films)], 1)
        is_test = self._drawn(ids[:, 0], seed)
        train, test = (self._samples(ids[part], ratings[part]) for part in (~is_test, is_test))
        return LoadedDataset(
            train, test, num_classes=1, shape=(2,), fitted=("the numbers of users and films",)
        )

    def _drawn(self, users: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
        """Draws the ratings for testing: the same fraction for each user, rounded, but never all."""
        rng = generator(seed, "movielens")
        # Random within a user, so the first of each user's ratings in this order are drawn.
        order = np.lexsort((rng.random(len(users)), users))
        counts = np.bincount(users)
        place = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
        wanted = np.minimum(np.round(counts * self.test_fraction), counts - 1)
        drawn = np.zeros(len(users), dtype=bool)
        drawn[order] = place < np.repeat(wanted, counts)
        return drawn

    def _samples(self, ids: NDArray[np.int64], ratings: NDArray[np.float32]) -> Samples:
        inputs = torch.from_numpy(ids.astype(np.int32))
        return Samples(inputs, torch.from_numpy(ratings), groups=torch.from_numpy(ids[:, 0].copy()))


def read_ratings(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Reads users, films and ratings of a file, as they stand there; raises DatasetError with the line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise DatasetError.at(
                    "dataset.path", f"{path}:1: has no column {missing[0]}; it is no {FILE} of MovieLens"
                )
            numbers = [_numbers(row, path, rows.line_num) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError.at("dataset.path", f"{path}: cannot be read: {error}") from error
    if not numbers:
        raise DatasetError.at("dataset.path", f"{path}: has no rating")
    users, films, ratings = zip(*numbers, strict=True)
    return np.array(users), np.array(films), np.array(ratings, dtype=np.float32)


def _numbers(row: dict[str, str | None], path: Path, line: int) -> tuple[int, int, float]:
    try:
        user, film, rating = (row[name] or "" for name in COLUMNS)
        return int(user), int(film), float(rating)
    except ValueError as error:
        raise DatasetError.at("dataset.path", f"{path}:{line}: is no rating: {error}") from error
