"""Shows that what a scheme promises to keep the sum of stays, to rounding, under delays and partitions.

Eight nodes in float64 make one local step each; from then on they only mix. Their logs tell the models before
and after each mix, and the state that has a sum of its own (kept_sums.py): models, gradient trackers, the z
and w of push-sum, the models in flight of relay-sum. Each scheme runs over shared memory and TCP with

    none       no fault
    delay      one message in ten is 0.4 s late, with all that follow it
    pause      a partition of 0.8 s, shorter than the deadline: everything is sent again
    partition  two halves for ten rounds, longer than the deadline: edges are dropped and come back
    one_way    rank 3 hears nothing from rank 2 for four rounds, and drops the edge; rank 2 has heard it
    too_late   one payload arrives after the deadline, which drops the edge, too

A sum may change in rounds alone in which one end of an edge has mixed and the other has not, by what
docs/reliability_lost_edges.md says that a lost edge costs. A scheme that tolerates no loss has to end the run
instead; its sums must have stayed until then. Prints a line for each cell, and exits with 1 if one is wrong.

With --networks each scheme runs on two machines instead, network namespaces whose link goes down for 0.8 s or
for longer than the deadline.

    python eval/reliability/conservation.py [--schemes gossip choco] [--faults delay] [--jobs 2] [--networks]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kept_sums
import networks
import networkx as nx
import numpy as np
import torch
from _runs import TINY, Outcome, Trial, faults, one_sided, run_all
from numpy.typing import NDArray

from decentnode.config.loader import load
from decentnode.core.registry import SHARINGS
from decentnode.errors import ExitCode
from decentnode.formats.records import read_records
from decentnode.graph.base import Graph
from decentnode.graph.mixing import WeightedGraph
from decentnode.node.checkpoint import store as checkpoint
from decentnode.sharing.consensus_control import ConsensusControl, distance

NODES, DIMENSION = 8, 16
ROUNDS = 30
DEADLINE = 2.0
Array = NDArray[np.float64]
Logged = dict[str, Any]
"""What a node has told about one round: `before`, `after`, and the state of its scheme."""

NETWORKS = "networks"
NAMESPACES = ("decentnode-left", "decentnode-right")
TRANSPORTS = {"memory": "{name: zeromq}", "tcp": "{name: zeromq, local: tcp, base_port: PORT}"}
PORT = 23000
"""The first port of the first run over TCP; each has its own, because several run at a time."""
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
DEAF = 3
"""The rank that loses messages of one neighbor alone."""
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "delay": {"name": "delay", "probability": 0.1, "seconds": 0.4, "lasts": 18},
    "pause": {"name": "partition", "groups": HALVES, "seconds": 0.8, "lasts": 3},
    "partition": {"name": "partition", "groups": HALVES, "lasts": 10},
    "one_way": {"name": "drop", "ranks": DEAF, "lasts": 4},
    "too_late": {"name": "delay", "ranks": DEAF, "seconds": 2 * DEADLINE, "lasts": 1},
}
"""Their options, and how many rounds they last."""
CUTS = {"short cut": 0.8, "long cut": 2.5 * DEADLINE}
"""On two networks: seconds for which the link between them is down."""
HARMLESS = ("none", "delay", "pause", "short cut")
"""No edge is dropped, so no scheme may end the run, and no sum may change."""
ROUNDING = 1e-12
"""How far a sum may move in a run, relative to the largest number in it, times the number of nodes."""


@dataclass(frozen=True)
class Scheme:
    """How a scheme is run, and which sums it keeps."""

    options: str = ""
    graph: str = f"{{name: ring, nodes: {NODES}}}"
    sums: tuple[str, ...] = ("models",)
    cost: Callable[[Logged, Logged, int, int, float], Array] | None = None
    """What the mix of j moves the sum by, because i has dropped the edge: (i, j, ranks of both, w)."""
    lossless_only: bool = False
    """Whether it keeps the sum in rounds alone in which all payloads arrive, and the next one."""
    first: int = 6
    """The round in which a fault begins: before the models are equal."""
    rounding: float = ROUNDING


def gossip_cost(dropped: Logged, mixed: Logged, i: int, j: int, w: float) -> Array:
    """w (x_i - x_j)."""
    return w * (np.array(dropped["before"]) - np.array(mixed["before"]))


def deep_squeeze_cost(dropped: Logged, mixed: Logged, i: int, j: int, w: float) -> Array:
    """gamma w (C(v_i) - C(v_j))."""
    return 0.3 * w * (np.array(dropped["sent"]) - np.array(mixed["sent"]))


def choco_per_edge_cost(dropped: Logged, mixed: Logged, i: int, j: int, w: float) -> Array:
    """gamma w (h_ij - h_ji)."""
    return 0.3 * w * (np.array(mixed["theirs"][str(i)]) - np.array(mixed["own"][str(i)]))


def zip_dl_cost(dropped: Logged, mixed: Logged, i: int, j: int, w: float) -> Array:
    """w times the difference of what the two have sent each other, noise included."""
    return w * (np.array(dropped["sent"][str(j)]) - np.array(mixed["sent"][str(i)]))


def moniqua_cost(dropped: Logged, mixed: Logged, i: int, j: int, w: float) -> Array:
    """gamma w (x'_i - x'_j), both as rounded."""
    step = SHARINGS.find("moniqua")(theta=20.0).step
    return w * step * (np.array(dropped["steps"]) - np.array(mixed["steps"]))


def several_steps_cost(nodes: list[Logged], weights: Array) -> Array:
    """What a round of several steps moves the sum by: w (x_i - x_j) in each step in which j alone mixes.

    A step adds c times what its mixes move, and 1 - c times what the step before the last one has moved.
    """
    if any(logged_models.get("left_out") for logged_models in nodes):
        return np.zeros(DIMENSION)
    earlier, moved = np.zeros(DIMENSION), np.zeros(DIMENSION)
    for step, c in enumerate(nodes[0]["c"]):
        x, heard = ([logged_models[name][step] for logged_models in nodes] for name in ("models", "heard"))
        mixed = np.zeros(DIMENSION)
        for j, sources in enumerate(heard):
            for i in sources:
                if j not in heard[i]:
                    mixed += weights[j, i] * (np.array(x[i]) - np.array(x[j]))
        earlier, moved = moved, c * (moved + mixed) + (1 - c) * earlier
    return moved


def consensus_control_cost(dropped: Logged, mixed: Logged, i: int, j: int, w: float) -> Array:
    """w s(r_ij) (x_i - x_j)."""
    x_i, x_j = (
        torch.tensor(logged_models["before"], dtype=torch.float64) for logged_models in (dropped, mixed)
    )
    r = distance(x_i, x_j)
    return ConsensusControl(target=0.5).strength(r) * gossip_cost(dropped, mixed, i, j, w)


FIXED_POINT = 1e-5
"""The same where every round rounds each summand to 2^-20."""
MASKED = "scale: 1048576, bits: 64"
REGULAR = f"{{name: regular, nodes: {NODES}, degree: 4, seed: 1}}"
SPARSE = "gamma: 0.3, transforms: [{name: top_k, fraction: 0.5}]"
COMPLETE = f"{{name: fully_connected, nodes: {NODES}}}"
TRACKED = ("models", "trackers")
SCHEMES = {
    "gossip": Scheme(cost=gossip_cost),
    "gossip bf16": Scheme("transforms: [{name: cast, dtype: bf16}]"),
    "all_reduce": Scheme(graph=COMPLETE, first=0, lossless_only=True),
    "multi_gossip": Scheme("steps: 3"),
    "multi_gossip chebyshev": Scheme("steps: 3, acceleration: chebyshev"),
    "consensus_control": Scheme("target: 0.5", cost=consensus_control_cost),
    "quasi_global": Scheme(cost=gossip_cost),
    "choco": Scheme(SPARSE, sums=("models", "pull")),
    "choco_per_edge": Scheme(SPARSE, cost=choco_per_edge_cost),
    "deep_squeeze": Scheme(SPARSE, cost=deep_squeeze_cost),
    "stc": Scheme("fraction: 0.2, gamma: 0.3", sums=("models", "pull")),
    "power_gossip": Scheme(cost=gossip_cost),
    "moniqua": Scheme("theta: 20.0", cost=moniqua_cost),
    "gradient_tracking": Scheme(sums=TRACKED),
    "beer": Scheme(SPARSE, sums=(*TRACKED, "pull")),
    "beer_per_edge": Scheme(SPARSE, sums=(*TRACKED, "pull")),
    "exact_diffusion": Scheme(sums=("models", "correction")),
    "d2": Scheme(graph=COMPLETE, sums=("models", "correction")),
    "push_sum": Scheme(graph=f"{{name: exponential, nodes: {NODES}}}", sums=("z", "w")),
    "relay_sum": Scheme(graph=f"{{name: binary_tree, nodes: {NODES}}}", sums=("relayed", "counts")),
    "secure_aggregation": Scheme(MASKED, REGULAR, rounding=FIXED_POINT, lossless_only=True),
    "secure_aggregation threshold": Scheme(
        f"{MASKED}, threshold: 0.5", REGULAR, rounding=FIXED_POINT, lossless_only=True
    ),
    "zip_dl": Scheme("sigma: 1.0", cost=zip_dl_cost),
    "ad_psgd": Scheme("staleness: 1", sums=("models and gradients",)),
}
ASYNCHRONOUS = ("ad_psgd",)


@dataclass(frozen=True)
class Cell:
    """One run."""

    scheme: str
    fault: str
    transport: str

    @property
    def graph(self) -> Graph:
        """The graph of its scheme."""
        graph: Graph = load(TINY, [f"graph={SCHEMES[self.scheme].graph}"]).graph.make()
        return graph

    @property
    def struck(self) -> dict[str, Any]:
        """The fault; one of a single edge strikes one that the graph has."""
        first, entry = SCHEMES[self.scheme].first, dict(FAULTS[self.fault])
        # Asynchronous nodes draw their partners, so in one window alone there may be no message to strike.
        lasts = entry.pop("lasts") + 5 * (self.scheme in ASYNCHRONOUS)
        entry["rounds"] = [first, first + lasts - 1]
        if entry.get("ranks") == DEAF:
            entry["peers"] = min(self.graph.sources(DEAF, first))
        return entry

    @property
    def transport_options(self) -> str:
        """Over TCP with ports of its own, because several cells run at a time."""
        if self.transport == NETWORKS:
            return "zeromq"
        index = list(SCHEMES).index(self.scheme) * len(FAULTS) + list(FAULTS).index(self.fault)
        return TRANSPORTS[self.transport].replace("PORT", str(PORT + NODES * index))

    @property
    def trial(self) -> Trial:
        """How it is run."""
        scheme, name = SCHEMES[self.scheme], self.scheme.partition(" ")[0]
        options = f", {scheme.options}" if scheme.options else ""
        struck = [self.struck] if FAULTS.get(self.fault) else []
        overrides = [
            f"rounds={ROUNDS}", f"graph={scheme.graph}", "training.dtype=float64",
            f"dataset={{name: quadratic, nodes: {NODES}, dimension: {DIMENSION}, b: normal}}",
            "dataset.partition=natural",
            f"sharing={{name: 'kept_sums:{name}'{options}}}", f"communication={self.transport_options}",
            f"failures={{deadline: {DEADLINE}, grace: 1}}",
        ]  # fmt: skip
        if name in ASYNCHRONOUS:
            overrides += [
                f"rounds={2 * ROUNDS}", "time_model={name: asynchronous, seconds_per_round: 0.2}",
                "training.steps_per_round=null", "training.pace={step_seconds: 0.01}",
            ]  # fmt: skip
        else:
            # One step, and none after it: from then on there is nothing but mixing.
            overrides += ["training.scheduler={name: StepLR, step_size: 1, gamma: 0.0}"]
            overrides += ["training.optimizer.lr=0.9"]
            if struck or self.transport == NETWORKS:
                struck.append({"name": "more_faults:Hang", "seconds": 0.03, "activity": "begin"})
        label = f"{self.scheme:<22} {self.fault:<9} {self.transport:<6}"
        return Trial(label, (*overrides, faults(*struck)), limit=120.0)


def run_on_networks(cell: Cell) -> Outcome:
    """The run of a cell on two machines whose link goes down in round 6, and up again after a while."""
    trial, began = cell.trial, time.monotonic()
    half, seconds = NODES // 2, CUTS[cell.fault]
    listed = ", ".join(f"{{address: {address}, nodes: {half}}}" for address in networks.ADDRESSES)
    words = [*trial.overrides, f"mapping.machines=[{listed}]", "security=none", "checkpoint.every=10"]
    with tempfile.TemporaryDirectory(prefix="dn-", dir="/tmp") as name:
        folder, runs = Path(name), list[subprocess.Popen[bytes]]()
        try:
            networks.lay_cable(NAMESPACES)
            runs = networks.start(folder, tuple(words), NAMESPACES)
            border = folder / NAMESPACES[0] / "records" / f"{half - 1:05d}.jsonl"
            while not border.exists() or border.read_bytes().count(b"\n") < SCHEMES[cell.scheme].first:
                if any(run.poll() is not None for run in runs) or time.monotonic() > began + trial.limit:
                    raise RuntimeError((folder / f"{NAMESPACES[0]}.txt").read_text()[-1000:])
                time.sleep(0.02)
            networks.ip("-n", NAMESPACES[0], "link", "set", "eth0", "down")
            time.sleep(seconds)
            networks.ip("-n", NAMESPACES[0], "link", "set", "eth0", "up")
            codes = [run.wait(trial.limit) for run in runs]
        finally:
            for run in runs:
                run.kill()
            networks.remove(NAMESPACES)
        text = "".join((folder / f"{name}.txt").read_text(errors="replace") for name in NAMESPACES)
        outcome = Outcome(trial, max(codes), time.monotonic() - began, text, ())
        for rank in range(NODES):
            directory = folder / NAMESPACES[rank // half]
            outcome.records[rank] = read_records(directory / "records" / f"{rank:05d}.jsonl")
            outcome.logs[rank] = (directory / "logs" / f"{rank:05d}.log").read_text(errors="replace")
            if outcome.records[rank][-1].round + 1 in (ROUNDS, 2 * ROUNDS):
                saved = checkpoint.newest(directory / "checkpoints", rank)
                outcome.models[rank] = saved.state["node"]["vector"].double().numpy()
    return outcome


@dataclass
class Verdict:
    """What a run has shown."""

    wrong: list[str] = field(default_factory=list)
    moved: float = 0.0
    """How far the sums have moved from the start to the end, relative to the largest number in them."""
    unexplained: float = 0.0
    """The same without what dropped edges cost, where there is a formula; else in rounds without them."""
    one_sided: int = 0
    """Uses of an edge by one end alone."""
    rounds: int = 0
    """Rounds that all nodes have done."""


def logged_models(outcome: Outcome) -> dict[int, list[Logged]]:
    """What each node has told, by rank, in order."""
    sums: dict[int, list[Logged]] = {}
    for rank, log in outcome.logs.items():
        lines = re.findall(f"^{kept_sums.MARK}(.*)$", log, re.MULTILINE)
        sums[rank] = [json.loads(line) for line in lines]
    return sums


def by_round(lines: list[Logged], rounds: int) -> list[Logged]:
    """What a node has told of each round; it stays as it is in rounds that the node has left out."""
    known = {line["round"]: line for line in lines}
    table: list[Logged] = []
    for round in range(rounds):
        line = known.get(round)
        table.append(line or table[-1] | {"before": table[-1]["after"], "left_out": True})
    return table


def totals(scheme: Scheme, nodes: list[list[Logged]], graph: Graph) -> Iterator[tuple[str, Array, float]]:
    """For each sum its name, its value at the start and after each round, and the largest number in it."""

    def stacked(name: str) -> Array:
        return np.array([[line[name] for line in lines] for lines in nodes])

    before, after = stacked("before"), stacked("after")
    starts = before[:, :1]
    for name in scheme.sums:
        if name == "models":
            parts = np.concatenate([starts, after], axis=1)
        elif name == "trackers":
            parts = stacked("tracker") - stacked("gradient")
        elif name == "z":
            parts = np.concatenate([starts, stacked("z")], axis=1)
        elif name == "w":
            parts = np.pad(stacked("w"), ((0, 0), (1, 0)), constant_values=1.0)[:, :, None]
        elif name == "relayed":
            parts = relayed(before, graph)
        elif name == "counts":
            counts = [[sum(line["counts"].values()) for line in lines] for lines in nodes]
            parts = np.array(counts, dtype=float)[:, diameter(graph) :, None]
        else:
            parts = stacked(name)
        yield name, parts.sum(0), float(np.abs(np.concatenate([before, after], axis=1)).max())


def distances(graph: Graph) -> Array:
    """How many edges lie between two nodes."""
    edges = [(i, j) for i in range(NODES) for j in graph.targets(i, 0)]
    lengths = dict(nx.all_pairs_shortest_path_length(nx.Graph(edges)))
    return np.array([[lengths[i][j] for j in range(NODES)] for i in range(NODES)])


def diameter(graph: Graph) -> int:
    """The most edges between two nodes."""
    return int(distances(graph).max())


def relayed(before: Array, graph: Graph) -> Array:
    """What relay-sum keeps the sum of: for each node its model, and its part in models in flight.

    x_i of round t + 1 is the mean of all x_j of round t - s_ij, where s_ij + 1 edges lie between the two. So
    sum_i x_i(t) + 1/n sum_ij sum_{s = 1..s_ij} x_j(t - s) stays the same, once all models have arrived.
    """
    late = np.maximum(distances(graph) - 1, 0)
    losses = []
    for t in range(diameter(graph), before.shape[1]):
        parts = before[:, t].copy()
        for (_, j), s in np.ndenumerate(late):
            parts[j] += before[j, t - s : t].sum(0) / NODES
        losses.append(parts)
    return np.stack(losses, axis=1)


def judge(cell: Cell, outcome: Outcome) -> Verdict:
    """Compares the sums at the end with those at the start, and with what lost edges cost."""
    verdict = Verdict()
    cls = SHARINGS.find(cell.scheme.partition(" ")[0])
    if cell.fault in HARMLESS:
        right: tuple[int, ...] = (ExitCode.OK,)
    else:
        # 0 where the edges are back at the end.
        right = (ExitCode.OK, ExitCode.NODES_LOST) if cls.promises.tolerates_loss else (ExitCode.FAILED,)  # type: ignore[attr-defined]
    if outcome.code not in right:
        verdict.wrong.append("hang" if outcome.code is None else f"exit {outcome.code}")
    elif outcome.code == ExitCode.FAILED and "tolerates no loss" not in outcome.text:
        verdict.wrong.append("does not say why it ended")
    entry = FAULTS.get(cell.fault, {})
    if entry and entry["name"] not in {report.fault for _, report in outcome.injected}:
        verdict.wrong.append("the fault did not strike")
    lines = logged_models(outcome)
    if len(lines) < NODES or not all(line and line[0]["round"] == 0 for line in lines.values()):
        verdict.wrong.append("some node has not mixed in the first round")
        return verdict
    (judge_steps if cell.scheme in ASYNCHRONOUS else judge_rounds)(cell, outcome, lines, verdict)
    return verdict


def judge_steps(cell: Cell, outcome: Outcome, lines: dict[int, list[Logged]], verdict: Verdict) -> None:
    """The models at the end are those at the start less all gradients, in sum."""
    rate = load(TINY).training.optimizer.options["lr"]
    last = [lines[rank][-1] for rank in range(NODES)]
    verdict.rounds = min(len(records) for records in outcome.records.values())
    if outcome.models.keys() != set(range(NODES)):
        verdict.wrong.append(f"only ranks {sorted(outcome.models)} finished")
        return
    expected = sum(np.array(line["start"]) - rate * np.array(line["gradients"]) for line in last)
    total = sum(outcome.models.values())
    scale = NODES * max(float(np.abs(model).max()) for model in outcome.models.values())
    verdict.moved = verdict.unexplained = float(np.abs(total - expected).max()) / scale
    if not verdict.unexplained <= SCHEMES[cell.scheme].rounding:
        verdict.wrong.append(f"models and gradients: {verdict.unexplained:.2g}")


def judge_rounds(cell: Cell, outcome: Outcome, lines: dict[int, list[Logged]], verdict: Verdict) -> None:
    """No sum changes in a round, but by what the edges cost of which one end alone has mixed."""
    scheme, graph = SCHEMES[cell.scheme], cell.graph
    verdict.rounds = min(line[-1]["round"] for line in lines.values()) + 1
    if outcome.code in (ExitCode.OK, ExitCode.NODES_LOST) and verdict.rounds < ROUNDS:
        verdict.wrong.append(f"only {verdict.rounds} rounds")
    nodes = [by_round(lines[rank], verdict.rounds) for rank in range(NODES)]
    graph_is_plain = graph.static and not graph.directed
    halves = one_sided(outcome, graph) if graph_is_plain else {}
    verdict.one_sided = sum(len(rounds) for rounds in halves.values())
    if outcome.code == ExitCode.FAILED:
        # A round in which a node has ended is not one that all have done.
        struck = {round for rounds in halves.values() for round in rounds}
        verdict.rounds = min([verdict.rounds, *struck])
        nodes = [node[: verdict.rounds] for node in nodes]
        halves = {}
    weights = WeightedGraph(graph, load(TINY, [f"graph={scheme.graph}"]).sharing.weights.make()).matrix()
    costs = np.zeros((verdict.rounds, DIMENSION))
    struck = {round for rounds in halves.values() for round in rounds}
    if scheme.cost:
        struck = set()
        for (i, j), rounds in halves.items():
            for round in rounds:
                lost = next(record for record in outcome.records[i] if record.round == round)
                up, mixed = (i, j) if j in {*lost.late, *lost.lost} else (j, i)
                pair = nodes[up][round], nodes[mixed][round]
                costs[round] += scheme.cost(*pair, up, mixed, weights[mixed, up])
    elif cell.scheme.startswith("multi_gossip"):
        struck = set()
        for round in range(verdict.rounds):
            costs[round] = several_steps_cost([node[round] for node in nodes], weights)
    elif scheme.lossless_only:
        lossy = {r.round for records in outcome.records.values() for r in records if r.late or r.lost}
        struck = {round + later for round in lossy for later in range(2)}
    # A node that was suspended discards its mix, but neighbors that did not time out have mixed its model.
    discarded = re.findall(
        r"^round (\d+): discarding this mix", "\n".join(outcome.logs.values()), re.MULTILINE
    )
    struck |= {int(number) - 1 for number in discarded}
    if verdict.rounds <= diameter(graph) + 1:
        return
    for name, values, largest in totals(scheme, nodes, graph):
        scale = NODES * largest
        changes = np.diff(values, axis=0)
        verdict.moved = max(verdict.moved, float(np.abs(values[-1] - values[0]).max()) / scale)
        if name == "models":
            changes = changes - costs
        quiet = [change for round, change in enumerate(changes) if round not in struck]
        if not quiet:
            continue
        off = float(max(np.abs(np.sum(quiet, axis=0)).max(), np.abs(quiet).max())) / scale
        verdict.unexplained = max(verdict.unexplained, off)
        if not off <= scheme.rounding:
            verdict.wrong.append(f"{name}: {off:.2g}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument(
        "--networks", action="store_true", help="two machines whose link is cut; needs network namespaces"
    )
    for name, known in (("schemes", SCHEMES), ("faults", FAULTS), ("transports", TRANSPORTS)):
        parser.add_argument(f"--{name}", nargs="+", choices=list(known), default=list(known))
    return parser.parse_args(arguments)


def main() -> int:
    """Prints a line for each cell, and the counts; 1 when any is wrong."""
    options = parse()
    listed = [
        Cell(scheme, fault, transport)
        for scheme in options.schemes for fault in options.faults for transport in options.transports
    ]  # fmt: skip
    if options.networks:
        listed = [Cell(scheme, fault, NETWORKS) for scheme in options.schemes for fault in CUTS]
    cells = {cell.trial.name: cell for cell in listed}
    print(f"{'scheme':<22} {'fault':<9} {'over':<6}  exit rounds one-sided  moved     unexplained")
    wrong = 0
    trials = [cell.trial for cell in listed]
    outcomes = map(run_on_networks, listed) if options.networks else run_all(trials, options.jobs)
    for outcome in outcomes:
        verdict = judge(cells[outcome.trial.name], outcome)
        wrong += bool(verdict.wrong)
        print(
            f"{outcome.trial.name}  {outcome.code!s:>4} {verdict.rounds:>6} {verdict.one_sided:>9}"
            f"  {verdict.moved:<8.1e}  {verdict.unexplained:<8.1e}  {'; '.join(verdict.wrong)}", flush=True,
        )  # fmt: skip
        if verdict.wrong:
            print(f"        {outcome.trial.reproducer}", flush=True)
    print(json.dumps({"cells": len(cells), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
