"""Breaks nodes and links at random in virtual time: no run hangs, and what a scheme keeps stays.

Each seed draws a network, a pace, and faults: nodes that are offline for a while or crash, links that are
cut, a partition, churn. The schemes take turns. Ten nodes in float64 start from random models. It is judged:

    the end         every node that does not crash does its last round; where a scheme tolerates no loss, the
                    run ends with that reason
    short outages   shorter than `failures.grace`: rounds have the models of the run without them, bit for bit
    sums            of models (gossip, CHOCO, epidemic), of z and w (push-sum), of trackers less gradients
                    (gradient tracking), in runs where both ends of each edge have lost it in the same round;
                    of models (AD-PSGD) whatever is lost, as long as all nodes end

    python eval/simulation/seeds.py [--seeds 500] [--first 0] [--verbose]
    python eval/simulation/seeds.py --seed 17       # this one again, exactly

Prints a line for each seed that fails, and a summary; exits with 1 if one did.
"""

import argparse
import asyncio
import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Reporter
from decentnode.communication.launcher_link.snapshots import EvaluatorBoard, SnapshotBuffers
from decentnode.errors import RunFailed
from decentnode.formats.records import read_records
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.evaluation import NodeResources
from decentnode.node.experiment import Experiment
from decentnode.node.factory import NodeFactory, NodeHost
from decentnode.node.node import Node
from decentnode.simulation.clock import VirtualClock
from decentnode.simulation.loop import VirtualLoop
from decentnode.simulation.outages import Outages

NODES = 10
ROUNDS = 16
RATE = 1e-300
"""The learning rate where models only mix: every sum is that of the random models of the start."""
GRACE = 2.0
SPAN = 5.0
"""Simulated seconds within which faults begin; a run without any takes about as long."""
LIMIT = 20.0
"""Real seconds after which a seed counts as hung."""
ROUNDING = 1e-11
GRAPH = {"name": "regular", "nodes": NODES, "degree": 4, "seed": 1}
CHOCO = {"name": "choco_per_edge", "gamma": 0.3, "transforms": [{"name": "top_k", "fraction": 0.25}]}
SCHEMES: dict[str, dict[str, Any]] = {
    "gossip": {},
    "choco": {"sharing": CHOCO},
    "gradient_tracking": {"sharing": "gradient_tracking"},
    "push_sum": {"sharing": "push_sum"},
    "epidemic": {"graph": {"name": "epidemic_oracle", "nodes": NODES, "degree": 3}},
    "ad_psgd": {"sharing": "ad_psgd", "time_model": {"name": "asynchronous", "seconds_per_round": 0.33}},
}
INTOLERANT = ("gradient_tracking", "push_sum")
"""Their runs end where a peer is lost, as real ones do."""
BASE: dict[str, Any] = {
    "name": "seeds",
    "rounds": ROUNDS,
    "graph": GRAPH,
    "dataset": {"name": "quadratic", "nodes": NODES, "dimension": 16, "b": "normal", "partition": "natural"},
    "model": "quadratic",
    "training": {
        "optimizer": {"name": "SGD", "lr": RATE},
        "loss": "NLLLoss",
        "batch_size": 1,
        "dtype": "float64",
    },
    "sharing": "gossip",
    "evaluation": {"every": 0, "average_model": False, "figures": False},
    "failures": {"grace": GRACE},
    "checkpoint": {"final": False},
}


@dataclass
class Outcome:
    """What a run in virtual time has left."""

    nodes: list[Node]
    start: torch.Tensor
    """The models at the start, shape (NODES, d)."""
    errors: dict[int, BaseException]
    """By rank of those that did not end."""
    one_sided: bool
    """Whether an edge was lost at one end only in some round."""
    seconds: float
    """Of virtual time."""

    @property
    def models(self) -> torch.Tensor:
        return torch.stack([node.training.vector.values for node in self.nodes])


def settings_of(scheme: str, random: np.random.Generator, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the configuration of a seed, its network and its pace drawn."""
    network = {
        "name": "simulated",
        "latency": {"distribution": "lognormal", "median": float(random.uniform(0.001, 0.1)), "sigma": 0.5},
        "uplink": float(10 ** random.uniform(4.5, 7)),
        "downlink": float(10 ** random.uniform(4.5, 7)),
        "jitter": float(random.choice([0.0, 0.01])),
        "loss": float(random.choice([0.0, 0.1])),
        "network_model": str(random.choice(["queue", "delay"])),
        "seed": int(random.integers(1 << 30)),
    }
    slowdown = {"distribution": "exponential"} if random.random() < 0.5 else 1.0
    pace = {"step_seconds": 0.2, "slowdown": slowdown}
    training = {**BASE["training"], "pace": pace}
    if scheme != "ad_psgd":
        training["steps_per_round"] = 1
    if scheme == "gradient_tracking":
        training["optimizer"] = {"name": "SGD", "lr": 0.05}
    return {**BASE, **SCHEMES[scheme], "communication": network, "training": training, "faults": faults}


def drawn_faults(random: np.random.Generator, longest: float) -> list[dict[str, Any]]:
    """Returns up to four faults, whose outages are shorter than `longest`."""
    is_short = longest < GRACE

    def lasting() -> float:
        return float(random.uniform(0.05, longest))

    def offline() -> dict[str, Any]:
        ranks = [int(rank) for rank in random.choice(NODES, int(random.integers(1, 4)), replace=False)]
        return {"name": "offline", "ranks": ranks, "seconds": lasting()}

    def link_down() -> dict[str, Any]:
        links = [[int(end) for end in random.choice(NODES, 2, replace=False)] for _ in range(4)]
        return {"name": "link_down", "links": links, "seconds": lasting()}

    def partition() -> dict[str, Any]:
        ranks, half = [int(rank) for rank in random.permutation(NODES)], int(random.integers(1, NODES))
        return {"name": "partition", "groups": [ranks[:half], ranks[half:]], "seconds": lasting()}

    def churn() -> dict[str, Any]:
        online, offline = (float(seconds) for seconds in random.uniform(1.0, 6.0, 2))
        return {"name": "churn", "ranks": [0, 3, 5], "online": online, "offline": offline}

    def crash() -> dict[str, Any]:
        return {"name": "crash", "ranks": int(random.integers(NODES))}

    kinds: list[Callable[[], dict[str, Any]]] = [offline, link_down, partition]
    kinds += [] if is_short else [churn, crash]
    faults = []
    for _ in range(1 if is_short else int(random.integers(1, 5))):
        # Short ones come alone: two in turn may keep a link down for longer than `grace`.
        fault = kinds[random.integers(len(kinds))]()
        faults.append({**fault, "at": float(random.uniform(0.0, SPAN))})
    return faults


def run(configuration: dict[str, Any], folder: Path) -> Outcome:
    """Runs all nodes of a configuration in this process; raises RunFailed after LIMIT real seconds."""
    path = folder / "seed.yaml"
    path.write_text(yaml.safe_dump(configuration))
    experiment = Experiment.from_yaml(path)
    reading, writing = os.pipe()
    os.close(reading)
    resources = NodeResources(
        SnapshotBuffers(range(NODES), experiment.layout.numel, experiment.layout.dtype),
        EvaluatorBoard(SnapshotBuffers([], 1), 0),
        1.0,
        Reporter(writing),
        folder,
        HeartbeatBoard(range(NODES)),
        RunIdentity(folder / "checkpoints", "seeds"),
    )
    clock, injector = VirtualClock(), experiment.injector
    outages = injector.outages(resources.reporter) if injector else Outages()
    communication = experiment.settings.communication.make()
    processes = experiment.processes
    directory = ProcessDirectory(processes, 0, str(folder), grace=GRACE, clock=clock, outages=outages)
    communication.prepare(directory, 1 << 20)
    host, factory = NodeHost(resources, communication, clock, is_shared=True), NodeFactory(experiment)
    nodes = [factory.node(rank, host, clock=outages.clock_of(rank, clock)) for rank in range(NODES)]
    handshakes = {node.rank: node.handshake() for node in nodes}
    for node in nodes:
        node.receive_handshakes({rank: content for rank, content in handshakes.items() if content})
    errors: dict[int, BaseException] = {}
    random = torch.Generator().manual_seed(configuration["communication"]["seed"])
    for node in nodes:
        node.training.vector.values.normal_(generator=random)
    start = torch.stack([node.training.vector.values for node in nodes])

    async def until_it_ends(node: Node) -> None:
        try:
            await node.run()
        except Exception as error:
            errors[node.rank] = error
        finally:
            node.exchange.endpoint.leave(node.rank in errors)
            node.records.close()

    async def everybody() -> None:
        communication.enter_loop()
        await asyncio.gather(*map(until_it_ends, nodes))

    limit = time.monotonic() + LIMIT

    class Watched(VirtualLoop):
        def _run_once(self) -> None:
            if time.monotonic() > limit:
                rounds = [node.round + 1 for node in nodes]
                raise RunFailed(f"hung: after {LIMIT:g} s rounds are {rounds}, at {clock.now():g} s")
            super()._run_once()

    try:
        with asyncio.Runner(loop_factory=partial(Watched, clock)) as runner:
            runner.run(everybody())
    finally:
        os.close(writing)
    return Outcome(nodes, start, errors, one_sided(experiment, folder), clock.now())


def one_sided(experiment: Experiment, folder: Path) -> bool:
    """Returns whether in some round one end of an edge used it and the other one, in that round, did not."""
    graph = experiment.graph.graph
    used = {
        (record.rank, record.round): set(graph.sources(record.rank, record.round))
        - {*record.late, *record.lost}
        for path in sorted(folder.glob("0*.jsonl"))
        for record in read_records(path)
    }
    return any(
        (rank in used[peer, round]) != (peer in peers)
        for (rank, round), peers in used.items()
        for peer in graph.sources(rank, round)
        if (peer, round) in used
    )


def total(outcome: Outcome, path: str) -> torch.Tensor:
    """Returns the sum of all nodes' models, or of an attribute of their schemes."""
    values = (
        node.training.vector.values if path == "models" else attrgetter(path)(node.sharing)
        for node in outcome.nodes
    )
    return torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in values]).sum(0)


def has_half_exchange(nodes: list[Node]) -> bool:
    """Returns whether a node of AD-PSGD has averaged with a peer that has not got its answer by the end."""
    schemes = {node.rank: node.sharing for node in nodes}
    return any(
        schemes[peer]._served.get(rank, (0, 0))[0] == number
        for rank, scheme in schemes.items()
        for peer, (number, _) in scheme._requests.items()
    )


def moved(outcome: Outcome, path: str) -> float:
    """Returns by how much the sum of models, or of an attribute, has moved, relative to the largest model."""
    now = total(outcome, path)
    return float((now - outcome.start.sum(0)).abs().max() / outcome.start.abs().max())


def tracker_gap(outcome: Outcome) -> float:
    """Returns the sum of the trackers less that of the gradients, relative to the largest tracker."""
    largest = max(float(node.sharing._y.abs().max()) for node in outcome.nodes)
    return float((total(outcome, "_y") - total(outcome, "_g")).abs().max()) / largest


def push_sums(outcome: Outcome) -> float:
    """Returns by how much the sums of z and of w have moved."""
    return max(moved(outcome, "_z"), abs(float(total(outcome, "_w")) - NODES))


KEPT: dict[str, Callable[[Outcome], float]] = {
    "gossip": partial(moved, path="models"),
    "choco": partial(moved, path="models"),
    "epidemic": partial(moved, path="models"),
    "ad_psgd": partial(moved, path="models"),
    "gradient_tracking": tracker_gap,
    "push_sum": push_sums,
}


def check(scheme: str, seed: int, folder: Path, kinds: Counter[str]) -> str:
    """Runs a seed; returns what is wrong, or an empty text; counts what was checked."""
    is_short = seed // len(SCHEMES) % 3 == 0
    random = np.random.default_rng((seed, 1))
    faults = drawn_faults(np.random.default_rng((seed, 2)), 0.9 * GRACE if is_short else 3 * GRACE)
    configuration = settings_of(scheme, random, faults)
    outcome = run(configuration, folder)
    crashed = {fault["ranks"] for fault in faults if fault["name"] == "crash"}
    if scheme in INTOLERANT and not is_short:
        crashed |= {rank for rank, error in outcome.errors.items() if "tolerates no loss" in str(error)}
    if unexpected := {rank: error for rank, error in outcome.errors.items() if rank not in crashed}:
        return f"did not end: {unexpected}"
    if behind := [n.rank for n in outcome.nodes if n.round + 1 != ROUNDS and n.rank not in outcome.errors]:
        return f"ended early: ranks {behind}"
    kinds["ended"] += 1
    if is_short and scheme != "ad_psgd":
        without = run({**configuration, "faults": []}, folder / "without")
        kinds["short outages: models compared"] += 1
        if not torch.equal(outcome.models, without.models):
            return "other models than without outages, which were shorter than grace"
        if outcome.one_sided:
            return "an edge was lost in an outage shorter than grace"
    if not torch.isfinite(outcome.models).all():
        return "models are not finite"
    if outcome.errors or (outcome.one_sided and scheme != "ad_psgd"):
        kinds["sums not checked: " + ("a crash" if outcome.errors else "an edge lost at one end first")] += 1
        return ""
    if scheme == "ad_psgd" and has_half_exchange(outcome.nodes):
        kinds["sums not checked: an answer came to no end"] += 1
        return ""
    kept = KEPT[scheme](outcome)
    kinds[f"sums checked: {scheme}"] += 1
    if kept > ROUNDING:
        return f"the sum has moved by {kept:.3g}, relative to the largest model"
    return ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=500)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seed", type=int, help="this one alone, with what it prints")
    arguments = options.parse_args()
    first, number = (arguments.first, arguments.seeds) if arguments.seed is None else (arguments.seed, 1)
    schemes, kinds, failed, slowest = list(SCHEMES), Counter[str](), 0, (0.0, 0)
    torch.set_num_threads(1)
    for seed in range(first, first + number):
        scheme, began, printed = schemes[seed % len(schemes)], time.process_time(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "without").mkdir()
            try:
                with redirect_stdout(sys.stdout if arguments.seed is not None else printed):
                    wrong = check(scheme, seed, Path(folder), kinds)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
        slowest = max(slowest, (time.process_time() - began, seed))
        if wrong:
            failed += 1
            print(f"seed {seed}, {scheme}: {wrong}", flush=True)
    for what, count in sorted(kinds.items()):
        print(f"{count:5}  {what}")
    seconds, seed = slowest
    print(f"{failed} of {number} seeds failed; the slowest, {seed}, took {seconds:.2f} s of processor time")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
