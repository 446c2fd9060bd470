"""Characters of a text file, and files of token ids."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from decentnode.core.registry import DATASETS
from decentnode.datasets import samples
from decentnode.datasets.base import Dataset, LoadedDataset, Samples
from decentnode.errors import DatasetError
from decentnode.options import Positive

MOST_PIECES = 200
"""Pieces of a document, at most, in the sample of it."""
TOKENS: dict[int, np.dtype[Any]] = {16: np.dtype("<u2"), 32: np.dtype("<i4")}
MOST_CHECKED = 1 << 16
"""Numbers at the start of a file that tell whether its ids have 16 or 32 bits."""


@DATASETS.register("text")
@dataclass(kw_only=True)
class Text(Dataset):
    """The characters of a UTF-8 file, to predict each next one (as Shakespeare in McMahan et al., 2017).

    A sample is a piece of `length` characters; its labels are the characters after each of them. The classes
    are the characters of the file, in the order of their code points. The last pieces of each document, or of
    the text, are for testing.
    """

    path: Path | None = None
    """The file; not needed for a sample."""
    length: Positive = 80
    document: str | None = None
    """A regular expression that a line at the start of a document matches; documents are the groups of
    partition `natural`. Null: the text is one document.
    """
    test_fraction: float = 0.1

    task: ClassVar[str] = "next_token"
    uses_seed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise DatasetError.at(
                "dataset.test_fraction", f"must be between 0 and 1, not {self.test_fraction:g}"
            )
        check_path(self.path, self)
        try:
            re.compile(self.document or "")
        except re.error as error:
            raise DatasetError.at("dataset.document", f"is no regular expression: {error}") from error

    @property
    def steps(self) -> str:
        return "any UTF-8 file serves; name it as dataset.path"

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        file = directory / "sample.txt"
        # Each document has pieces in both parts.
        pieces = 12 + math.ceil(max(1 / self.test_fraction, 1 / (1 - self.test_fraction)))
        samples.text(file, self.length, min(pieces, MOST_PIECES))
        return {"path": file, "document": self.document and "^# Document"}

    def read(self, seed: int) -> LoadedDataset:
        text = self._text()
        code_points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        characters, ids = np.unique(code_points, return_inverse=True)
        documents = list(self._documents(text))
        train, test = [], []
        for number, (start, end) in enumerate(documents):
            pieces = max(0, (end - start - 1) // self.length)
            held_out = round(pieces * self.test_fraction)
            starts = start + self.length * np.arange(pieces)
            train += [(first, number) for first in starts[: pieces - held_out]]
            test += [(first, number) for first in starts[pieces - held_out :]]
        if not train or not test:
            raise DatasetError.at(
                "dataset",
                f"{self.path}: {len(text)} characters are too few for pieces of {self.length}, with "
                f"{self.test_fraction:g} of them for testing",
            )
        parts = [self._samples(ids, piece) for piece in (train, test)]
        return LoadedDataset(
            parts[0], parts[1], len(characters), (self.length,), fitted=("the characters of the text",)
        )

    def _text(self) -> str:
        try:
            return Path(self.path or "").read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DatasetError.at(
                "dataset", f"{self.path}: is no UTF-8 text: {error.reason} at byte {error.start}"
            ) from error
        except OSError as error:
            raise DatasetError.at("dataset.path", f"{self.path}: {error.strerror}") from error

    def _documents(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each document."""
        starts = [0]
        if self.document is not None:
            starts = [match.start() for match in re.finditer(self.document, text, re.MULTILINE)]
            if not starts:
                raise DatasetError.at("dataset.document", f"no line of {self.path} matches {self.document!r}")
        return zip(starts, [*starts[1:], len(text)], strict=True)

    def _samples(self, ids: NDArray[np.int64], pieces: list[tuple[int, int]]) -> Samples:
        firsts, groups = np.array(pieces).T
        windows = torch.from_numpy(ids[firsts[:, None] + np.arange(self.length + 1)])
        inputs = windows[:, :-1].to(torch.int32)
        return Samples(inputs, windows[:, 1:].contiguous(), groups=torch.from_numpy(groups.copy()))


def check_path(path: Path | None, dataset: Dataset) -> None:
    """Raises DatasetError where a dataset without usual places has neither a path nor a sample."""
    if path is None and not dataset.sample:
        raise DatasetError.at("dataset.path", f"missing; {dataset.steps.format(folder='FOLDER')}")


@DATASETS.register("tokens")
@dataclass(kw_only=True)
class Tokens(Dataset):
    """Token ids in train.bin and val.bin, the layout of nanoGPT (Karpathy, 2022).

    The files are mapped and not read, so all nodes of a machine share the pages that they use. A sample is a
    piece of `length` tokens; its labels are the tokens after each of them.
    """

    path: Path | None = None
    """The directory of both files; not needed for a sample."""
    length: Positive = 1024
    vocabulary: Positive = 50257
    """Ids are below it; the default is that of GPT-2."""
    bits: Literal[16, 32] | None = None
    """Bits of an id in the files; null: 16, or 32 where the vocabulary needs them."""

    task: ClassVar[str] = "next_token"
    uses_seed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_path(self.path, self)
        if self.bits == 16 and self.vocabulary > 1 << 16:
            raise DatasetError.at(
                "dataset.bits", f"ids of 16 bits are below 65536, not below {self.vocabulary}"
            )

    @property
    def _id_bits(self) -> int:
        return self.bits or (16 if self.vocabulary <= 1 << 16 else 32)

    @property
    def steps(self) -> str:
        made = "decentnode prepare openwebtext FOLDER makes train.bin and val.bin, as nanoGPT does"
        return f"{made}; name their folder as dataset.path"

    def write_sample(self, directory: Path) -> Mapping[str, Any]:
        samples.tokens(directory, self.length, self.vocabulary)
        return {"path": directory}

    def read(self, seed: int) -> LoadedDataset:
        train, test = (self._part(Path(self.path or "") / name) for name in ("train.bin", "val.bin"))
        return LoadedDataset(train, test, self.vocabulary, shape=(self.length,))

    def _part(self, file: Path) -> Samples:
        token = TOKENS[self._id_bits]
        try:
            size = file.stat().st_size
            # Copy on write: torch asks for writable memory, and nobody writes.
            tokens = np.memmap(file, token, mode="c") if size and size % token.itemsize == 0 else None
        except OSError as error:
            raise DatasetError.at("dataset.path", f"{file}: {error.strerror}") from error
        if tokens is None:
            raise DatasetError.at(
                "dataset.path",
                f"{file}: {size} bytes are no tokens of {token.itemsize} bytes; it is cut off or empty",
            )
        first = tokens[:MOST_CHECKED]
        if self._id_bits == 16 and len(first) > 3 and not first[1::2].any() and first[::2].any():
            raise DatasetError.at(
                "dataset.bits", f"{file}: every second number is 0, so its ids have 32 bits; set bits: 32"
            )
        if self._id_bits == 32 and (first >= self.vocabulary).all():
            raise DatasetError.at(
                "dataset.bits", f"{file}: no number of 32 bits is below the vocabulary; its ids have 16 bits"
            )
        if len(tokens) <= self.length:
            raise DatasetError.at("dataset.length", f"{self.length}: {file} has only {len(tokens)} tokens")
        windows = torch.from_numpy(tokens).unfold(0, self.length + 1, self.length)
        return Samples(windows[:, :-1], windows[:, 1:])
