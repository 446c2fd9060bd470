"""What waits in memory for a step of DecentralizedDataParallel, beside what it needs without neighbors.

    decentnode bench wrapper_memory [--small]

Three processes in a ring, ten linear layers, each a bucket. The first process is late in every step, so that
all that its neighbors may send ahead waits there. Memory of a process's own is looked at before every mixing,
in the same steps with two neighbors and with none: the difference, in buckets and for each neighbor.
"""

import ctypes
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # or every forked process would import it at its first optimizer
import torch.distributed as dist
from _forked import run_forked
from _ports import free_ports
from _report import Target, conclude, parser, show
from torch import nn

from decentnode import DecentralizedDataParallel

NODES, LAYERS = 3, 10
LATE = 0.1
"""Seconds by which the first process is late."""
MOST = 2
M_MMAP_THRESHOLD = -3
"""Buckets for each neighbor."""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    transport: str
    in_flight: int | None
    width: int
    steps: int


def return_freed_memory() -> None:
    """Has malloc give back at once what is freed, so that what is there is what is needed."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)


def own_bytes() -> int:
    """Memory of this process that is neither a file's nor shared."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def peak(case: Case, port: int, has_neighbors: bool, rank: int) -> int:
    """In one process: the most of its own memory that it had before a mixing, after the first steps."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(NODES), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(case.width, case.width) for _ in range(LAYERS)))
    most = [0]

    def keep_most(mixture: Any) -> None:
        if mixture.step > 2:
            most.append(own_bytes())

    ways: dict[str, Any] = {
        "shared_memory": "zeromq",
        "tcp": {"name": "zeromq", "local": "tcp", "base_port": port + 1},
        "gloo": {"name": "torch_distributed", "backend": "gloo"},
    }
    model = DecentralizedDataParallel(
        network,
        lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
        "ring" if has_neighbors else [[float(i == j) for j in range(NODES)] for i in range(NODES)],
        bucket_mb=bucket_bytes(case) / 1e6,
        in_flight=case.in_flight,
        before_mixing=keep_most,
        communication=ways[case.transport],
        deadline=60.0,
        keep_freed_memory=False,
    )
    for _ in range(case.steps):
        loss = model(torch.ones(4, case.width)).square().mean()
        time.sleep(LATE if rank == 0 else 0.0)
        loss.backward()
    model.close()
    dist.destroy_process_group()
    return max(most)


def bucket_bytes(case: Case) -> int:
    """A layer."""
    return 4 * case.width * (case.width + 1)


def measure(case: Case) -> dict[str, Any]:
    """One line of the table."""
    peaks = {
        has_neighbors: run_forked(range(NODES), partial(peak, case, free_ports(NODES + 1), has_neighbors))
        for has_neighbors in (True, False)
    }
    extra = [more - alone for more, alone in zip(peaks[True], peaks[False], strict=True)]
    buckets = [e / (NODES - 1) / bucket_bytes(case) for e in extra]
    return {
        "transport": case.transport,
        "in_flight": case.in_flight or "all",
        "late_mb": round(extra[0] / 1e6, 1),
        "late_buckets": round(buckets[0], 1),
        "others_buckets": round(max(buckets[1:]), 1),
    }


def main() -> None:
    small = parser(__doc__).parse_args().small
    width, steps = (400, 5) if small else (1000, 12)
    table = []
    for transport in ("shared_memory", "tcp", "gloo"):
        for in_flight in (2,) if small else (None, 2, 1):
            table.append(measure(Case(transport, in_flight, width, steps)))
            show(table[-1])
    # Over TCP two exchanges may have come for each that may be in flight: a sender is ahead by as many. Over
    # gloo it is one, but of memory on large pages, which may be a twentieth more.
    most = {"shared_memory": "all", "gloo": 1, "tcp": 1}
    bounded = [line for line in table if line["in_flight"] == most[line["transport"]]]
    targets = [
        Target(f"{line['transport']}, {line['in_flight']} in flight", line["late_buckets"], "at most", MOST)
        for line in bounded
    ]
    copying = [line for line in table if line["transport"] != "shared_memory"]
    ratios = {f"{line['transport']}, {line['in_flight']} in flight": line["late_buckets"] for line in copying}
    conclude("wrapper_memory", small, table, ratios, targets)


if __name__ == "__main__":
    main()
