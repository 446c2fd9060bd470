"""How fast models cross a long link: two nodes in two namespaces, one connection and several, beside iperf3.

    python eval/benchmarks/long_links.py [--rate 100e6] [--delay 0.05] [--loss 1e-4] [--small]

The link has that rate, delay one way and random loss in each direction (`_long_link.py`). The nodes are real
ones without samples, which send their models to each other at once; a pause stands for local steps, in which
the kernel forgets how much it may send. Rates are those of the payload: a round has also the delay, the mix and
the checksums. iperf3 sends as many bytes over as many connections, one way. Needs the rights to make network
namespaces, nft, cc and iperf3.
"""

import asyncio
import ctypes
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _forked import run_forked
from _long_link import ADDRESSES, EAST, WEST, LaidLink, LongLink, inside
from _report import Target, conclude, median, parser, show
from _untrained_node import RUN_ID, TIMEOUT, NodeCase, build_node

from decentnode.communication.base import BufferSpec, HostProcess, ProcessDirectory
from decentnode.communication.zeromq.plugin import ZeroMQ
from decentnode.communication.zeromq.stripes import MOST_CONNECTIONS

PORT = 29600
MEGABYTES = (10, 40)
WARM_UP = 1


@dataclass(frozen=True)
class Case:
    """What is run in one line of the table."""

    megabytes: int
    connections: Any
    pause: float
    rounds: int


def node_run(case: Case, directory: Path) -> list[dict[str, Any]]:
    """The seconds of each round at both ends, and the connections of the link."""
    elements = case.megabytes * 250_000
    places = tuple(HostProcess(i, 0, (i,), address) for i, address in enumerate(ADDRESSES))
    spec = NodeCase("tcp", 2, elements, case.rounds, WARM_UP, PORT, directory)
    listening = multiprocessing.get_context("fork").Barrier(2)
    pair = multiprocessing.get_context("fork").Barrier(2)

    def work(rank: int) -> dict[str, Any]:
        enter((WEST, EAST)[rank])
        communication = ZeroMQ(local="tcp", base_port=PORT, connections=case.connections)
        folder = directory / str(rank)
        folder.mkdir()
        communication.prepare(ProcessDirectory(places, rank, str(folder)), 4 * elements)
        node = build_node(spec, rank, communication.endpoint(rank, BufferSpec(elements)))
        listening.wait(TIMEOUT)
        communication.open([1 - rank], RUN_ID, TIMEOUT)
        times = []
        for round in range(case.rounds):
            time.sleep(case.pause)
            pair.wait(TIMEOUT)
            began = time.monotonic()
            asyncio.run(node.run_round(round))
            times.append(time.monotonic() - began)
        striped = communication.sockets.links._dealers._striped
        used = max((len(sockets) for sockets in striped.values()), default=1)
        node.exchange.endpoint.leave()
        communication.close(30.0)
        return {"seconds": times[WARM_UP:], "connections": used, "refused": dict(node.exchange.endpoint.refused)}

    return run_forked(range(2), work)


def enter(namespace: str) -> None:
    """Moves this process to a network namespace."""
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), namespace)
    os.close(fd)


def iperf3(connections: int, *amount: str) -> float:
    """The rate of iperf3 over so many connections, in bits per second."""
    server = subprocess.Popen(inside(EAST, "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    words = ("iperf3", "-c", ADDRESSES[1], "-P", str(connections), "-J", *amount)
    done = subprocess.run(inside(WEST, *words), capture_output=True, text=True, timeout=120)
    server.wait(20)
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"])


def measure(case: Case, link: LongLink) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        ends = node_run(case, Path(directory))
    seconds = [max(pair) for pair in zip(*(end["seconds"] for end in ends), strict=True)]
    rates = [8e6 * case.megabytes / one for one in seconds]
    return {
        "congestion": link.congestion, "megabytes": case.megabytes, "asked": case.connections,
        "connections": ends[0]["connections"], "pause": case.pause,
        "median": median(rates) / 1e6, "least": min(rates) / 1e6, "most": max(rates) / 1e6,
        "mean": 8 * case.megabytes / statistics.mean(seconds), "refused": [end["refused"] for end in ends],
    }
if __name__ == "__main__":
    import sys
    torch.set_num_threads(1)
    rounds = int(sys.argv[1])
    for cc in sys.argv[2].split(","):
        link = LongLink(100e6, float(sys.argv[4]) if len(sys.argv) > 4 else .05, 1e-4, cc)
        with LaidLink(link) as laid:
            for mb in map(int, sys.argv[3].split(",")):
                for pause in (0.0, 1.0):
                    for k in (1, "auto"):
                        print(measure(Case(mb, k, pause, rounds), link), laid.dropped(), flush=True)
