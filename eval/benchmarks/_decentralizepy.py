"""Nodes of decentralizepy (Dhasade et al., 2023), from a checkout of its source, on this machine."""

import json
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from _command import CONFIGS, ROOT, call
from _ports import free_ports

from decentnode.graph.base import Graph

REPOSITORY = "https://github.com/sacs-epfl/decentralizepy"
COMMIT = "0d77210d146baad14fe5a11dd29cca23b0a9d6a6"
WARM_UP = 1
"""Rounds that are not measured."""
PORTS_PER_NODE = 2
"""Each node takes every other port."""


@dataclass(frozen=True)
class Case:
    """A run: everybody's graph, model, data and rounds."""

    source: Path
    graph: Graph
    rounds: int
    steps: int
    model: dict[str, Any]
    """As in a configuration of decentnode, or `elements`: a vector of so many numbers that nobody trains."""
    dataset: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "SGD", "lr": 0.1})


@dataclass(frozen=True)
class NodesRun:
    """What a run of its nodes has taken."""

    round_seconds: float
    """Per round after the warm-up: the mean over nodes and rounds."""
    round_cpu_seconds: float
    """Processor time of one node's process in a round."""
    first_round: float
    """Seconds from the start of the command to the start of the last node's first round."""
    private_mb: float
    """Private memory of a node's process at its end: the mean."""
    first_values: list[float]
    """The first number of each node's model at the end."""


def case_of(config: str, source: Path, graph: Graph, rounds: int, **dataset: int) -> Case:
    """The experiment of one of our configurations on this graph, with these options of its data set."""
    settings = yaml.safe_load((CONFIGS / config).read_text())
    training = settings["training"]
    return Case(
        source,
        graph,
        rounds,
        training["steps_per_round"],
        entry(settings["model"]),
        entry(settings["dataset"]) | dataset,
        training["batch_size"],
        training["optimizer"],
    )


def entry(plugin: str | dict[str, Any]) -> dict[str, Any]:
    """A plug-in's name and options."""
    return {"name": plugin} if isinstance(plugin, str) else plugin


def run_nodes(case: Case) -> NodesRun:
    """Runs them in a process each; raises RuntimeError when that fails."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        write_graph(case.graph, Path(folder, "graph.edges"))
        given = asdict(case) | {
            "source": str(case.source.resolve()), "folder": folder, "graph": None,
            "first_port": free_ports(PORTS_PER_NODE * case.graph.num_nodes),
        }  # fmt: skip
        script = ROOT / "eval" / "benchmarks" / "_decentralizepy_nodes" / "run.py"
        began = time.monotonic()
        nodes = json.loads(call([str(script), json.dumps(given)]).output.splitlines()[-1])
    firsts, lasts = ([node["starts"][at] for node in nodes] for at in (WARM_UP, -1))
    wall, cpu = (
        sum(last[i] - first[i] for first, last in zip(firsts, lasts, strict=True)) / len(nodes)
        for i in (0, 1)
    )
    measured = case.rounds - 1 - WARM_UP
    first_round = max(node["starts"][0][0] for node in nodes) - began
    private = sum(node["private_mb"] for node in nodes) / len(nodes)
    first_values = [node["first_value"] for node in nodes]
    return NodesRun(wall / measured, cpu / measured, first_round, private, first_values)


def write_graph(graph: Graph, path: Path) -> None:
    """Writes a static graph in the format that both read."""
    lines = [str(graph.num_nodes)]
    for rank in range(graph.num_nodes):
        lines += [f"{rank} {peer}" for peer in graph.targets(rank, 0) if rank < peer]
    path.write_text("\n".join(lines) + "\n")


def add_source(options: ArgumentParser, otherwise: str) -> None:
    """The option that names a checkout."""
    options.add_argument(
        "--source", type=Path, metavar="FOLDER",
        help=f"a checkout of decentralizepy ({REPOSITORY}), whose nodes run too; {otherwise}",
    )  # fmt: skip


@contextmanager
def checkout(source: Path | None) -> Iterator[Path]:
    """The given checkout, or one at the pinned commit, gone afterwards; ends the command without one."""
    if source is not None:
        if not (source / "src" / "decentralizepy").is_dir():
            raise SystemExit(f"--source {source}: no src/decentralizepy there")
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-source-") as folder:
        git(["init"], folder)
        git(["fetch", "--depth=1", REPOSITORY, COMMIT], folder)
        git(["checkout", "FETCH_HEAD"], folder)
        yield Path(folder)


def commit_of(source: Path) -> str:
    """The commit of a checkout; of other folders what they are."""
    if not (source / ".git").exists():
        return "a folder without git"
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def git(words: Sequence[str], folder: str) -> None:
    """One git command; ends the benchmark when it fails, and says what to do."""
    ended = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        why = (ended.stderr.strip().splitlines() or ["git failed"])[-1]
        raise SystemExit(
            f"no source of decentralizepy: git {words[0]} of {REPOSITORY} at {COMMIT[:12]} failed: {why}\n"
            "give a checkout with --source FOLDER"
        )
