"""Samples of unequal length, such as sentences, and their text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of ids of unequal length, one after another in one tensor; padded batch by batch.

    Rows may overlap: the labels of a text are its ids from the second on. A selection has the same `values`,
    so neither a subset nor a node has a copy.
    """

    values: Tensor
    """The ids of all rows, one dimension; may be a view of a mapped file."""
    starts: Tensor
    """Shape (n,), int64: the place of each row in `values`."""
    lengths: Tensor
    """Shape (n,), int64, each 1 or more."""
    fill: int = 0
    """What fills up the shorter rows of a batch: the id of padding, or -100 for labels."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Tensor) -> "Ragged":
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    @property
    def dtype(self) -> torch.dtype:
        """The type of `values`."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and the length of the longest."""
        return len(self), int(self.lengths.max()) if len(self) else 0

    def dim(self) -> int:
        """Returns 2, as for a tensor of such rows."""
        return 2

    def is_floating_point(self) -> bool:
        """Whether `values` are no ids."""
        return self.values.is_floating_point()

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Returns these rows, filled up to the longest of them: shape (rows, longest), int64."""
        assert dim == 0
        lengths = self.lengths[rows]
        steps = torch.arange(int(lengths.max()) if len(rows) else 0)
        is_inside = steps < lengths[:, None]
        places = torch.where(is_inside, self.starts[rows][:, None] + steps, 0)
        return self._at(places).masked_fill_(~is_inside, self.fill)

    def flatten(self) -> Tensor:
        """The ids of all rows, one after another, int64."""
        before = self.lengths.cumsum(0) - self.lengths
        offsets = (self.starts - before).repeat_interleave(self.lengths)
        return self._at(torch.arange(len(offsets)) + offsets)

    def _at(self, places: Tensor) -> Tensor:
        # By numpy, because torch selects no ids of 16 bits without sign.
        return torch.from_numpy(self.values.numpy()[places.numpy()].astype(np.int64))

    def row_of(self, place: int) -> int:
        """The row of a place in `flatten()`."""
        return int(torch.searchsorted(self.lengths.cumsum(0), place, right=True))

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it consists of."""
        return self.values, self.starts, self.lengths

    def defects(self) -> Iterator[str]:
        """What is wrong with its parts, in words after the name of the values."""
        tensors = self.tensors()
        if any(part.dim() != 1 for part in tensors) or len(self.starts) != len(self.lengths):
            yield "need values of one dimension, and a start and a length for each row"
        elif self.is_floating_point():
            yield f"are {self.values.dtype}; rows of unequal length must be ids"
        elif len(self) and self.lengths.min() < 1:
            yield f"have no id in row {int(self.lengths.argmin())}; leave such samples out"
        elif len(self) and (self.starts.min() < 0 or (self.starts + self.lengths).max() > len(self.values)):
            yield f"end after the {len(self.values)} values that they have"


@dataclass(frozen=True, eq=False)
class LazyRows:
    """A column whose rows are read with those of the other columns, when a batch needs them."""

    shape: tuple[int, ...]
    """The number of rows, and the shape of one."""
    dtype: torch.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> "LazyRows":
        return replace(self, shape=(len(rows), *self.shape[1:]))

    def dim(self) -> int:
        """The number of dimensions, as for a tensor of all rows."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Whether rows have floats."""
        return self.dtype.is_floating_point

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Raises DatasetError: what needs this column alone needs it in memory."""
        raise DatasetError.at("dataset", f"{NOT_IN_MEMORY}; read: once keeps them in memory")

    def flatten(self) -> Tensor:
        """Raises DatasetError as `index_select`."""
        return self.index_select(0, torch.empty(0))

    def tensors(self) -> tuple[Tensor, ...]:
        """No tensors: nothing is in memory."""
        return ()


Rows = Tensor | Ragged | LazyRows
"""A column of samples: one row for each sample."""
NOT_IN_MEMORY = "rows are read per step, and this needs all of them"


def lengths_of(rows: Rows) -> Tensor:
    """The number of ids of each row, shape (n,), int64; rows of numbers and of single ids count as one."""
    if isinstance(rows, Ragged):
        return rows.lengths
    has_several = rows.dim() > 1 and not rows.is_floating_point() and rows.dtype != torch.uint8
    return torch.full((len(rows),), rows.shape[-1] if has_several else 1)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """How ids become text again."""

    pieces: Sequence[bytes]
    """The text of each id, in UTF-8 once they are joined; empty for ids that only mark something."""
    end: int
    """The id after the last of a text."""

    def text(self, ids: Sequence[int]) -> str:
        """The text before the first `end`; bytes that are no UTF-8 become U+FFFD."""
        kept = ids[: ids.index(self.end)] if self.end in ids else ids
        return b"".join(self.pieces[id] for id in kept).decode(errors="replace")


def largest(rows: Rows) -> NDArray[Any]:
    """The largest id at each place of a row; of rows of unequal length the largest of all.

    Of rows that are not read 0, as nobody knows it.
    """
    if isinstance(rows, LazyRows):
        return np.zeros(rows.shape[1:], np.int64)
    # By numpy, because torch compares no ids of 16 bits without sign.
    largest: NDArray[Any] = np.asarray(
        rows.values.numpy().max() if isinstance(rows, Ragged) else rows.numpy().max(0)
    )
    return largest


def dense(rows: Rows) -> Tensor:
    """Rows that were checked to be of equal length; raises DatasetError for those that are not in memory."""
    if isinstance(rows, LazyRows):
        return rows.flatten()
    assert isinstance(rows, Tensor)
    return rows
