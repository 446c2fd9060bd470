"""The minibatches of an epoch are its order, cut where they start; rounds may leave the rest of it out."""

import pytest
import torch

from decentnode.datasets.base import Samples
from decentnode.training.minibatches import Minibatches, Shard

INDICES = torch.arange(100, 143)


def shard(least_batch: int = 1) -> Shard:
    samples = Samples(torch.arange(200.0).view(200, 1), torch.arange(200))
    return Shard(samples, INDICES, seed=3, rank=1, least_batch=least_batch)


@pytest.mark.parametrize("size", [1, 7, 21, 43, 50])
@pytest.mark.parametrize("least", [1, 2])
def test_an_epoch_is_its_order_in_pieces(size: int, least: int) -> None:
    owned = shard(least)
    minibatches = Minibatches(owned, size)
    starts = list(owned.starts(len(INDICES), size))
    assert minibatches.per_epoch == len(starts)
    for epoch in range(2):
        for expected in owned.order(epoch).tensor_split(starts[1:]):
            batch = minibatches.next()
            assert torch.equal(batch.labels, expected)
            assert torch.equal(batch.fields[0].flatten().long(), expected)


def test_reshuffled_rounds_take_the_first_of_an_order_each() -> None:
    minibatches = Minibatches(shard(), 8, reshuffle=True)
    for round in range(3):
        minibatches.begin_round()
        assert torch.equal(minibatches.next().labels, shard().order(round)[:8])


def test_batches_continue_from_their_state() -> None:
    first, second = Minibatches(shard(), 8), Minibatches(shard(), 8)
    for _ in range(8):
        first.next()
    second.load_state_dict(first.state_dict())
    for _ in range(10):
        assert torch.equal(first.next().labels, second.next().labels)
