"""DecentralizedDataParallel in processes: how they meet, what carries the models, what they say of losses."""

import gc
import os
import re
import runpy
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import zmq
from torch import nn

from decentnode.communication.torch_distributed.plugin import TorchDistributed
from decentnode.core.timeouts import Timeouts
from decentnode.errors import DecentnodeError
from decentnode.parallel.topology import weighted_graph
from tests.support.processes import free_ports
from tests.support.wrapper_ranks import Run, batches, flat, in_rank_processes, loss_of, small_network

A_TENSOR = 1e-6
ROOT = Path(__file__).parents[2]
KEPT = []
"""Torch waits for the threads of a process group that ends; they may wait for the interpreter then."""


def matrices(name, size):
    graph = weighted_graph(name, None, size)
    return lambda step: torch.tensor(graph.matrix(step))


def trained(run, rank):
    model = run.wrap(None)
    run.train(model, rank)
    with model.averaged():
        average = flat(model)
    outcome = flat(model).tolist(), average.tolist(), dict(model.endpoint.refused)
    model.close()
    return outcome


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    """Where temporary folders are made: paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="w-", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


@pytest.mark.parametrize(
    ("communication", "scheme"),
    [
        ("auto", "communicate_while_adapt"),
        ("auto", "adapt_then_combine"),
        ("tcp", "communicate_while_adapt"),
        ("torch_distributed", "communicate_while_adapt"),
        ("torch_distributed", "adapt_then_combine"),
    ],
)
def test_processes_train_by_the_equations(communication, scheme, folder):
    chosen = communication
    if communication == "tcp":
        # The store takes the first port.
        chosen = {"name": "zeromq", "local": "tcp", "base_port": free_ports(4) + 1}
    options = {"communication": chosen, "scheme": scheme, "bucket_mb": A_TENSOR, "deadline": 30.0}
    run = Run(topology="alternating_ring", options=options)
    results = in_rank_processes(3, lambda rank: trained(run, rank))
    expected = run.oracle(3, matrices("alternating_ring", 3))
    for rank in range(3):
        model, average, refused = results[rank]
        assert torch.allclose(torch.tensor(model, dtype=torch.float64), expected[rank], rtol=0, atol=1e-12)
        assert torch.allclose(
            torch.tensor(average, dtype=torch.float64), expected.mean(0), rtol=0, atol=1e-12
        )
        assert refused == {}
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("members", [(0, 1), ()])
@pytest.mark.parametrize("scheme", ["communicate_while_adapt", "adapt_then_combine"])
def test_neighbors_outside_the_group_read_what_lies_on_a_device(members, scheme, monkeypatch):
    """The device is host memory outside the segment; parts of the model are larger than what is staged."""
    make = TorchDistributed.make_endpoint
    apart = lambda self, rank, memory: make(self, rank, memory, memory.slots())
    monkeypatch.setattr(TorchDistributed, "make_endpoint", apart)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 900), nn.Tanh(), nn.Linear(900, 2)).double()
    chosen = {"name": "hybrid", "group_ranks": members}
    options = {"communication": chosen, "scheme": scheme, "bucket_mb": 0.03, "deadline": 9.0}
    run = Run(network, options=options)
    results = in_rank_processes(3, lambda rank: trained(run, rank), 30.0)
    expected = run.oracle(3, matrices("ring", 3))
    for rank in range(3):
        model, average, refused = results[rank]
        assert torch.allclose(torch.tensor(model, dtype=torch.float64), expected[rank], rtol=0, atol=1e-12)
        assert torch.allclose(
            torch.tensor(average, dtype=torch.float64), expected.mean(0), rtol=0, atol=1e-12
        )
        assert refused == {}


def test_on_a_complete_graph_adapt_then_combine_is_torch_ddp():
    run = Run(topology="fully_connected", options={"scheme": "adapt_then_combine"}, steps=3)

    def work(rank):
        dist.init_process_group("gloo")
        ddp = nn.parallel.DistributedDataParallel(small_network())
        KEPT.append(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for batch in batches(rank, run.steps):
            optimizer.zero_grad()
            loss_of(ddp, batch).backward()
            optimizer.step()
        ours, _, _ = trained(run, rank)
        dist.destroy_process_group()
        return ours, flat(ddp.module).tolist()

    for ours, theirs in in_rank_processes(2, work).values():
        assert torch.allclose(
            *(torch.tensor(x, dtype=torch.float64) for x in (ours, theirs)), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("dead", [0, 2])
def test_a_rank_that_dies_is_named_by_its_neighbors_at_once(dead, folder):
    run, far = Run(topology="chain", options={"deadline": 60.0}, steps=1000), 2 - dead

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 3)
        if rank == dead:
            return os._exit(0)
        try:
            run.train(model, rank, 3)
        finally:
            model.close()

    results = in_rank_processes(3, work, absent=(), mute=(dead,))
    assert results[1].startswith("RunFailed: rank 1, step ")
    assert results[1].endswith(f"rank {dead}: connection lost")
    assert results[far].startswith(f"RunFailed: rank {far}, step ")
    assert "rank 1: left after" in results[far] or "rank 1: its process ended" in results[far]
    assert list(folder.iterdir()) == []


ONE_WAY = [[1.0, 0.0], [0.5, 0.5]]
"""Rank 1 listens to rank 0, which is never answered."""


@pytest.mark.parametrize("communication", ["auto", "torch_distributed"])
def test_a_finished_rank_waits_until_slower_ranks_have_read_its_payloads(communication, monkeypatch):
    monkeypatch.setattr(Timeouts, "store_farewell", 0.5)
    run = Run(topology=ONE_WAY, steps=3, options={"communication": communication, "deadline": 20.0})

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 2)
        time.sleep(2.0 * rank)
        run.train(model, rank, 2)
        model.close()
        return flat(model).tolist()

    results, expected = in_rank_processes(2, work), run.oracle(2, lambda step: torch.tensor(ONE_WAY).double())
    for rank in range(2):
        assert torch.allclose(
            torch.tensor(results[rank], dtype=torch.float64), expected[rank], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("communication", ["auto", "torch_distributed"])
def test_no_rank_waits_at_the_end_for_ranks_that_died(communication):
    run = Run(topology=ONE_WAY, steps=3, options={"communication": communication, "deadline": 40.0})

    def work(rank):
        model = run.wrap(None)
        run.train(model, rank, 0, 1)
        if rank == 1:
            time.sleep(1.0)
            os._exit(0)
        began = time.monotonic()
        model.close()
        return time.monotonic() - began

    assert in_rank_processes(2, work, mute=(1,))[0] < 4.0


def test_a_process_that_never_joins_is_named():
    run = Run(options={"deadline": 1.0})
    results = in_rank_processes(3, lambda rank: trained(run, rank), absent=(2,))
    for rank in (0, 1):
        assert results[rank] == f"StartError: rank {rank}: ranks [2] of 3 did not arrive within 1 s"


def test_a_start_that_fails_leaves_no_socket_open():
    """The garbage collector ends a ZeroMQ context, which waits until its sockets are closed."""
    port = free_ports(2)
    communication = {"name": "zeromq", "local": "tcp", "base_port": port}
    run = Run(options={"communication": communication, "deadline": 1.0})

    def open_contexts():
        return [thing for thing in gc.get_objects() if type(thing) is zmq.Context and not thing.closed]

    def work(rank):
        # Those that earlier tests of this process have left were inherited.
        inherited = len(open_contexts())
        with pytest.raises(DecentnodeError) as raised:
            run.wrap(None)
        left = len(open_contexts()) - inherited
        return str(raised.value), left, [thread.name for thread in threading.enumerate()]

    with socket.create_server(("127.0.0.1", port)):
        results = in_rank_processes(2, work)
    in_use = f"tcp://127.0.0.1:{port} is in use by another program (key communication.base_port)"
    assert results[0] == (in_use, 0, ["MainThread"])
    assert results[1][1:] == (0, ["MainThread"])


def test_processes_that_wrap_something_else_are_named():
    def work(rank):
        return trained(Run(network=small_network() if rank else nn.Linear(4, 2).double()), rank)

    for rank, words in in_rank_processes(2, work).items():
        assert words.startswith(f"StartError: rank {rank}: parameters differs: ")


def test_a_transport_inside_one_process_is_refused_for_several():
    run = Run(options={"communication": "inproc", "deadline": 5.0})
    told = "BadInput: communication: inproc carries all ranks in one process, but there are 2; use 'auto'"
    assert in_rank_processes(2, lambda rank: trained(run, rank)) == {0: told, 1: told}


def test_processes_that_name_other_transports_are_named():
    def work(rank):
        return trained(Run(options={"communication": "inproc" if rank else "auto", "deadline": 5.0}), rank)

    for rank, words in in_rank_processes(2, work).items():
        differ = "communication differs: zeromq on rank 0, inproc on rank 1"
        assert words == f"StartError: rank {rank}: {differ}"


def test_the_shipped_loop_reaches_what_all_reduce_does_on_real_images():
    script = runpy.run_path(str(ROOT / "eval" / "library" / "train_digits.py"))

    def work(kind, *arguments):
        def perform(rank):
            torch.manual_seed(0)
            return script[kind](*arguments)

        return perform

    torch.set_num_threads(1)
    results, baseline = (
        in_rank_processes(4, work("train", "ring", 8, torch.device("cpu"), "auto")),
        in_rank_processes(4, work("train_all_reduce", 8)),
    )
    for ours, theirs in zip(results.values(), baseline.values(), strict=True):
        mine, average = map(float, re.findall(r"accuracy ([\d.]+), of the average ([\d.]+)", ours)[0])
        by_all_reduce = float(re.search(r"accuracy ([\d.]+)", theirs)[1])
        assert by_all_reduce > 0.95
        assert average > by_all_reduce - 0.01
        assert mine > by_all_reduce - 0.03
