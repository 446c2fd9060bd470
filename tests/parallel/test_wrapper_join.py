"""DecentralizedDataParallel.join: ranks with different numbers of batches."""

import os
from dataclasses import replace

import pytest
import torch

from decentnode.errors import RunFailed
from decentnode.parallel.topology import weighted_graph
from tests.support.processes import free_ports
from tests.support.wrapper_ranks import Run, flat, in_rank_processes, in_rank_threads

A_TENSOR = 1e-6
LATE = {"scheme": "adapt_then_combine"}
STEPS = 6
"""Of which the last two are made by all ranks after the join."""


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def run_of(topology="ring", **options):
    return Run(topology=topology, steps=STEPS, optimizer=momentum, options={"deadline": 20.0} | options)


def joined(run, lengths):
    """Steps inside join(), as many as the rank has batches, an average, and two more steps."""

    def work(rank, rendezvous=None):
        model = run.wrap(rendezvous)
        with model.join():
            run.train(model, rank, 0, lengths[rank])
        assert model.step == max(lengths)
        with model.averaged():
            average = flat(model)
        run.train(model, rank, STEPS - 2)
        assert not model.endpoint.refused
        model.close()
        return flat(model).tolist(), average.tolist()

    return work


def check(results, run, lengths):
    """As many steps as the longest loop has; a rank without a batch has no gradient, and mixes."""
    n, longest = len(lengths), max(lengths)
    graph = weighted_graph(run.topology, None, n)
    # The steps after the join use the last batches; the graph's round goes on by one.
    w = lambda t: torch.tensor(graph.matrix(t if t < longest else longest + t - (STEPS - 2)))
    idle = lambda t: longest <= t < STEPS - 2
    matrix_at = lambda t: torch.eye(n).double() if idle(t) else w(t)
    rests = lambda rank, t: t < STEPS - 2 and t >= lengths[rank]
    after = run.oracle(n, matrix_at, rests)
    run = replace(run, steps=STEPS - 2)
    average = run.oracle(n, matrix_at, rests).mean(0)
    for rank, (own_model, of_all) in enumerate(results):
        assert torch.allclose(torch.tensor(own_model, dtype=after.dtype), after[rank], rtol=0, atol=1e-13)
        assert torch.allclose(torch.tensor(of_all, dtype=after.dtype), average, rtol=0, atol=1e-13)


@pytest.mark.parametrize("lengths", [[4, 2, 3, 0], [0, 0, 1, 0], [2, 2, 2, 2]], ids=str)
@pytest.mark.parametrize(
    ("topology", "options"),
    [
        ("ring", {}),
        ("one_peer_exponential", LATE),
        ("alternating_ring", {"bucket_mb": A_TENSOR, "in_flight": 1}),
        ("one_peer_exponential", LATE | {"bucket_mb": A_TENSOR, "in_flight": 2}),
        ("ring", {"update_in": "step", "bucket_mb": A_TENSOR, "on_loss": "continue"}),
    ],
    ids=["default", "late", "few in flight", "late, few in flight", "in step"],
)
def test_ranks_without_batches_mix_and_make_no_step(topology, options, lengths):
    run = run_of(topology, **options)
    check(in_rank_threads(4, joined(run, lengths)), run, lengths)


@pytest.mark.parametrize(
    ("communication", "options"),
    [("auto", {}), ("tcp", LATE), ("torch_distributed", {}), ("torch_distributed", LATE)],
)
def test_processes_join(communication, options):
    if communication == "tcp":
        communication = {"name": "zeromq", "local": "tcp", "base_port": free_ports(4) + 1}
    run, lengths = run_of("alternating_ring", communication=communication, **options), [1, 4, 2]
    results = in_rank_processes(3, joined(run, lengths))
    check([results[rank] for rank in range(3)], run, lengths)


@pytest.mark.parametrize("on_loss", ["stop", "continue"])
def test_a_rank_that_dies_inside_is_named_or_continued_without(on_loss):
    run = run_of(on_loss=on_loss)

    def work(rank):
        model = run.wrap(None)
        with model.join():
            run.train(model, rank, 0, [1, 3, 4][rank])
            if rank == 1:
                os._exit(0)
        model.close()
        return model.step

    results = in_rank_processes(3, work, mute=(1,))
    if on_loss == "continue":
        assert results == {0: 4, 2: 4}
    else:
        assert all(results[rank].startswith(f"RunFailed: rank {rank}, step ") for rank in (0, 2))
        assert any("rank 1: connection lost" in results[rank] for rank in (0, 2))


def test_without_join_the_other_ranks_report_what_is_wrong():
    run = run_of()

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2 + 2 * rank)
        model.close()

    with pytest.raises(RunFailed, match=r"rank 1, step 3: rank 0: left after .*; where ranks have different"):
        in_rank_threads(2, work)


def test_what_all_ranks_do_together_is_refused_inside():
    def work(rank, rendezvous):
        model = run_of().wrap(rendezvous)
        saved = model.state_dict()
        with model.join():
            for act in (model.average, model.resend, lambda: model.load_state_dict(saved)):
                with pytest.raises(RunFailed, match=f"rank {rank}, step 0: .* inside join"):
                    act()
            with pytest.raises(RunFailed, match="another join"), model.join():
                pass
        with pytest.raises(ZeroDivisionError), model.join():
            raise ZeroDivisionError
        model.average()

    in_rank_threads(2, work)
