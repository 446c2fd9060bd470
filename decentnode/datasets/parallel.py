"""Sentences with their translations."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from decentnode.core.atomic_files import write_durably
from decentnode.core.registry import DATASETS
from decentnode.datasets import byte_pairs, samples
from decentnode.datasets.base import IGNORED, Dataset, LoadedDataset, Samples
from decentnode.datasets.byte_pairs import BEGIN, END, LEAST, PADDING
from decentnode.datasets.prepared_files import TextFile, in_groups, prepared
from decentnode.datasets.ragged import Ragged, Vocabulary
from decentnode.datasets.text import check_path
from decentnode.errors import DatasetError
from decentnode.options import Positive

CACHE = "decentnode-cache"
FORMAT = 1
"""A part of the name of prepared files."""
LINES_AT_A_TIME = 4096
SAMPLE_PAIRS = 480
SAMPLE_DOCUMENTS = 120
TOKENIZER = "tokenizer.json"

Rows = NDArray[np.int64]
"""The length of source and target, and the line, of each pair, shape (pairs, 3)."""


@DATASETS.register("parallel")
@dataclass(kw_only=True)
class Parallel(Dataset):
    """Translated sentences in two text files, line by line, as those of WMT (Bojar et al., 2014).

    Texts become ids by byte-pair encoding with one vocabulary for both languages (Vaswani et al., 2017,
    section 5.1). Id 0 is padding, 1 begins and 2 ends a sentence. The ids are kept in files and mapped. Pairs
    with an empty sentence are left out.
    """

    path: Path | None = None
    """The directory with `train` and `valid` in both languages, such as train.en and train.de."""
    source: str = "en"
    """The suffix of the files to translate from."""
    target: str = "de"
    """The suffix of the files to translate to."""
    train: str = "train"
    """The name of the training files without the suffix."""
    valid: str = "valid"
    """The name of the test files without the suffix."""
    vocabulary: Positive = 32_000
    """The number of ids; small files may not use all of them. At least 259."""
    length: Positive = 156
    """Tokens of a sentence, with its begin or end; longer sentences are cut off."""
    documents: str | None = None
    """The suffix of files with the document of each line, which are the groups of partition `natural`; null:
    no groups.
    """
    cache_path: Path | None = None
    """Where the vocabulary and the ids are kept; null: `decentnode-cache` in `path`."""

    task: ClassVar[str] = "translation"
    uses_seed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.vocabulary < LEAST:
            raise DatasetError.at("dataset.vocabulary", f"must be at least {LEAST}, not {self.vocabulary}")
        check_path(self.path, self)

    @property
    def steps(self) -> str:
        return (
            "write the two languages of a corpus as train.en, train.de, valid.en and valid.de into {folder}; "
            "decentnode prepare wmt14 FOLDER makes those of WMT 2014"
        )

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        samples.parallel(directory, SAMPLE_PAIRS, documents=SAMPLE_DOCUMENTS)
        names = {"source": "en", "target": "de", "train": "train", "valid": "valid"}
        documents = self.documents and "document"
        return {"path": directory, **names, "documents": documents, "cache_path": None}

    @property
    def _directory(self) -> Path:
        return Path(self.path or "")

    def read(self, seed: int) -> LoadedDataset:
        pairs = self.file_pairs()
        folder = prepared(self.cache, self.cache_name(pairs), lambda empty: self._prepare(empty, pairs))
        try:
            vocabulary = byte_pairs.vocabulary_of((folder / TOKENIZER).read_bytes(), self.vocabulary)
            parts = [self._load(folder / part, vocabulary) for part in ("train", "test")]
        except (OSError, ValueError) as error:
            raise DatasetError.at(
                "dataset.cache_path", f"{folder}: is damaged ({error}); remove it"
            ) from error
        train, test = self._with_groups(parts, pairs)
        return LoadedDataset(
            train, test, self.vocabulary, shape=(self.length,), fitted=("the vocabulary of byte pairs",)
        )

    @property
    def cache(self) -> Path:
        """Where the vocabulary and the ids are kept."""
        return self.cache_path or self._directory / CACHE

    def file_pairs(self) -> list[list[TextFile]]:
        """The files to train and to test with, source before target; raises DatasetError."""
        return [self._pair(name) for name in (self.train, self.valid)]

    def cache_name(self, file_pairs: list[list[TextFile]]) -> str:
        """The folder in `cache` for the content of these files."""
        content = xxhash.xxh3_128(f"{FORMAT} {self.vocabulary}".encode())
        for file in chain.from_iterable(pair[:2] for pair in file_pairs):
            content.update(file.digest)
        return content.hexdigest()

    def _pair(self, name: str) -> list[TextFile]:
        """The files of both languages, and of documents if there are any."""
        suffixes = [self.source, self.target, *([self.documents] if self.documents else [])]
        files = [TextFile.at(self._directory / f"{name}.{suffix}") for suffix in suffixes]
        for other in files[1:]:
            if other.lines != files[0].lines:
                raise DatasetError.at(
                    "dataset.path",
                    f"{files[0].path} has {files[0].lines} lines, {other.path} has "
                    f"{other.lines}; each line of one must belong to that line of the other",
                )
        return files

    def _prepare(self, folder: Path, file_pairs: list[list[TextFile]]) -> None:
        """Writes the tokenizer, and the ids of both parts."""
        tokenizer = self.trained_tokenizer(folder / TOKENIZER, file_pairs[0][0], file_pairs[0][1])
        for part, (source, target, *_) in zip(("train", "test"), file_pairs, strict=True):
            rows = self.write_ids(folder / part, tokenizer, source, target)
            self.write_rows(folder / part, rows, source)

    def trained_tokenizer(
        self, path: Path, source_file: TextFile, target_file: TextFile, threads: bool = False
    ) -> Any:
        """Trains the tokenizer of both languages, and writes it; `threads` as for `byte_pairs.trained`."""
        texts = chain(source_file.texts(), target_file.texts())
        tokenizer = byte_pairs.trained(texts, self.vocabulary, threads)
        write_durably(path, [tokenizer.to_str().encode()])
        return tokenizer

    def write_ids(self, stem: Path, tokenizer: Any, source_file: TextFile, target_file: TextFile) -> Rows:
        """Writes the ids of all pairs; returns lengths of source and target, and the line, of each."""
        rows = list[tuple[int, int, int]]()
        write_durably(stem.with_suffix(".ids"), self._ids(tokenizer, source_file, target_file, rows=rows))
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    @staticmethod
    def write_rows(stem: Path, rows: Rows, source_file: TextFile) -> None:
        """Writes what `write_ids` returned; raises DatasetError where there is no pair."""
        if not len(rows):
            raise DatasetError.at("dataset.path", f"{source_file.path}: has no sentence with a translation")
        table = io.BytesIO()
        np.save(table, rows)
        write_durably(stem.with_suffix(".npy"), [table.getbuffer()])

    def _ids(
        self, tokenizer: Any, source_file: TextFile, target_file: TextFile, rows: list[tuple[int, int, int]]
    ) -> Iterator[bytes]:
        """The ids of all pairs; adds the length of source and target, and the line, of each to `rows`."""
        lines = enumerate(zip(source_file.texts(), target_file.texts(), strict=True))
        for some in in_groups((line for line in lines if all(line[1])), LINES_AT_A_TIME):
            numbers, pairs = zip(*some, strict=True)
            sides = (byte_pairs.encoded(tokenizer, side) for side in zip(*pairs, strict=True))
            for number, x, y in zip(numbers, *sides, strict=True):
                rows.append((len(x) + 1, len(y) + 2, number))
                yield np.array([*x, END, BEGIN, *y, END], self._id).tobytes()

    @property
    def _id(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.vocabulary <= 1 << 16 else "<i4")

    def _load(self, stem: Path, vocabulary: Vocabulary) -> Samples:
        rows = torch.from_numpy(np.load(stem.with_suffix(".npy"), allow_pickle=False))
        # Copy on write: torch asks for writable memory, and nobody writes.
        values = torch.from_numpy(np.memmap(stem.with_suffix(".ids"), self._id, mode="c"))
        if rows.dim() != 2 or rows.shape[1] != 3 or rows[:, :2].sum() != len(values):
            raise ValueError(f"{stem.name}.npy does not fit {stem.name}.ids")
        source, target, lines = rows.unbind(1)
        start = (source + target).cumsum(0) - target
        shorter = (target - 1).clamp(max=self.length)
        return Samples(
            Ragged(values, start - source, source.clamp(max=self.length), fill=PADDING),
            Ragged(values, start + 1, shorter, fill=IGNORED),
            more=(Ragged(values, start, shorter, fill=PADDING),),
            groups=lines,
            vocabulary=vocabulary,
        )

    def _with_groups(self, parts: list[Samples], file_pairs: list[list[TextFile]]) -> list[Samples]:
        """The parts, whose groups are numbers of lines, with the documents of these lines."""
        if self.documents is None:
            return [replace(part, groups=None) for part in parts]
        names = list[NDArray[np.str_]]()
        for part, files in zip(parts, file_pairs, strict=True):
            assert part.groups is not None
            names.append(np.array(list(files[2].texts()))[part.groups.numpy()])
        groups = torch.from_numpy(np.unique(np.concatenate(names), return_inverse=True)[1])
        owns = torch.split(groups, [len(part) for part in parts])
        return [replace(part, groups=groups) for part, groups in zip(parts, owns, strict=True)]
