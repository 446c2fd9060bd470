"""How fast nodes exchange and mix models: 4 nodes, a complete graph, no training.

    python eval/benchmarks/exchange.py [SIZE ...] [--small] [--local TRANSPORT ...] [--source FOLDER]

SIZE is how many numbers a model has, such as 1e5. TRANSPORT is shared_memory, ipc, tcp, tcp_keys or gloo.

Each node is a real `Node` without samples, in a process of its own. In every repetition the raw loops run
right after it, over the same bytes. tcp_keys is tcp with guarded links, as they are between machines; its raw
loop encrypts as well. gloo is torch_distributed; its raw loop is torch's batch_isend_irecv. With --source,
nodes of decentralizepy run in turn with them: full sharing over its TCP class, without training. Where
iceoryx2 is installed (`pip install iceoryx2`), a loop over it runs beside shared memory, too.
"""

import asyncio
import multiprocessing
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from _decentralizepy import Case as NodesCase
from _decentralizepy import add_source, run_nodes
from _forked import run_forked
from _iceoryx2_loop import iceoryx2_loop
from _ports import free_ports
from _raw_exchange import RawCase, RawLoop, batch_loop, eventfd_loop, frames_loop, shared_memory_loop
from _report import Target, conclude, median, median_ratio, parser, show
from _untrained_node import RUN_ID, TIMEOUT, NodeCase, build_node, open_communication, run_rounds

from decentnode.communication.security.curve import Credentials, KeyPair
from decentnode.graph.families import FullyConnected

NODES = 4
SIZES = (100_000, 1_000_000, 10_000_000)
FASTER = dict(zip(SIZES, (6, 10, 30), strict=True))
"""How many times the rate of decentralizepy's nodes in the same run, where they take part."""
OF_SHARED_MEMORY = dict(zip(SIZES, (0.75, 0.8, 0.75), strict=True))
OF_FRAMES = {1_000_000: 0.9, 10_000_000: 0.9}
OF_BATCHES = {1_000_000: 0.95, 10_000_000: 0.95}
OF_RAW = {
    "shared_memory": OF_SHARED_MEMORY, "tcp": OF_FRAMES, "tcp_keys": OF_FRAMES, "gloo": OF_BATCHES,
}  # fmt: skip
BYTES_PER_RUN = {"shared_memory": 12e9, "ipc": 4e9, "tcp": 4e9, "tcp_keys": 1e9, "gloo": 1e9}
"""Enough for about a second."""
SMALL_SIZE, SMALL_ROUNDS = 10_000, 20
FEWEST_ROUNDS, MOST_ROUNDS = 12, 2000
MOST_ROUNDS_OF_DECENTRALIZEPY = 200
"""Its nodes write all their results anew in every round."""


@dataclass(frozen=True)
class Case:
    """What is run in one line of the table."""

    local: str
    elements: int
    rounds: int

    @property
    def transport(self) -> str:
        """What `communication.local` says."""
        return self.local.removesuffix("_keys")

    def keys(self) -> Credentials | None:
        """Fresh keys, where the links are guarded."""
        pair = KeyPair.make()
        return Credentials(0, pair, (pair.public,)) if self.local.endswith("_keys") else None

    @property
    def warm_up(self) -> int:
        """Rounds that are not timed."""
        return max(2, self.rounds // 10)

    @property
    def payload_bytes(self) -> int:
        """What all nodes together receive in the timed rounds."""
        return NODES * (NODES - 1) * 4 * self.elements * (self.rounds - self.warm_up)


def node_run(case: Case, directory: Path) -> list[dict[str, float]]:
    """The product: one process per node."""
    spec = NodeCase(
        case.transport, NODES, case.elements, case.rounds, case.warm_up, free_ports(NODES), directory,
        case.keys(),
    )  # fmt: skip
    listening = multiprocessing.get_context("fork").Barrier(NODES)

    def work(rank: int) -> dict[str, float]:
        communication, endpoint = open_communication(spec, rank)
        node = build_node(spec, rank, endpoint)
        # As a launcher does: to a peer, a process that refuses connections is lost.
        listening.wait(TIMEOUT)
        communication.open([j for j in range(NODES) if j != rank], RUN_ID, TIMEOUT)
        measured = asyncio.run(run_rounds(node, spec))
        endpoint.leave()
        communication.close(5.0)
        return measured

    return run_forked(range(NODES), work)


def raw_run(case: Case, directory: Path, loop: RawLoop) -> list[dict[str, float]]:
    """A hand-written loop: one process per node as well."""
    if case.transport == "tcp":
        first = free_ports(NODES)
        endpoints = [f"tcp://127.0.0.1:{first + i}" for i in range(NODES)]
    else:
        endpoints = [f"ipc://{directory}/raw{i}" for i in range(NODES)]
    raw = RawCase(NODES, case.elements, case.rounds, case.warm_up, tuple(endpoints), case.keys())
    try:
        return run_forked(range(NODES), lambda rank: loop(raw, rank))
    finally:
        raw.close()


@dataclass(frozen=True)
class Speed:
    """What one run reached."""

    rate: float
    """Payload GB/s over all nodes."""
    cpu: float
    """Processor microseconds of one node and round, which other programs disturb less than the rate."""


def speed(case: Case, run: Callable[[Path], list[dict[str, float]]]) -> Speed:
    """Runs once; raises RuntimeError when a node's model is not the mean of all, as it has to be."""
    with tempfile.TemporaryDirectory() as directory:
        measured = run(Path(directory))
    mean = (NODES - 1) / 2
    if any(m[end] != mean for m in measured for end in ("first", "last")):
        raise RuntimeError(f"the models are not {mean}: {measured}")
    seconds = max(m["ended"] for m in measured) - min(m["began"] for m in measured)
    cpu = sum(m["cpu"] for m in measured) / NODES / (case.rounds - case.warm_up)
    return Speed(case.payload_bytes / seconds / 1e9, cpu * 1e6)


def decentralizepy_speed(case: Case, source: Path) -> Speed:
    """Runs its nodes once; raises RuntimeError when a node's model is not the mean of all."""
    rounds = min(case.rounds, MOST_ROUNDS_OF_DECENTRALIZEPY)
    run = run_nodes(NodesCase(source, FullyConnected(NODES), rounds, 0, {"elements": case.elements}))
    mean = (NODES - 1) / 2
    if any(value != mean for value in run.first_values):
        raise RuntimeError(f"the models are not {mean}: {run.first_values}")
    return Speed(
        NODES * (NODES - 1) * 4 * case.elements / run.round_seconds / 1e9, run.round_cpu_seconds * 1e6
    )


def measure(case: Case, repeats: int, source: Path | None = None) -> dict[str, Any]:
    """One line of the table: the product, the raw loops, and from `source` decentralizepy, in turn."""
    contestants: dict[str, Callable[[Path], list[dict[str, float]]]] = {"ours": lambda d: node_run(case, d)}
    loops = {"raw": frames_loop}
    if case.local == "gloo":
        loops = {"raw": batch_loop}
    if case.local == "shared_memory":
        loops = {"raw": shared_memory_loop, "eventfd": eventfd_loop}
        if find_spec("iceoryx2"):
            loops["iceoryx2"] = iceoryx2_loop
    for name, loop in loops.items():
        contestants[name] = lambda d, loop=loop: raw_run(case, d, loop)  # type: ignore[misc]
    speeds: dict[str, list[Speed]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            speeds[name].append(speed(case, run))
        if source is not None:
            speeds.setdefault("decentralizepy", []).append(decentralizepy_speed(case, source))
    rates = {name: [s.rate for s in times] for name, times in speeds.items()}
    figures: dict[str, Any] = {"local": case.local, "elements": case.elements}
    figures |= {f"{name}_gb_per_s": median(values) for name, values in rates.items()}
    figures |= {f"{name}_cpu_us": median([s.cpu for s in times]) for name, times in speeds.items()}
    figures |= {f"of_{name}": median_ratio(rates["ours"], rates[name]) for name in loops}
    if source is not None:
        figures["times_decentralizepy"] = median_ratio(rates["ours"], rates["decentralizepy"])
    return figures


def targets_of(figures: dict[str, Any]) -> list[Target]:
    """What this line has to reach."""
    local, elements = figures["local"], figures["elements"]
    name = f"{local} d={elements:g}"
    targets = []
    times = figures.get("times_decentralizepy")
    if local == "shared_memory" and elements in FASTER and times is not None:
        targets.append(Target(f"{name}, times decentralizepy", times, "at least", FASTER[elements]))
    of_raw = OF_RAW.get(local, {}).get(elements)
    if of_raw:
        targets.append(Target(f"{name}, of a raw loop", figures["of_raw"], "at least", of_raw))
    return targets


def cases(locals_: list[str], sizes: list[int], small: bool) -> list[Case]:
    """The lines of the table."""
    if small:
        return [Case(local, d, SMALL_ROUNDS) for local in locals_ for d in sizes or [SMALL_SIZE]]
    return [Case(local, d, rounds_of(local, d)) for local in locals_ for d in sizes or SIZES]


def size(text: str) -> int:
    """A length of vectors, also as 1e6; raises ValueError."""
    elements = int(float(text))
    if elements != float(text) or elements < 1:
        raise ValueError(text)
    return elements


def rounds_of(local: str, elements: int) -> int:
    """How many rounds take about a second."""
    rounds = BYTES_PER_RUN[local] / (NODES * (NODES - 1) * 4 * elements)
    return int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, rounds)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "sizes", nargs="*", type=size, metavar="SIZE", help="numbers in a model; default: 1e5 1e6 1e7"
    )
    options.add_argument(
        "--local", action="append", choices=list(BYTES_PER_RUN), help="default: shared_memory, tcp"
    )
    options.add_argument("--repeats", type=int, default=5)
    add_source(options, "without it, they do not")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    table = []
    for case in cases(arguments.local or ["shared_memory", "tcp"], arguments.sizes, arguments.small):
        table.append(measure(case, 1 if arguments.small else arguments.repeats, arguments.source))
        show(table[-1])
    ratio = {f"{f['local']} d={f['elements']:g}": f["of_raw"] for f in table}
    targets = [target for figures in table for target in targets_of(figures)]
    conclude("exchange", arguments.small, table, ratio, targets)


if __name__ == "__main__":
    main()
