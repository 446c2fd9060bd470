"""Shows on a machine with one GPU that nodes exchange over NCCL as they do over gloo, also when one dies.

    python eval/gpu/check.py [--backend nccl|gloo] [--nodes 3] [--elements 1000000] [--rounds 20]

Several ranks share the GPU, each as if it were a host of its own (docs/gpu.md, "One GPU for several nodes").
Each check runs all of them as processes, and prints what it found in one line. `--backend gloo` does the same
on the CPU, to try out the script itself. Exit code 1 where a check fails, 2 where there is no GPU.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from decentnode.communication.base import BufferSpec, Endpoint, HostProcess, Inbox, ProcessDirectory
from decentnode.communication.torch_distributed.plugin import TorchDistributed
from decentnode.core.payload import Field, Form, Layout, Payload, dense_layout
from decentnode.graph.base import Graph
from decentnode.graph.families import Exponential, Ring
from decentnode.graph.mixing import MetropolisHastings, Mixing, Uniform, WeightedGraph
from decentnode.sharing.blocks.weighted_sum import weighted_sum

RUN_ID = 7
TIMEOUT = 20.0
MOST_SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """What is run."""

    backend: str
    nodes: int
    elements: int
    rounds: int

    @property
    def device(self) -> torch.device:
        """Where all vectors live."""
        return torch.device("cuda", 0) if self.backend == "nccl" else torch.device("cpu")


@dataclass
class Peer:
    """One rank, in its process."""

    case: Case
    rank: int
    endpoint: Any
    inbox: Inbox | None = None

    async def swap(self, payload: Payload, graph: Graph, round: int, layout: Layout) -> Inbox:
        """One exchange with all neighbors."""
        if self.inbox is not None:
            self.inbox.release()
        outgoing = dict.fromkeys(graph.targets(self.rank, round), payload)
        handle = await self.endpoint.exchange(
            outgoing, graph.sources(self.rank, round), (round, 0, 0), TIMEOUT, layout
        )
        self.inbox = Inbox(handle, layout, self.endpoint)
        return self.inbox


Part = Callable[[Peer], Any]


def perform(case: Case, part: Part, silent: frozenset[int] = frozenset()) -> dict[int, Any]:
    """Runs a part at every rank, each in a process forked before CUDA is touched; `silent` ones may die."""
    with tempfile.TemporaryDirectory(prefix="dn-") as directory:
        pipes = {rank: _fork(case, rank, part, directory) for rank in range(case.nodes)}
        results = {}
        for rank, (pid, reader) in pipes.items():
            content = os.fdopen(reader, "rb").read()
            os.waitpid(pid, 0)
            if rank not in silent:
                results[rank] = json.loads(content or b'"died"')
        return results


def _fork(case: Case, rank: int, part: Part, directory: str) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    signal.alarm(int(MOST_SECONDS))
    try:
        content = json.dumps(_run(case, rank, part, directory))
    except BaseException as error:
        content = json.dumps(f"{type(error).__name__}: {error}")
    os.write(writer, content.encode())
    os._exit(0)


def _run(case: Case, rank: int, part: Part, directory: str) -> Any:
    torch.set_num_threads(1)
    processes = tuple(HostProcess(0, i, (i,), "127.0.0.1") for i in range(case.nodes))
    communication = TorchDistributed(backend=case.backend, share_gpu=True)  # type: ignore[arg-type]
    communication.prepare(ProcessDirectory(processes, rank, directory, grace=1.0), 4 * case.elements + 4096)
    endpoint: Endpoint = communication.endpoint(rank, BufferSpec(case.elements, device=case.device))
    communication.open([j for j in range(case.nodes) if j != rank], RUN_ID, 60.0)
    try:
        return asyncio.run(part(Peer(case, rank, endpoint)))
    finally:
        endpoint.leave()
        communication.close(5.0)


def start(case: Case, rank: int) -> torch.Tensor:
    """The vector that a rank begins with, in float64, the same wherever it is made."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(case.elements, generator=generator, dtype=torch.float64)


def mixes_as_dense(case: Case, graph: Graph, weights: Mixing) -> str:
    """Some rounds of x_i <- sum_j w_ij x_j against W X in float64."""
    weighted = WeightedGraph(graph, weights)

    async def part(peer: Peer) -> float:
        slots, layout = peer.endpoint.slots, dense_layout(case.elements)
        slots[0].copy_(start(case, peer.rank).float())
        for round in range(case.rounds):
            now, then = slots[round % 2], slots[1 - round % 2]
            view = weighted.view(peer.rank, round, 0.0)
            inbox = await peer.swap(Payload.dense(now), graph, round, layout)
            models = {peer.rank: now, **{j: inbox[j]["vector"] for j in inbox}}
            terms = [(view.weights[j], models[j]) for j in sorted(models)]
            weighted_sum(terms, then)
        expected = torch.stack([start(case, rank) for rank in range(case.nodes)])
        for round in range(case.rounds):
            expected = torch.as_tensor(weighted.matrix(round), dtype=torch.float64) @ expected
        return float((slots[case.rounds % 2].double().cpu() - expected[peer.rank]).abs().max())

    errors = perform(case, part)
    return verdict(errors, lambda error: isinstance(error, float) and error < 1e-5, "largest error")


def undirected(case: Case) -> str:
    """A ring."""
    return mixes_as_dense(case, Ring(case.nodes), MetropolisHastings())


def directed(case: Case) -> str:
    """A directed exponential graph: nobody but the end of the transfer says that memory is free."""
    return mixes_as_dense(case, Exponential(case.nodes), Uniform())


def variable(case: Case) -> str:
    """Payloads of another length from every rank, in every round."""
    layout = Layout((Field("values", torch.float32, case.elements, variable=True),), Form.SPARSE)

    async def part(peer: Peer) -> bool:
        right = True
        for round in range(case.rounds):
            payload = Payload.empty(layout, values=(peer.rank * 31 + round) % case.elements)
            payload["values"].fill_(peer.rank + round)
            inbox = await peer.swap(payload.to(case.device), Ring(case.nodes), round, layout)
            for j in inbox:
                values = inbox[j]["values"]
                right &= values.numel() == (j * 31 + round) % case.elements and bool(
                    (values == j + round).all()
                )
            right &= not inbox.missing
        return right

    return verdict(perform(case, part), lambda right: right is True, "all as sent")


def survives(case: Case) -> str:
    """The last rank is killed: the others notice, and continue over ZeroMQ."""
    last = case.nodes - 1

    async def part(peer: Peer) -> list[float]:
        slowest, layout = 0.0, dense_layout(case.elements)
        for round in range(case.rounds + 4):
            if peer.rank == last and round == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            inbox = await peer.swap(
                Payload.dense(peer.endpoint.slots[round % 2]), Ring(case.nodes), round, layout
            )
            slowest = max(slowest, time.monotonic() - began)
        return [slowest, peer.endpoint.routes[0].group_membership.group is None, len(inbox.missing)]

    outcomes = perform(case, part, frozenset({last}))
    return verdict(outcomes, lambda f: isinstance(f, list) and f[1], "seconds, group ended, missing")


def speed(case: Case) -> str:
    """Payload bytes per second that a node receives on a ring, as a figure of this emulation alone."""

    async def part(peer: Peer) -> float:
        layout = dense_layout(case.elements)
        for round in range(2 * case.rounds):
            if round == case.rounds:
                began = time.monotonic()
            payload = Payload.dense(peer.endpoint.slots[round % 2])
            received = len(await peer.swap(payload, Ring(case.nodes), round, layout))
        return received * 4 * case.elements * case.rounds / (time.monotonic() - began) / 1e9

    return verdict(perform(case, part), lambda rate: isinstance(rate, float), "GB/s")


def verdict(found: dict[int, Any], is_good: Callable[[Any], bool], what: str) -> str:
    """One line; it begins with FAILED when a rank found something else."""
    good = all(is_good(value) for value in found.values())
    return f"{'ok    ' if good else 'FAILED'} {what}: {found}"


CHECKS: tuple[Callable[[Case], str], ...] = (undirected, directed, variable, survives, speed)


def gpus() -> int:
    """How many GPUs torch finds, without making a context in this process, which forks."""
    return torch.cuda.device_count()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    case = Case(options.backend, options.nodes, options.elements, options.rounds)
    if case.backend == "nccl" and not (gpus() and torch.distributed.is_nccl_available()):
        print("torch finds no GPU here, or has no NCCL; --backend gloo runs the same on the CPU")
        sys.exit(2)
    print(f"torch {torch.__version__}, {case.nodes} ranks, {case.elements} elements, {case.backend}")
    failed = False
    for check in CHECKS:
        line = check(case)
        failed |= line.startswith("FAILED")
        print(f"{check.__name__:<10} {line}", flush=True)
    print(Path(__file__).name, "FAILED" if failed else "ok")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
