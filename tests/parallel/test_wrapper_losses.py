"""DecentralizedDataParallel when links break between ranks that live: over whom averages are made."""

import threading

import pytest
import torch

from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost, RunFailed
from tests.support.wrapper_ranks import Run, flat, in_rank_threads


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    monkeypatch.setattr(Timeouts, "exchange_queue", lambda deadline: 2 * deadline)


def after_losses(size, lost, act):
    """What `act(model, rank)` gives on each rank once these pairs have lost each other."""
    run = Run(topology="fully_connected", options={"on_loss": "continue", "deadline": 2.0})
    together = threading.Barrier(size)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(rank)
        together.wait(10.0)
        for pair in lost:
            if rank in pair:
                (other,) = set(pair) - {rank}
                model.endpoint.peers.lose(other, PeerLost(other, "the link to it broke"))
        together.wait(10.0)
        return act(model, rank)

    return in_rank_threads(size, work)


@pytest.mark.parametrize(
    ("size", "lost", "living"),
    [
        (3, [(0, 2)], [[1]] * 3),
        (4, [(0, 2)], [[1, 3]] * 4),
        (5, [(0, 1), (1, 2), (2, 3)], [[4]] * 5),
        (4, [(0, 1), (0, 2), (0, 3)], [[0], *[[1, 2, 3]] * 3]),
        (3, [(0, 1), (0, 2), (1, 2)], [[0], [1], [2]]),
    ],
    ids=str,
)
def test_ranks_agree_on_whom_nobody_has_lost(size, lost, living):
    def act(model, rank):
        live_ranks = model._engine.exchanges.living()
        with model.averaged():
            return live_ranks, flat(model)

    for (models, average), expected in zip(after_losses(size, lost, act), living, strict=True):
        assert models == expected
        assert torch.equal(average, torch.full_like(average, sum(expected) / len(expected)))


@pytest.mark.parametrize(
    ("size", "lost"),
    [
        (4, [(0, 2), (1, 3)]),
        (5, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (5, [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, 4)]),  # what is left is a chain
    ],
    ids=str,
)
def test_an_average_is_refused_alike_where_every_rank_has_been_lost_by_another(size, lost):
    def act(model, rank):
        with pytest.raises(RunFailed, match=rf"rank {rank}, step 0: no average of all: every rank was lost"):
            model.average()
        Run().train(model, rank)
        return model.step

    assert after_losses(size, lost, act) == [4] * size
