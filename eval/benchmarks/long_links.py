"""How fast models cross a long link: two nodes in two namespaces, over one connection and over several.

    python eval/benchmarks/long_links.py [--congestion C] [--rate MBIT] [--delay MS] [--loss PERCENT]

The link has that rate, that delay one way and that random loss in each direction (`_long_link.py`), where
nothing else is said 100 Mbit/s, 50 ms and 0.01 %. The nodes are real ones without samples. In each round they
send their models to each other at once, at its beginning or after a pause that stands for local steps, in
which the kernel forgets how much it may send. Rates are those of the payload over the whole round, with the
delay, the checksums and the mix, and of the slower way. Beside them iperf3 sends as many bytes over as many
connections, both ways; the mean of both counts. Needs the rights to make network namespaces, nft, cc, iperf3.
"""

import asyncio
import ctypes
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from _forked import run_forked
from _long_link import ADDRESSES, EAST, WEST, LaidLink, LongLink, inside
from _report import Target, conclude, median, parser, show
from _untrained_node import RUN_ID, TIMEOUT, NodeCase, build_node

from decentnode.communication.base import BufferSpec, HostProcess, ProcessDirectory
from decentnode.communication.zeromq.plugin import ZeroMQ

PORT = 29600
MEGABYTES = (10, 40)
PAUSES = (0.0, 1.0)
ROUNDS, WARM_UP = 7, 1
REPEATS = 3
"""Runs of iperf3."""
OF_LINE_OR_IPERF3 = 0.9


@dataclass(frozen=True)
class Case:
    """What is run in one line of the table."""

    megabytes: int
    connections: Literal["auto"] | int
    pause: float
    rounds: int


def node_run(case: Case, directory: Path) -> list[dict[str, Any]]:
    """The seconds of each round at both ends, and the connections of the link."""
    elements = case.megabytes * 250_000
    context = multiprocessing.get_context("fork")
    places = tuple(HostProcess(i, 0, (i,), address) for i, address in enumerate(ADDRESSES))
    spec = NodeCase("tcp", 2, elements, case.rounds, WARM_UP, PORT, directory)
    together = context.Barrier(2)

    def work(rank: int) -> dict[str, Any]:
        enter((WEST, EAST)[rank])
        communication = ZeroMQ(local="tcp", base_port=PORT, connections=case.connections)
        folder = directory / str(rank)
        folder.mkdir()
        communication.prepare(ProcessDirectory(places, rank, str(folder)), 4 * elements)
        endpoint = communication.endpoint(rank, BufferSpec(elements))
        node = build_node(spec, rank, endpoint)
        together.wait(TIMEOUT)
        communication.open([1 - rank], RUN_ID, TIMEOUT)
        times = []
        for round in range(case.rounds):
            time.sleep(case.pause)
            together.wait(TIMEOUT)
            began = time.monotonic()
            asyncio.run(node.run_round(round))
            times.append(time.monotonic() - began)
        used = communication.sockets.links.connections(1 - rank)
        endpoint.leave()
        communication.close(TIMEOUT)
        return {"seconds": times[WARM_UP:], "connections": used}

    return run_forked(range(2), work)


def enter(namespace: str) -> None:
    """Moves this process to a network namespace."""
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), namespace)
    os.close(fd)


def iperf3(connections: int, megabytes: int) -> float:
    """The rate at which its receiver got so many bytes over so many connections, in Mbit/s."""
    server = subprocess.Popen(inside(EAST, "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        words = ("iperf3", "-c", ADDRESSES[1], "-J", "--bidir", "-P", str(connections), "-n", f"{megabytes}M")
        done = subprocess.run(inside(WEST, *words), capture_output=True, text=True, timeout=TIMEOUT)
        end = json.loads(done.stdout)["end"]
        server.wait(TIMEOUT)
    finally:
        server.kill()
    rates = [end[name]["bits_per_second"] for name in ("sum_received", "sum_received_bidir_reverse")]
    return sum(rates) / len(rates) / 1e6


def measure(case: Case) -> dict[str, Any]:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as directory:
        ends = node_run(case, Path(directory))
    seconds = [max(pair) for pair in zip(*(end["seconds"] for end in ends), strict=True)]
    rates = [8 * case.megabytes / one for one in seconds]
    figures = {"megabytes": case.megabytes, "pause": case.pause, "connections": ends[0]["connections"]}
    return figures | {
        "mbit_per_s": median(rates),
        "least": median([min(rates)]),
        "most": median([max(rates)]),
    }


def targets_of(table: list[dict[str, Any]], rate: float) -> list[Target]:
    """What the lines with several connections have to reach."""
    return [
        Target(
            f"{line['megabytes']} MB, pause {line['pause']:g} s, of the line or of iperf3",
            max(line["mbit_per_s"] / rate, line["of_iperf3"]), "at least", OF_LINE_OR_IPERF3,
        )
        for line in table
        if line["connections"] > 1
    ]  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--congestion", default="cubic", help="cubic, bbr or another that the kernel has")
    options.add_argument("--rate", type=float, default=100.0, help="Mbit/s")
    options.add_argument("--delay", type=float, default=50.0, help="ms, one way")
    options.add_argument("--loss", type=float, default=0.01, help="percent")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    link = LongLink(1e6 * arguments.rate, arguments.delay / 1e3, arguments.loss / 100, arguments.congestion)
    sizes, pauses, rounds = (MEGABYTES, PAUSES, ROUNDS) if not arguments.small else (MEGABYTES[:1], (0.0,), 2)
    table = []
    with LaidLink(link) as laid:
        for megabytes in sizes:
            references: dict[int, float] = {}
            for pause in pauses:
                for connections in (1, "auto"):
                    line = measure(Case(megabytes, connections, pause, rounds))
                    if (used := line["connections"]) not in references:
                        repeats = 1 if arguments.small else REPEATS
                        references[used] = median([iperf3(used, megabytes) for _ in range(repeats)])
                    line["iperf3"] = references[used]
                    line["of_iperf3"] = median([line["mbit_per_s"] / references[used]])
                    show(line)
                    table.append(line)
        print("packets lost at random and dropped by the full queues:", *laid.dropped())
    names = [f"{line['megabytes']} MB, pause {line['pause']:g}, {line['connections']}" for line in table]
    ratio = {name: line["of_iperf3"] for name, line in zip(names, table, strict=True)}
    conclude("long_links", arguments.small, table, ratio, targets_of(table, arguments.rate))


if __name__ == "__main__":
    main()
