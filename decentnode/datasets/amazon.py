"""Reviews of products, each with one to five stars."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from decentnode.core.registry import DATASETS
from decentnode.datasets import samples
from decentnode.datasets.base import LoadedDataset, Samples
from decentnode.datasets.leaf_texts import WORD, hashed
from decentnode.datasets.locate import ClientDataset
from decentnode.errors import DatasetError
from decentnode.options import Positive

STARS = 5
STAR = re.compile(r"[1-5](\.0)?")
UNKNOWN_WORD = 1

Review = tuple[list[str], int]
"""Words and stars."""


@DATASETS.register("amazon", "amazon_review", "amazon_reviews")
@dataclass(kw_only=True)
class Amazon(ClientDataset):
    """Amazon reviews, whose stars are told by their text (McAuley et al., 2015; Lai et al., 2022, FedScale).

    `train` and `test` have a CSV file for each client, as in FedScale and decentralizepy. Classes are 0 to 4,
    for one to five stars. Ids are those of the first `length` words; id 0 fills up. Clients are the groups of
    partition `natural`.
    """

    length: Positive = 64
    """Words of a sample."""
    words: Literal["hash", "vocabulary"] = "hash"
    """hash: ids are hashes (Weinberger et al., 2009); vocabulary: the most frequent words of the training
    texts have ids from 2 on, and all others the id 1.
    """
    buckets: Positive = 10_000
    """Ids of words are 1..buckets."""
    text_column: str = "data_path"
    """The column of the text; the default is FedScale's."""
    stars_column: str = "label_name"
    """The column of the stars; the default is FedScale's."""

    uses_seed: ClassVar[bool] = False
    title = "Amazon reviews"
    folders = ("amazon", "amazon_review", "amazon/data")
    suffix: ClassVar[str] = ".csv"
    content: ClassVar[str] = "CSV files of clients"
    licence: ClassVar[str] = "Amazon's, for research; see https://nijianmo.github.io/amazon"

    @property
    def steps(self) -> str:
        fedscale = "https://github.com/SymbioticLab/FedScale (benchmark/dataset/download.sh download amazon)"
        return (
            f"get them from {fedscale}, and write train/CLIENT.csv and test/CLIENT.csv to {{folder}}/amazon"
        )

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        samples.amazon(directory, self.text_column, self.stars_column)
        return {"path": str(directory), "train_path": None, "test_path": None}

    def read(self, seed: int) -> LoadedDataset:
        parts = [dict(self._clients(directory)) for directory in self.directories().values()]
        ids = self._vocabulary(parts[0]) if self.words == "vocabulary" else None
        numbers: dict[str, int] = {}
        train, test = (self._samples(part, ids, numbers) for part in parts)
        fitted = () if ids is None else ("the vocabulary (set dataset.words: hash)",)
        return LoadedDataset(train, test, STARS, shape=(self.length,), fitted=fitted)

    def _clients(self, directory: Path) -> Iterator[tuple[str, list[Review]]]:
        """Each client with its reviews, of which there are some."""
        has_rows = False
        for file in self.files(directory):
            if reviews := self._reviews(file):
                has_rows = True
                yield file.stem, reviews
        if not has_rows:
            raise DatasetError.at(
                "dataset.path", f"{directory}: no review in {len(self.files(directory))} files"
            )

    def _reviews(self, file: Path) -> list[Review]:
        place = str(file)
        try:
            with file.open(newline="", encoding="utf-8-sig") as opened:
                rows = csv.DictReader(opened)
                for option in ("text_column", "stars_column"):
                    name = getattr(self, option)
                    if name not in (rows.fieldnames or ()):
                        raise DatasetError.at(f"dataset.{option}", f"{file}:1: has no column {name!r}")
                return [self._review(row, f"{place}:{rows.line_num}") for row in rows]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DatasetError.at("dataset.path", f"{place}: cannot be read: {error}") from error

    def _review(self, row: Mapping[str, str | None], place: str) -> Review:
        text, stars = row[self.text_column], row[self.stars_column]
        if text is None or stars is None:
            raise DatasetError.at("dataset.path", f"{place}: has too few fields; it may be cut off")
        if not STAR.fullmatch(stars.strip()):
            raise DatasetError.at("dataset.path", f"{place}: {stars!r} are no stars; they must be 1..{STARS}")
        return WORD.findall(text.lower())[: self.length], int(stars.strip()[0])

    def _vocabulary(self, clients: Mapping[str, list[Review]]) -> dict[str, int]:
        texts: Iterable[list[str]] = (words for words, _ in chain.from_iterable(clients.values()))
        counts = Counter(chain.from_iterable(texts))
        # Words that are as frequent in the order of their letters, so that all machines agree.
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: max(0, self.buckets - 1)]
        return {word: place for place, word in enumerate(ranked, UNKNOWN_WORD + 1)}

    def _samples(
        self, clients: Mapping[str, list[Review]], ids: Mapping[str, int] | None, numbers: dict[str, int]
    ) -> Samples:
        count = sum(map(len, clients.values()))
        inputs, labels = np.zeros((count, self.length), dtype=np.int32), np.empty(count, dtype=np.int64)
        groups = np.empty(count, dtype=np.int64)
        for row, (client, (words, stars)) in enumerate(
            (client, review) for client, reviews in clients.items() for review in reviews
        ):
            inputs[row, : len(words)] = [self._id(word, ids) for word in words]
            labels[row], groups[row] = stars - 1, numbers.setdefault(client, len(numbers))
        return Samples(torch.from_numpy(inputs), torch.from_numpy(labels), groups=torch.from_numpy(groups))

    def _id(self, word: str, ids: Mapping[str, int] | None) -> int:
        return 1 + hashed(word) % self.buckets if ids is None else ids.get(word, UNKNOWN_WORD)
