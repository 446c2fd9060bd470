"""Minibatches of a number of tokens."""

from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from decentnode.datasets.base import IGNORED, Samples
from decentnode.datasets.ragged import Ragged
from decentnode.errors import BadInput
from decentnode.training.minibatches import Minibatches, Shard
from decentnode.training.settings import Factory, TrainingSettings

RNG = np.random.default_rng(3)
COUNT, MOST = 90, 64


def drawn_rows(fill):
    """Rows of 1 to 20 ids, the first of which is the number of the sample."""
    lengths = torch.from_numpy(RNG.integers(1, 21, COUNT))
    starts = lengths.cumsum(0) - lengths
    values = torch.ones(int(lengths.sum()), dtype=torch.int64)
    values[starts] = torch.arange(COUNT)
    return Ragged(values, starts, lengths, fill)


SAMPLES = Samples(drawn_rows(0), (target := drawn_rows(IGNORED)), more=(target,))
SHARD = Shard(SAMPLES, torch.arange(0, COUNT, 2), seed=5, rank=1)


def test_batches_hold_so_many_tokens_and_epochs_all_samples_in_orders_of_their_own():
    minibatches = Minibatches(SHARD, None, MOST)
    epochs = [[minibatches.next() for _ in range(minibatches.per_epoch)] for _ in range(3)]
    contents = [[batch.labels[:, 0].tolist() for batch in epoch] for epoch in epochs]
    for epoch, content in zip(epochs, contents, strict=True):
        assert sorted(chain.from_iterable(content)) == SHARD.indices.tolist()
        assert all(side.numel() <= MOST for batch in epoch for side in (*batch.fields, batch.labels))
        # No batch has room for the next longer sample.
        ends = sorted((int(SAMPLES.tokens[rows].max()), int(SAMPLES.tokens[rows].min()), len(rows))
                      for rows in map(torch.tensor, content))  # fmt: skip
        assert all((size + 1) * low > MOST for (*_, size), (_, low, _) in pairwise(ends))
    assert len({str(content) for content in contents}) == 3
    orders = [[int(SAMPLES.tokens[rows].max()) for rows in map(torch.tensor, some)] for some in contents]
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]
    trial = minibatches.trial()
    assert max(trial.labels.shape[1], trial.fields[0].shape[1]) == SAMPLES.tokens[SHARD.indices].max()


@pytest.mark.parametrize("taken", [0, 3, 30])
def test_they_resume_where_they_were(taken):
    straight, resumed = Minibatches(SHARD, None, MOST), Minibatches(SHARD, None, MOST)
    for _ in range(taken):
        straight.next()
    resumed.load_state_dict(straight.state_dict())
    for _ in range(straight.per_epoch):
        assert torch.equal(straight.next().fields[0], resumed.next().fields[0])


def settings(**options):
    return TrainingSettings(Factory(torch.optim.SGD, {"lr": 0.1}), **options)


def test_what_cannot_be_counted_in_tokens_is_refused():
    assert settings(steps_per_round=1).batch_size == 32
    images = Samples(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    longest = int(SAMPLES.tokens.max())
    for samples, most, least, in_step, defect in (
        (images, 9, 1, False, "the samples of the dataset are no tokens; use batch_size"),
        (SAMPLES, 5, 1, False, f"must be at least {longest}, the length of the longest training sample"),
        (SAMPLES, 64, 2, False, "batch norm needs 2 samples at once; use batch_size"),
        (SAMPLES, 64, 1, True, "ranks would make unequal numbers of steps in an epoch; use steps_per_round"),
    ):
        with pytest.raises(BadInput) as caught:
            settings(batch_tokens=most, epochs_per_round=1.0).check(samples, least, in_step)
        assert str(caught.value) == f"training.batch_tokens: {defect}"
    settings(batch_tokens=64, steps_per_round=1).check(SAMPLES, 1, True)


def test_samples_of_one_length_are_counted_in_tokens_too():
    ids = Samples(torch.zeros(10, 8, dtype=torch.int32), torch.zeros(10, 8, dtype=torch.int64))
    minibatches = Minibatches(Shard(ids, torch.arange(10), 1, 0), None, 30)
    assert [len(minibatches.next()) for _ in range(minibatches.per_epoch)].count(3) == 3
    assert minibatches.per_epoch == 4
