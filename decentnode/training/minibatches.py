"""The samples of one rank, in minibatches of a number of samples or of tokens."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.rng import generator
from decentnode.datasets.base import Batch, Reading, Samples


@dataclass(frozen=True, eq=False)
class Shard:
    """The samples that one rank trains on, and the key of its random choices."""

    samples: Samples
    indices: Tensor
    """The training samples of the rank, int64; may be empty."""
    seed: int
    rank: int
    epoch_size: int | None = None
    """The number of samples of an epoch; None: all of them."""
    least_batch: int = 1
    """The fewest samples that the model can be trained on at once."""

    @property
    def size(self) -> int:
        """The number of samples of an epoch, limited by `epoch_size`."""
        return len(self.indices) if self.epoch_size is None else self.epoch_size

    def order(self, epoch: int) -> Tensor:
        """The samples of an epoch in their order, int64 indices."""
        return self.samples.order(self.indices, epoch, self.seed, self.rank)

    def batch(self, indices: Tensor, epoch: int = 0) -> Batch:
        """Samples of the rank as an epoch has them, whose random transforms are others in each."""
        return self.samples.batch(indices, self.reading(epoch))

    def reading(self, epoch: int) -> Reading:
        """The counters of what rows draw that the rank reads in an epoch."""
        return self.seed, self.rank, epoch

    def starts(self, samples: int, batch_size: int) -> range:
        """The index at which each minibatch of an epoch of `samples` starts."""
        starts = range(0, samples, batch_size)
        is_short = len(starts) > 1 and samples - starts[-1] < self.least_batch
        return starts[:-1] if is_short else starts


class Minibatches:
    """A shard in minibatches, epoch after epoch, each in an order of its own.

    The last batch of an epoch may be short, so that an epoch uses every sample once. Where it has fewer
    samples than the model can be trained on, the batch before it gets them. With `whole_steps` the samples
    that fill no step are left out, others in each epoch. Epochs continue over rounds, unless each round
    begins another one (`reshuffle`).

    With `batch_tokens` a batch has samples of similar length, so many tokens at most with padding (Vaswani et
    al., 2017, section 5.1). All epochs have equally many batches; samples of equal length and the batches
    change their order.
    """

    def __init__(
        self,
        shard: Shard,
        batch_size: int | None,
        batch_tokens: int | None = None,
        *,
        whole_steps: int | None = None,
        reshuffle: bool = False,
    ) -> None:
        """A batch has `batch_size` samples, or at most `batch_tokens` on each side.

        `whole_steps`: the samples of a step, so that no step has fewer; None: the last one of an epoch may.
        """
        self._shard = shard
        self._whole_steps = whole_steps
        self._reshuffle = reshuffle
        self._size = batch_size or 1
        self._tokens = batch_tokens
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)
        """The samples of the epoch, batch after batch."""
        self._upcoming: list[slice] = []
        """Where the batches that are still to come are in that order, the next one last."""

    @cached_property
    def per_epoch(self) -> int:
        """The number of minibatches of an epoch; 0 without samples."""
        return len(self._split(self._shard.indices[: self._shard.size])[1])

    def steps_per_epoch(self, accumulate: int) -> int:
        """The number of steps of an epoch, of so many minibatches each; the last may have fewer."""
        return -(-self.per_epoch // accumulate)

    def begin_round(self) -> None:
        """Leaves the rest of the epoch out where each round has an order of its own."""
        if self._reshuffle:
            self._upcoming = []

    def next(self) -> Batch:
        """The next minibatch."""
        batch = self._shard.batch(torch.from_numpy(self._next_indices()), self._epoch)
        self._expect()
        return batch

    def several(self, count: int) -> list[Batch]:
        """The next minibatches, as many as `count` or as the epoch still has, at least one."""
        indices = map(torch.from_numpy, self.several_indices(count))
        batches = [self._shard.batch(of_batch, self._epoch) for of_batch in indices]
        self._expect()
        return batches

    def _expect(self) -> None:
        """Tells the samples which ones are next."""
        if self._upcoming:
            upcoming = torch.from_numpy(self._order[self._upcoming[-1]])
            self._shard.samples.expect(upcoming, self._shard.reading(self._epoch))

    def several_indices(self, count: int) -> list[NDArray[np.int64]]:
        """The samples of the minibatches that `several` would return; these are taken, too."""
        first = self._next_indices()
        return [first, *(self._next_indices() for _ in range(min(count - 1, len(self._upcoming))))]

    def _next_indices(self) -> NDArray[np.int64]:
        if not self._upcoming:
            self._begin(self._epoch + 1)
        return self._order[self._upcoming.pop()]

    def trial(self) -> Batch:
        """A minibatch to try a step with, the longest of them; `next` still gives its samples."""
        order, batches = self._split(self._shard.indices)
        return self._shard.batch(order[batches[0 if self._tokens is None else -1]])

    def trials(self) -> list[Batch]:
        """A minibatch of each shape that an epoch has; `next` still gives their samples."""
        order, places = self._split(self._shard.indices[: self._shard.size])
        batches = [order[place] for place in places]
        longest = None if self._tokens is None else self._shard.samples.tokens
        shapes = {(len(b), 0 if longest is None else int(longest[b].max())): b for b in batches}
        return [self._shard.batch(indices) for indices in shapes.values()]

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        order, batches = self._split(self._shard.order(epoch))
        # Parts of an array are made in a tenth of the time that parts of a tensor take.
        self._order = order.numpy()
        if self._tokens is not None:
            rng = generator(self._shard.seed, "batches", self._shard.rank, epoch)
            batches = [batches[place] for place in rng.permutation(len(batches))]
        self._upcoming = batches[::-1]

    def _split(self, indices: Tensor) -> tuple[Tensor, list[slice]]:
        """Splits these samples into minibatches: returns them in order, and the place of each batch.

        No tensor is made for a batch that may never be used: where rounds reshuffle, that is most of them.
        """
        if self._whole_steps is not None and len(indices) > self._whole_steps:
            indices = indices[: len(indices) // self._whole_steps * self._whole_steps]
        if not len(indices):
            return indices, []
        if self._tokens is None:
            starts: Sequence[int] = self._shard.starts(len(indices), self._size)
        else:
            lengths, order = self._shard.samples.tokens[indices].sort(stable=True)
            indices = indices[order]
            starts = [0, *itertools.accumulate(token_batches(lengths, self._tokens))][:-1]
        return indices, list(map(slice, starts, [*starts[1:], len(indices)]))

    def state_dict(self) -> dict[str, int]:
        """The position in the samples."""
        return {"epoch": self._epoch, "upcoming": len(self._upcoming)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from `state_dict()`."""
        self._epoch, self._upcoming = -1, []
        if state["epoch"] >= 0:
            self._begin(state["epoch"])
            del self._upcoming[state["upcoming"] :]


def token_batches(lengths: Tensor, most: int) -> list[int]:
    """How many samples each batch has, so that number times longest is at most `most`; `lengths` ascend."""
    sizes, start = list[int](), 0
    while start < len(lengths):
        window = lengths[start : start + most // int(lengths[start])]
        fits = torch.arange(1, len(window) + 1) * window <= most
        sizes.append(max(1, int(fits.sum())))
        start += sizes[-1]
    return sizes
