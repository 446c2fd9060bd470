"""Streams: samples that come in an order of their own, such as those of an IterableDataset or a generator.

Of n ranks that train, each takes every n-th sample. A sample has a number, its place in the stream and in the
passes before, which seeds what the stream draws. So a node that is resumed goes to its place and reads on.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import isgenerator, isgeneratorfunction
from itertools import islice
from typing import Any, Self

from torch import Tensor
from torch.utils.data import IterableDataset

from decentnode.core.rng import key, restored_generators, seed_generators
from decentnode.datasets.base import Reading
from decentnode.datasets.per_step import DatasetRows, ReadSamples
from decentnode.errors import BadInput, DatasetError

MOST_COUNTED = 10_000_000
COUNTING_SECONDS = 60.0
"""The most samples, and seconds, for which a stream without a length is counted at the start."""
KNOWN = 256
"""Samples that are read at the start of a stream that is not counted."""


def is_stream(given: Any) -> bool:
    """Whether it has samples one after another; raises DatasetError for a generator that has begun."""
    if isgenerator(given):
        problem = "a generator ends after one pass; give the function that makes it"
        raise DatasetError.at("dataset", problem)
    return isinstance(given, IterableDataset) or isgeneratorfunction(given)


@dataclass(eq=False)
class _Place:
    """Where a rank is in a stream."""

    rows: Iterator[Any]
    number: int
    """That of the next sample."""
    passes: int
    is_new: bool = True
    """Whether this pass has given no sample yet."""


@dataclass(eq=False, kw_only=True)
class StreamRows(DatasetRows):
    """The rows of a stream; `dataset` is what it is made of."""

    epoch_size: int | None = None
    """The samples of an epoch, of all ranks; None: those of the whole stream, which is counted."""
    skipped: int = 0
    """The samples at the beginning of each pass that are not for training."""
    known_labels: list[Any] = field(init=False, default_factory=list)
    """The labels of what was read at the start."""

    def _length(self) -> int:
        self._places: dict[Reading, _Place] = {}
        self._process = os.getpid()
        self.length: int | None = None
        """The samples of a pass; None: unknown."""
        return self.epoch_size or 1

    def count_rows(self) -> None:
        """Reads the stream once where nobody says how long an epoch is; otherwise its first samples.

        Raises DatasetError for one without end.
        """
        most = KNOWN if self.epoch_size is not None else MOST_COUNTED
        began = time.monotonic()
        with restored_generators():
            for number in range(most):
                try:
                    values = self.values(number)
                except StreamEnded:
                    self.length = number
                    break
                if isinstance(values[-1], Tensor):
                    self.fitting(number, values)
                self.known_labels.append(values[-1])
                if self.epoch_size is None and time.monotonic() > began + COUNTING_SECONDS:
                    break
        if self.epoch_size is None and self.length is None:
            problem = f"{self.name} has more than {number:,} samples, or no end"
            raise DatasetError.at("dataset.train_size", f"{problem}; give the samples of an epoch")
        self.count = self.epoch_size or self.length or 0

    def first(self, size: int | None) -> Iterator[list[Any]]:
        """Yields the values of the first rows; of all, at most MOST_COUNTED, where no size is given."""
        with restored_generators():
            for number in range(size or MOST_COUNTED):
                try:
                    yield self.values(number)
                except StreamEnded:
                    if size is not None:
                        problem = f"{size} samples asked for, {self.name} has {number}"
                        raise DatasetError.at("dataset.test_size", problem) from None
                    return
        if size is None:
            raise DatasetError.at(
                "dataset.test_size", f"{self.name} has no end; give the samples for the test"
            )

    @property
    def notices(self) -> tuple[str, ...]:
        size = f"{self.count:,} samples" + (" in an epoch" if self.epoch_size else ", counted at the start")
        line = f"dataset: {self.name} is a stream ({size}); of n ranks each takes every n-th, in their order"
        return (*super().notices, line)

    def _raw(self, index: int, reading: Reading) -> Any:
        if self._process != os.getpid():
            # A fork has the open files of its parent, and would move the place of both.
            self._places, self._process = {}, os.getpid()
        of_rank = reading[:2]
        place = self._places.get(of_rank)
        if place is None or place.number > index:
            passes = index // self.length if self.length else 0
            place = _Place(self._pass(passes), passes * (self.length or 0), passes)
            self._places[of_rank] = place
        while True:
            seed_generators(key(reading[0] if reading else 0, "stream", place.number))
            try:
                row = next(place.rows)
            except StopIteration:
                if place.is_new or not reading:
                    # Whoever counts wants to know the end.
                    raise StreamEnded(f"dataset: {self.name} has no further samples") from None
                place.passes += 1
                place.rows, place.is_new = self._pass(place.passes), True
                continue
            place.number, place.is_new = place.number + 1, False
            if place.number > index:
                return row

    def _pass(self, number: int) -> Iterator[Any]:
        """The rows of another pass."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)
        rows = self.dataset if isinstance(self.dataset, IterableDataset) else self.dataset()
        return islice(iter(rows), self.skipped, None)


class StreamEnded(BadInput):
    """A stream has no further sample in this pass."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamSamples(ReadSamples):
    """Samples of a stream, which are read in its order; the index of a sample is its number."""

    is_stream = True

    def rows(self, indices: Tensor, reading: Reading) -> tuple[Tensor, ...]:
        return self.numbered_rows(self.reader.read(indices, reading))

    def expect(self, indices: Tensor, reading: Reading) -> None:
        """Does nothing: a stream is read when its samples are wanted."""

    def order(self, indices: Tensor, epoch: int, seed: int, rank: int) -> Tensor:
        return indices + epoch * len(self)

    def subset(self, indices: Tensor) -> Self:
        raise DatasetError.at(
            "dataset", "a stream has no samples to choose from; give them as tensors, or a Dataset"
        )
