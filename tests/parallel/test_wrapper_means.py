"""DecentralizedDataParallel where one all-reduce of gloo computes the mix, and where it must not."""

import os
import re
import time

import pytest
import torch
from torch import nn

from decentnode.communication.torch_distributed.process_group import GlooGroup
from decentnode.parallel.topology import averages_all, weighted_graph
from tests.support.wrapper_ranks import Run, flat, in_rank_processes, in_rank_threads

SIZE = 3
A_TENSOR = 1e-6
BUCKETS = 6
"""The network has so many tensors."""
MEAN = torch.full((SIZE, SIZE), 1 / SIZE, dtype=torch.float64)
SCHEMES = ("communicate_while_adapt", "adapt_then_combine")
OPTIMIZERS = {
    "by the gradient alone": lambda p: torch.optim.SGD(p, lr=0.1),
    "with decay": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3),
}


def means_run(**options):
    gloo = {"communication": "torch_distributed", "bucket_mb": A_TENSOR, "deadline": 20.0}
    return Run(topology="fully_connected", options=gloo | options)


@pytest.fixture
def started(monkeypatch):
    """The all-reduces that this process has started."""
    calls, reduce_all = [], GlooGroup.reduce_all

    def counted(group, values):
        calls.append(values.numel())
        return reduce_all(group, values)

    monkeypatch.setattr(GlooGroup, "reduce_all", counted)
    return calls


def assert_near(results, expected, tolerance=1e-13):
    models = torch.stack([torch.tensor(results[j][0], dtype=torch.float64) for j in range(len(expected))])
    assert torch.allclose(models, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("more", [{}, {"mixing_strength": 0.3}, {"in_flight": 1}], ids=str)
def test_models_are_those_of_the_equations(scheme, optimizer, more, started):
    run = means_run(scheme=scheme, **more)
    run.optimizer = OPTIMIZERS[optimizer]

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 2)
        with model.averaged() as distance:
            average = flat(model)
        run.train(model, rank, 2)
        model.close()
        return flat(model).tolist(), average.tolist(), distance, len(started)

    results, a = in_rank_processes(SIZE, work), more.get("mixing_strength", 1.0)
    matrix = (1 - a) * torch.eye(SIZE).double() + a * MEAN
    assert_near(results, run.oracle(SIZE, lambda step: matrix))
    run.steps = 2
    half_way = run.oracle(SIZE, lambda step: matrix)
    for rank, (_, average, distance, count) in results.items():
        assert torch.allclose(torch.tensor(average).double(), half_way.mean(0), rtol=0, atol=1e-6)
        assert distance == pytest.approx(float((half_way[rank] - half_way.mean(0)).norm()), abs=1e-12)
        assert count >= 4 * BUCKETS


def one_rank_has_a_hook(rank):
    return {"before_mixing": lambda mixture: None} if rank == 1 else {}


@pytest.mark.parametrize(
    ("topology", "more"),
    [
        ("fully_connected", one_rank_has_a_hook),
        ("fully_connected", lambda rank: {"on_loss": "continue"}),
        ("fully_connected", lambda rank: {"communication": {"name": "hybrid", "group_ranks": (0, 1)}}),
        ([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]], lambda rank: {}),
        ("chain", lambda rank: {}),
    ],
    ids=["a hook on one rank", "losses", "a group of some", "other weights", "no complete graph"],
)
def test_otherwise_every_model_travels_along_every_edge(topology, more, started):
    run = means_run()
    run.topology = topology

    def work(rank):
        model = run.wrap(None, **more(rank))
        run.train(model, rank)
        model.close()
        return flat(model).tolist(), len(started)

    results = in_rank_processes(SIZE, work)
    graph = weighted_graph(topology, None, SIZE)
    assert_near(results, run.oracle(SIZE, lambda step: torch.tensor(graph.matrix(step))))
    assert all(count == 0 for _, count in results.values())


def test_halves_are_no_part_of_an_all_reduce(started):
    run = means_run()
    run.network[2].bfloat16()

    def work(rank):
        model = run.wrap(None)
        model.resend()  # sends the model, and takes it back
        model.close()
        return len(started)

    halves = 2
    assert set(in_rank_processes(SIZE, work).values()) == {BUCKETS - halves}


def test_averages_beside_mixed_buffers_and_uneven_batches():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    run = means_run(buffers="mix")
    run.network = network

    def trained(rank, rendezvous=None, **more):
        model = run.wrap(rendezvous, **more)
        with model.join():
            run.train(model, rank, 0, run.steps - rank)
        model.close()
        return torch.cat([flat(model), model.module[1].running_var]).tolist()

    by_edges = in_rank_threads(SIZE, lambda rank, rendezvous: trained(rank, rendezvous, communication="auto"))
    results = in_rank_processes(SIZE, lambda rank: (trained(rank),))
    assert_near(results, torch.tensor(by_edges, dtype=torch.float64))


def test_weights_that_average_all_ranks_in_every_round():
    averaging = [("fully_connected", 4), ("ring", 2), ("ring", 3), ("alternating_ring", 2)]
    others = [("ring", 4), ("chain", 3), ("one_peer_exponential", 4), ("star", 3)]
    for (name, size), expected in [*((c, True) for c in averaging), *((c, False) for c in others)]:
        assert averages_all(weighted_graph(name, None, size)) == expected, (name, size)
    uneven = [[0.5 + 1e-9, 0.5 - 1e-9], [0.5, 0.5]]
    assert not averages_all(weighted_graph(uneven, None, 2))


# Losses.


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_rank_that_dies_is_named_at_once(scheme):
    run = means_run(scheme=scheme, deadline=60.0)
    run.steps = 1000

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 3)
        if rank == 2:
            os._exit(0)
        try:
            run.train(model, rank, 3)
        finally:
            model.close()

    began = time.monotonic()
    results = in_rank_processes(SIZE, work, mute=(2,))
    assert time.monotonic() - began < 20
    assert any(results[rank].endswith("rank 2: connection lost") for rank in (0, 1))
    for rank in (0, 1):
        # Whoever hears of it later hears that the other one has left by then.
        assert re.match(rf"RunFailed: rank {rank}, step \d+: rank (2: |{1 - rank}: left)", results[rank])


def test_a_rank_that_makes_fewer_steps_is_named_when_it_closes():
    run = means_run(deadline=60.0)
    run.steps = 6

    def work(rank):
        model = run.wrap(None)
        try:
            run.train(model, rank, 0, 3 if rank == 1 else 6)
        finally:
            model.close()

    results = in_rank_processes(SIZE, work)
    assert results[1] is None
    assert any("rank 1: left" in results[rank] and "join()" in results[rank] for rank in (0, 2))
    assert all(results[rank].startswith(f"RunFailed: rank {rank}, step 4: ") for rank in (0, 2))


def test_no_rank_waits_for_a_silent_one_longer_than_the_deadline():
    run = means_run(deadline=2.0)

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 2)
        if rank == 1:
            time.sleep(30.0)
        began = time.monotonic()
        try:
            run.train(model, rank, 2)
        finally:
            assert time.monotonic() - began < 8.0
            model.close()
            assert time.monotonic() - began < 12.0

    results = in_rank_processes(SIZE, work, mute=(1,))
    told = [results[rank] for rank in (0, 2)]
    assert any("waited 2 s for the average of all ranks" in line for line in told)


def test_slower_ranks_get_the_last_average_of_a_finished_one():
    run = means_run()

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 3)
        time.sleep(1.5 * rank)
        run.train(model, rank, 3)
        model.close()
        return (flat(model).tolist(),)

    assert_near(in_rank_processes(SIZE, work), run.oracle(SIZE, lambda step: MEAN))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_that_is_not_finite_is_named_by_all_ranks(scheme):
    run = means_run(scheme=scheme)

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 1)
        if rank == 1:
            with torch.no_grad():
                model.module[2].bias[1] = float("nan")
        model.resend()
        try:
            run.train(model, rank, 1)
        finally:
            model.close()

    for rank, line in in_rank_processes(SIZE, work).items():
        assert re.fullmatch(
            rf"RunFailed: rank {rank}, step 1: rank 1: its model is not finite: nan in .*", line
        )
