"""What a step of DecentralizedDataParallel costs: beside a local step and torch's DistributedDataParallel.

    decentnode bench wrapper [--small] [--repeats N] [--elements N ...] [--decent-dp FOLDER]

Four processes that compute on one thread each, a network of linear layers, SGD. In every repetition all
contestants make the same steps in turn, in the same processes: `local` talks to nobody, `ddp` averages
gradients over gloo, `ring` has two neighbors, `one_peer` one. Then the overlap: two processes whose layers
mostly wait, as for an accelerator, and whose messages take 0.8 of the time of a local step, on a link that
carries one after the other.

With --decent-dp its wrapper takes part, too, in turn with ours over gloo (`gloo_...`). Its `ring` has one
neighbor in each step, as our alternating_ring; ours has two.
"""

import importlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # or every forked process would import it at its first optimizer
import torch.distributed as dist
from _forked import run_forked
from _ports import free_ports
from _report import Target, conclude, median, median_ratio, parser, show
from torch import Tensor, nn

from decentnode import DecentralizedDataParallel
from decentnode.communication.base import HostProcess, ProcessDirectory
from decentnode.communication.interceptor import MessageInterceptor, Received
from decentnode.communication.wire import Header, Kind
from decentnode.communication.zeromq.receiver import header_bytes
from decentnode.parallel.rendezvous import RankStoreRendezvous

NODES = 4
WIDTHS = {1_000_000: 500, 10_000_000: 1000}
BATCH = 16
DECENT_DP = {1_000_000: 10.8 / 3.4, 10_000_000: 90 / 32}
"""Step time of Decent-DP's ring over that of a local step, as measured by others on 2 cores."""
FASTER = 1.5
DECENT_DP_GRAPHS = {"ring": "ring", "alternating_ring": "ring", "fully_connected": "complete"}
"""By our graph theirs that it is compared with, both over gloo."""
FASTER_OVER_GLOO = 1.1
WIRE = 0.8
"""Time on the wire over that of a local step."""
LIMIT = 60.0
KEPT: list[nn.Module] = []
"""Torch waits for the threads of a process group that ends; they may wait for the interpreter then."""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    elements: int
    steps: int
    repeats: int
    port: int
    decent_dp: str = ""
    """Where Decent-DP is installed; empty: it does not take part."""


def network(elements: int) -> nn.Module:
    """Linear layers with so many parameters, about; of one width."""
    width = WIDTHS.get(elements, 50)
    layers = max(1, round(elements / width**2))
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    """The same optimizer for everybody."""
    return torch.optim.SGD(parameters, lr=1e-6)


def batch_of(module: nn.Module, rank: int, size: int = BATCH) -> Tensor:
    """Inputs of one rank."""
    width = next(module.parameters()).shape[1]
    return torch.randn(size, width, generator=torch.Generator().manual_seed(rank))


@dataclass(frozen=True)
class Spent:
    """What one rank needed for a step."""

    seconds: float
    cpu: float
    """Processor seconds of the whole process, which other programs disturb less."""


def time_steps(model: nn.Module, inputs: Tensor, optimizer: Any, steps: int) -> Spent:
    """One rank's time for a step, after two that are not timed; begun by all ranks at once."""
    for step in range(steps + 2):
        if step == 2:
            dist.barrier()
            began, computed = time.monotonic(), time.process_time()
        if optimizer is not None:
            optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
    spent, computed = time.monotonic() - began, time.process_time() - computed
    dist.barrier()
    return Spent(spent / steps, computed / steps)


def join(rank: int, size: int, port: int) -> None:
    """As torchrun would start it."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")


def race(case: Case, rank: int) -> dict[str, list[tuple[float, float]]]:
    """In one process: every contestant's seconds and processor seconds per step, in each repetition."""
    join(rank, NODES, case.port)
    local, ddp, ring, one_peer = (network(case.elements) for _ in range(4))
    inputs = batch_of(local, rank)
    parallel = nn.parallel.DistributedDataParallel(ddp)
    KEPT.append(parallel)
    wrapped = DecentralizedDataParallel(ring, plain_sgd, "ring", deadline=LIMIT)
    pairs = [[0.5 * (i == j or i ^ 1 == j) for j in range(NODES)] for i in range(NODES)]
    paired = DecentralizedDataParallel(one_peer, plain_sgd, pairs, deadline=LIMIT)
    contestants: dict[str, Callable[[], Spent]] = {
        "local": lambda: time_steps(local, inputs, plain_sgd(local.parameters()), case.steps),
        "ddp": lambda: time_steps(parallel, inputs, plain_sgd(ddp.parameters()), case.steps),
        "ring": lambda: time_steps(wrapped, inputs, None, case.steps),
        "one_peer": lambda: time_steps(paired, inputs, None, case.steps),
    }
    over_gloo = beside_decent_dp(case) if case.decent_dp else {}
    for name, model in over_gloo.items():
        contestants[name] = partial(time_steps, model, inputs, None, case.steps)
    seconds_of: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(case.repeats):
        for name, run in contestants.items():
            spent = run()
            seconds_of[name].append((spent.seconds, spent.cpu))
    slots = wrapped.endpoint.slots
    seconds_of["extra"] = [(slots[0].nbytes + slots[1].nbytes - 4 * count(ring), 0.0)]
    wrapped.close()
    paired.close()
    for model in over_gloo.values():
        if isinstance(model, DecentralizedDataParallel):
            model.close()
    dist.barrier()
    dist.destroy_process_group()
    return seconds_of


def beside_decent_dp(case: Case) -> dict[str, nn.Module]:
    """Decent-DP and ours on its graphs, all over gloo."""
    sys.path.append(case.decent_dp)
    importlib.import_module("loguru").logger.remove()
    theirs = importlib.import_module("decent_dp.ddp").DecentralizedDataParallel
    models: dict[str, nn.Module] = {
        f"decent_dp_{graph}": theirs(network(case.elements), plain_sgd, topology=graph)
        for graph in dict.fromkeys(DECENT_DP_GRAPHS.values())
    }
    for graph in DECENT_DP_GRAPHS:
        models[f"gloo_{graph}"] = DecentralizedDataParallel(
            network(case.elements), plain_sgd, graph, deadline=LIMIT, communication="torch_distributed"
        )
    KEPT.extend(models.values())
    return models


def count(module: nn.Module) -> int:
    """How many parameters there are."""
    return sum(parameter.numel() for parameter in module.parameters())


def columns(results: list[dict[str, list[Any]]], name: str) -> list[list[Any]]:
    """What one contestant reached, repetition by repetition, on each rank."""
    return [list(ranks) for ranks in zip(*(result[name] for result in results), strict=True)]


def measure(case: Case) -> dict[str, Any]:
    """One line of the table, milliseconds: of the slowest rank, and processor time of the mean one."""
    results = run_forked(range(NODES), lambda rank: race(case, rank))
    figures: dict[str, Any] = {"elements": case.elements}
    times, cpu = {}, {}
    extra = max(result.pop("extra")[0][0] for result in results)
    for name in results[0]:
        ranks = columns(results, name)
        times[name] = [max(seconds for seconds, _ in times) for times in ranks]
        cpu[name] = [sum(computed for _, computed in times) / NODES for times in ranks]
        figures[f"{name}_ms"] = median([1e3 * t for t in times[name]])
        figures[f"{name}_cpu_ms"] = median([1e3 * t for t in cpu[name]])
    for name in ("ddp", "ring", "one_peer"):
        figures[f"{name}_of_local"] = median_ratio(times[name], times["local"])
        figures[f"{name}_cpu_of_local"] = median_ratio(cpu[name], cpu["local"])
    figures["extra_mb"] = round(extra / 1e6, 2)
    figures["ddp_over_ring"] = median_ratio(times["ddp"], times["ring"])
    for graph, theirs in DECENT_DP_GRAPHS.items() if case.decent_dp else ():
        for kind, spent in (("", times), ("cpu_", cpu)):
            ours, other = spent[f"gloo_{graph}"], spent[f"decent_dp_{theirs}"]
            ratios = sorted(a / b for a, b in zip(other, ours, strict=True))
            figures[f"gloo_{graph}_{kind}times_faster"] = median_ratio(other, ours)
            figures[f"gloo_{graph}_{kind}range"] = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    return figures


# The overlap.


class Pause(torch.autograd.Function):
    """Time that passes, as on an accelerator, forward and twice as long backward; the processor is free."""

    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * context.seconds)
        return gradients[0], None


class Paused(nn.Module):
    """A layer that takes its time, however busy the machine is."""

    def __init__(self, layer: nn.Module, seconds: float) -> None:
        super().__init__()
        self.layer = layer
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        return Pause.apply(self.layer(x), self.seconds)  # type: ignore[no-any-return, no-untyped-call]


def slow_network(elements: int) -> nn.Module:
    """The same layers, of which each takes 30 ms."""
    return nn.Sequential(*(Paused(layer, 0.01) for layer in network(elements)))  # type: ignore[attr-defined]


class Wire(MessageInterceptor):
    """A link that carries one payload after the other, each for so long as its bytes take."""

    def __init__(self) -> None:
        self.seconds_per_byte = 0.0
        self._held: deque[tuple[float, Received]] = deque()
        self._free = 0.0

    @property
    def next_release(self) -> float:  # type: ignore[override]
        return self._held[0][0] if self._held else float("inf")

    def filter_messages(self, message: Received, now: float) -> list[Received]:
        header = Header.unpack(header_bytes(message[0][0]))
        if header.kind not in (Kind.PAYLOAD, Kind.NOTICE) or not self.seconds_per_byte:
            return [message]
        self._free = max(now, self._free) + self.seconds_per_byte * header.length
        self._held.append((self._free, message))
        return []

    def released(self, now: float) -> list[Received]:
        due = []
        while self._held and self._held[0][0] <= now:
            due.append(self._held.popleft()[1])
        return due


class SlowRendezvous(RankStoreRendezvous):
    """Ranks between which there is such a wire."""

    wire: Wire

    def place(self, processes: tuple[HostProcess, ...], directory: Path) -> ProcessDirectory:
        self.wire = Wire()
        return replace(super().place(processes, directory), interceptor=self.wire)


def overlap(case: Case, rank: int) -> dict[str, list[float]]:
    """In one of two processes: seconds per step alone, and with an exchange that takes 0.8 of that."""
    join(rank, 2, case.port)
    alone, together = slow_network(case.elements), slow_network(case.elements)
    inputs = batch_of(alone, rank)
    rendezvous = SlowRendezvous.from_environment(LIMIT)
    model = DecentralizedDataParallel(
        together, plain_sgd, "ring", rendezvous=rendezvous, bucket_mb=4e-6 * case.elements / 4, deadline=LIMIT
    )
    seconds_of: dict[str, list[float]] = {"alone": [], "together": []}
    for _ in range(case.repeats):
        optimizer = plain_sgd(alone.parameters())
        seconds_of["alone"].append(time_steps(alone, inputs, optimizer, case.steps).seconds)
        rendezvous.wire.seconds_per_byte = WIRE * seconds_of["alone"][-1] / (4 * case.elements)
        seconds_of["together"].append(time_steps(model, inputs, None, case.steps).seconds)
    model.close()
    dist.destroy_process_group()
    return seconds_of


def measure_overlap(case: Case) -> dict[str, Any]:
    """How much of the time on the wire is hidden behind the computation."""
    results = run_forked(range(2), lambda rank: overlap(case, rank))
    times = {name: [max(column) for column in columns(results, name)] for name in results[0]}
    return {
        "elements": case.elements,
        "wire_of_step": WIRE,
        "alone_ms": median([1e3 * t for t in times["alone"]]),
        "together_ms": median([1e3 * t for t in times["together"]]),
        "efficiency": median_ratio(times["alone"], times["together"]),
    }


def targets_of(table: list[dict[str, Any]]) -> list[Target]:
    """What has to be reached."""
    targets = []
    for figures in table:
        name = f"d={figures['elements']:g}"
        if "efficiency" in figures:
            targets.append(Target(f"{name}, overlap", figures["efficiency"], "at least", 0.95))
        elif figures["elements"] in DECENT_DP:
            limit = round(DECENT_DP[figures["elements"]] / FASTER, 2)
            targets.append(Target(f"{name}, ring of local", figures["ring_of_local"], "at most", limit))
            bucket_mb = min(4e-6 * figures["elements"], 25)
            memory = figures["extra_mb"] / (2 * bucket_mb)
            targets.append(Target(f"{name}, extra memory in buckets per neighbor", memory, "at most", 2))
            for graph in DECENT_DP_GRAPHS:
                if faster := figures.get(f"gloo_{graph}_times_faster"):
                    what = f"{name}, {graph} over gloo, times faster than Decent-DP"
                    targets.append(Target(what, faster, "at least", FASTER_OVER_GLOO))
    return targets


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--elements", type=int, action="append", choices=list(WIDTHS))
    options.add_argument(
        "--decent-dp", default="", metavar="FOLDER",
        help="where Decent-DP is installed: pip install --no-deps --target FOLDER decent-dp==0.2.3 loguru",
    )  # fmt: skip
    arguments = options.parse_args()
    small = arguments.small
    sizes = [10_000] if small else arguments.elements or list(WIDTHS)
    repeats = 1 if small else arguments.repeats
    table = []
    for elements in sizes:
        steps = 3 if small else max(5, 40_000_000 // elements)
        table.append(measure(Case(elements, steps, repeats, free_ports(1), arguments.decent_dp)))
        show(table[-1])
    table.append(measure_overlap(Case(sizes[0], 3 if small else 5, repeats, free_ports(1))))
    show(table[-1])
    ratio = {f"local over ring, d={f['elements']:g}": 1 / f["ring_of_local"] for f in table[:-1]}
    ratio["overlap"] = table[-1]["efficiency"]
    conclude("wrapper", small, table, ratio, targets_of(table))


if __name__ == "__main__":
    main()
