"""Compares the models of a simulated network with SimGrid, an independent simulator (Casanova et al., 2014).

Random networks and messages of several kinds go through `fair`, `queue` and `delay`, and through SimGrid
with the same links: max-min fair shares, TCP as CM02 and LV08 have it, and acknowledgments on the way back.
The error of a message is that of the seconds from its sending to its arrival, relative to SimGrid's; that of
a network is the error of the arrival of its last message.

    apt-get install python3-simgrid         # Debian 12: SimGrid 3.32, for the python of the system
    python eval/simulation/against_simgrid.py [--cases 50] [--seed 1] [--python /usr/bin/python3]

Prints quantiles for each kind and model; exits with 1 if a message arrives with `fair`, whose times are whole
nanoseconds, more than 100 ns from SimGrid's time.
"""

import argparse
import heapq
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from math import inf, isinf
from pathlib import Path
from typing import Any

import numpy as np

from decentnode.simulation.clock import SECOND
from decentnode.simulation.network import Network
from decentnode.simulation.quantities import Regions
from decentnode.simulation.tcp import TCP, TcpModel

ALLOWED = 1e-7
"""Seconds between `fair` and SimGrid."""
MODELS = ("fair", "queue", "delay")
Case = dict[str, Any]
"""A network and its messages, as _simgrid.py reads it."""
Random = np.random.Generator


def case(
    up: np.ndarray, down: np.ndarray, latency: np.ndarray, messages: list[list[float]],
    bandwidth: np.ndarray | None = None, model: TcpModel | None = None,
) -> Case:  # fmt: skip
    """Returns a case with numbers that JSON has."""

    def plain(rates: np.ndarray) -> list[float | None]:
        return [None if isinf(rate) else float(rate) for rate in rates]

    return {
        "model": model,
        "uplink": plain(up),
        "downlink": plain(down),
        "latency": latency.tolist(),
        "bandwidth": None if bandwidth is None else [plain(row) for row in bandwidth],
        "messages": sorted(messages),
    }


def rates(random: Random, *shape: int) -> np.ndarray:
    """Returns rates around 3 Mbit/s, some of them equal, so that links get full at the same time."""
    drawn = random.lognormal(np.log(3e6), 1.0, shape)
    return np.where(random.random(shape) < 0.3, 2e6, drawn)


def pairs(random: Random, nodes: int, number: int) -> list[tuple[int, int]]:
    """Returns different directed links."""
    places = random.choice(nodes * (nodes - 1), min(number, nodes * (nodes - 1)), replace=False)
    return [(p // (nodes - 1), (p // (nodes - 1) + 1 + p % (nodes - 1)) % nodes) for p in places.tolist()]


def sizes(random: Random) -> int:
    return int(random.choice([20_000, 100_000, int(random.integers(1_000, 1_000_000))]))


def random_case(random: Random, model: TcpModel | None) -> Case:
    """Any links, any messages; without TCP several messages of one directed link."""
    nodes = int(random.integers(3, 12))
    latency = random.uniform(0.0, 0.1, (nodes, nodes))
    links = pairs(random, nodes, int(random.integers(1, 40)))
    messages = [
        [float(random.choice([0.0, random.uniform(0, 2)])), *link, sizes(random)]
        for link in links
        for _ in range(1 if model else int(random.integers(1, 4)))
    ]
    bandwidth = rates(random, nodes, nodes) if random.random() < 0.3 else None
    up, down = (np.where(random.random(nodes) < 0.2, inf, rates(random, nodes)) for _ in range(2))
    # SimGrid needs a limit somewhere on each way.
    down = np.where(np.isinf(down) & np.isinf(up), 5e6, down) if bandwidth is None else down
    return case(up, np.where(np.isinf(down), 1e9, down), latency, messages, bandwidth, model)


def no_latency(random: Random, model: TcpModel | None) -> Case:
    """The same without latency, of all ways or of some."""
    drawn = random_case(random, model)
    latency = np.array(drawn["latency"])
    is_zero = random.random(latency.shape) < random.choice([0.3, 1.0])
    drawn["latency"] = np.where(is_zero, 0.0, latency).tolist()
    return drawn


def both_ways(random: Random, model: TcpModel | None) -> Case:
    """Links carry messages both ways, over uplinks and downlinks of different rates."""
    nodes = int(random.integers(2, 8))
    up, down = random.lognormal(np.log(2e6), 1.5, nodes), random.lognormal(np.log(2e7), 1.5, nodes)
    latency = random.uniform(0.005, 0.05, (nodes, nodes))
    links = {link for pair in pairs(random, nodes, 6) for link in (pair, pair[::-1])}
    messages = [[0.0, *link, sizes(random)] for link in sorted(links)]
    return case(up, down, (latency + latency.T) / 2, messages, model=model)


def star(random: Random, model: TcpModel | None) -> Case:
    """64 home links of the shipped table and a server: models go down to all, or come up from all."""
    clients = 64
    regions = Regions("mlab", ("us", "de", "in", "ke"))
    seed = int(random.integers(1 << 30))
    up, down = (regions.draw(f"{end}_mbps", clients, seed, end) * 1e6 for end in ("uplink", "downlink"))
    server = float(random.choice([1e8, 1e9, 1e10]))
    latency = np.zeros((clients + 1, clients + 1))
    latency[:clients, :clients] = regions.latencies(clients, seed, "latency")
    latency[clients, :clients] = latency[:clients, clients] = latency[0, :clients]
    goes_up = random.random() < 0.5
    ways = [(n, clients) if goes_up else (clients, n) for n in range(clients)]
    messages: list[list[float]] = [[0.0, *way, 100_000] for way in ways]
    return case(np.append(up, server), np.append(down, server), latency, messages, model=model)


def gossip(random: Random, model: TcpModel | None) -> Case:
    """A round of 24 home links on a 4-regular graph, whose steps end at different times."""
    nodes, degree = 24, 4
    regions = Regions("mlab", ("us", "de", "in", "ke"))
    seed = int(random.integers(1 << 30))
    up, down = (regions.draw(f"{end}_mbps", nodes, seed, end) * 1e6 for end in ("uplink", "downlink"))
    order = random.permutation(nodes)
    begin = random.exponential(0.2, nodes)
    messages = [
        [float(begin[order[n]]), int(order[n]), int(order[(n + step) % nodes]), 100_000]
        for n in range(nodes)
        for step in (*range(1, degree // 2 + 1), *range(-(degree // 2), 0))
    ]
    return case(up, down, regions.latencies(nodes, seed, "latency"), messages, model=model)


def equal_gossip(random: Random, model: TcpModel | None) -> Case:
    """The same with links of one rate, and steps of one duration."""
    drawn = gossip(random, model)
    nodes = len(drawn["uplink"])
    drawn["messages"] = [[0.0, *message[1:]] for message in drawn["messages"]]
    drawn["uplink"] = drawn["downlink"] = [10e6] * nodes
    drawn["latency"] = np.full((nodes, nodes), 0.02).tolist()
    return drawn


KINDS: dict[str, Callable[[Random, TcpModel | None], Case]] = {
    "random": random_case,
    "no latency": no_latency,
    "both ways": both_ways,
    "star": star,
    "gossip": gossip,
    "equal gossip": equal_gossip,
}


class Events:
    """A queue of events, in the order of the loop."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = self.now = 0

    def call_at_nanosecond(self, due: int, callback: Callable[..., object], *args: Any) -> None:
        self._asked += 1
        heapq.heappush(self._queue, (due, self._asked, callback, args))

    def run(self) -> None:
        while self._queue:
            self.now, _, callback, args = heapq.heappop(self._queue)
            callback(*args)


def arrivals(drawn: Case, model: str) -> np.ndarray:
    """Returns the seconds at which the messages of a case arrive, in their order."""

    def unlimited(numbers: Any) -> np.ndarray:
        return np.array([inf if number is None else number for number in numbers])

    bandwidth = drawn["bandwidth"]
    network = Network(
        model,  # type: ignore[arg-type]
        np.array(drawn["latency"]),
        unlimited(drawn["uplink"]),
        unlimited(drawn["downlink"]),
        bandwidth=None if bandwidth is None else np.array([unlimited(row) for row in bandwidth]),
        tcp=TCP[drawn["model"]] if drawn["model"] else None,
    )
    events, arrived = Events(), np.full(len(drawn["messages"]), np.nan)

    def send(number: int, source: int, target: int, size: int) -> None:
        def deliver() -> None:
            arrived[number] = events.now / SECOND

        network.send(events, events.now, source, target, size, deliver)

    for number, (time, source, target, size) in enumerate(drawn["messages"]):
        events.call_at_nanosecond(round(time * SECOND), send, number, source, target, size)
    events.run()
    return arrived


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=50, help="of each kind and TCP model")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--python", default="/usr/bin/python3", help="that has SimGrid")
    options.add_argument("--kind", choices=KINDS)
    arguments = options.parse_args()
    drawn: list[tuple[str, Case]] = []
    for kind in [arguments.kind] if arguments.kind else KINDS:
        for tcp in (None, "cm02", "lv08"):
            for number in range(arguments.cases):
                random = np.random.default_rng((arguments.seed, number, list(KINDS).index(kind)))
                drawn.append((kind, KINDS[kind](random, tcp)))
    script = Path(__file__).with_name("_simgrid.py")
    answers = subprocess.run(
        [arguments.python, str(script)],
        input="\n".join(json.dumps(each) for _, each in drawn),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=600,
    ).stdout.splitlines()  # fmt: skip
    errors: defaultdict[tuple[str, str | None, str], list[np.ndarray]] = defaultdict(list)
    ends: defaultdict[tuple[str, str | None, str], list[float]] = defaultdict(list)
    messages = worst = 0.0
    for (kind, each), answer in zip(drawn, answers, strict=True):
        oracle = json.loads(answer)
        if oracle is None:
            print(f"SimGrid failed: {json.dumps(each)[:500]}", file=sys.stderr)
            return 1
        sent, messages = np.array([message[0] for message in each["messages"]]), messages + len(oracle)
        for model in MODELS:
            came = arrivals(each, model)
            error = (came - oracle) / (np.array(oracle) - sent)
            errors[kind, each["model"], model].append(error)
            ends[kind, each["model"], model].append(came.max() / max(oracle) - 1)
            if model == "fair":
                apart = float(np.abs(came - oracle).max())
                worst = max(worst, apart)
                if apart > ALLOWED:
                    print(f"{kind} {each['model']}: {apart:.3g} s apart: {json.dumps(each)}"[:3000])
    said = f"{len(drawn)} networks, {messages:,.0f} messages"
    print(f"{said}; fair and SimGrid are at most {worst * 1e9:.1f} ns apart")
    print(f"{'errors, %':30}{'of a message: 5, 50, 95 %':>32}{'largest':>10}{'of the last':>14}")
    for (kind, tcp, model), parts in errors.items():
        error = 100 * np.concatenate(parts)
        low, middle, high = np.quantile(error, [0.05, 0.5, 0.95])
        last = 100 * np.mean(np.abs(ends[kind, tcp, model]))
        largest = error[np.abs(error).argmax()]
        print(
            f"{kind:13}{tcp or 'no tcp':8}{model:9}{low:+12.3g}{middle:+10.3g}{high:+10.3g}"
            f"{largest:+10.3g}{last:14.3g}"
        )
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
