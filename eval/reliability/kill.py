"""Shows that a run goes on when a quarter of its nodes is killed at random, and all others finish.

Acceptance figure R1: 16 of 64 nodes on an 8-regular graph are killed in random rounds of 100, with seeds 1 to
20. The others finish, no round is longer than deadline and grace, and in the end their models are at most
twice as far apart as in a run on the graph of the survivors from the start.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import networkx as nx
from _runs import TINY, Outcome, Trial, consensus_distance, faults, one_sided, run

from decentnode.config.loader import load
from decentnode.core.rng import generator
from decentnode.errors import ExitCode
from decentnode.graph.base import Graph

ACTIVITIES = ("begin", "train", "send", "receive", "mix", "evaluate")
DEADLINE, GRACE = 5.0, 1.0
SLACK = 1.5
"""Seconds by which a round may be longer: deadlines are looked at once a second."""
MOST_TIMES = 2.0
"""How many times as far apart the survivors may be."""


@dataclass(frozen=True)
class Size:
    """How large the runs are."""

    nodes: int = 64
    degree: int = 8
    killed: int = 16
    rounds: int = 100


def trial(size: Size, seed: int, *more: str) -> Trial:
    """A run with that seed; `more` are its overrides."""
    return Trial(
        f"seed {seed}",
        (
            f"rounds={size.rounds}", f"seed={seed}",
            f"failures={{deadline: {DEADLINE}, grace: {GRACE}}}", *more,
        ),
        limit=120.0 + size.rounds * (DEADLINE + GRACE),
    )  # fmt: skip


def disturbed(size: Size, seed: int) -> Trial:
    """The run in which nodes are killed, each in a round and an activity of its own."""
    draw = generator(seed, "kill")
    victims = sorted(int(rank) for rank in draw.choice(size.nodes, size.killed, replace=False))
    crashes = [
        {
            "name": "crash",
            "ranks": rank,
            "rounds": int(draw.integers(1, size.rounds - 1)),
            "activity": str(draw.choice(ACTIVITIES)),
        }
        for rank in victims
    ]
    return trial(
        size, seed,
        f"graph={{name: regular, nodes: {size.nodes}, degree: {size.degree}, seed: {seed}}}",
        f"dataset.nodes={size.nodes}", faults(*crashes),
    )  # fmt: skip


def on_live_graph(size: Size, seed: int, graph: Graph, survivors: list[int], path: Path) -> Trial:
    """The run that has the survivors alone, from the start; its graph is written to `path`."""
    row = {rank: i for i, rank in enumerate(survivors)}
    edges = [
        f"{row[i]} {row[j]}" for i in survivors for j in graph.targets(i, 0) if i < j and j in row
    ]  # fmt: skip
    path.write_text("\n".join([str(len(survivors)), *edges]) + "\n")
    a, b = [1.0 + rank % 2 for rank in survivors], [float(rank) for rank in survivors]
    dataset = (
        f"{{name: quadratic, nodes: {len(survivors)}, dimension: 16, a: {a}, b: {b}, partition: natural}}"
    )
    return trial(size, seed, f"graph={path}", f"dataset={dataset}")


@dataclass(frozen=True)
class Figures:
    """What one seed has shown."""

    seed: int
    wrong: list[str]
    finished: int
    longest_round: float
    usual_round: float
    one_sided_rounds: int
    times: float
    """Consensus distance of the survivors over that of the run on their graph; NaN where that is cut."""
    seconds: float


def figures(size: Size, seed: int, folder: Path) -> Figures:
    """Makes both runs of a seed."""
    plan = disturbed(size, seed)
    graph: Graph = load(TINY, plan.overrides).graph.make()
    outcome = run(plan)
    struck = {report.rank for _, report in outcome.injected}
    survivors = sorted(set(range(size.nodes)) - struck)
    times = float("nan")
    if is_connected(graph, survivors):
        alone = run(on_live_graph(size, seed, graph, survivors, folder / f"{seed}.edges"))
        times = consensus_distance({r: outcome.models[r] for r in survivors if r in outcome.models})
        times /= consensus_distance(alone.models)
    lengths = [r.exchange_seconds for rank in survivors for r in outcome.records.get(rank, [])]
    return Figures(
        seed, list(wrongs(size, outcome, survivors, times)), len(outcome.finished),
        outcome.longest_round(set(survivors)), median(lengths or [0.0]),
        sum(map(len, one_sided(outcome, graph).values())), times, outcome.seconds,
    )  # fmt: skip


def wrongs(size: Size, outcome: Outcome, survivors: list[int], times: float) -> Iterator[str]:
    """What is not right."""
    if outcome.code != ExitCode.NODES_LOST:
        yield f"exit {outcome.code}" if outcome.code is not None else "hang"
    if len(survivors) != size.nodes - size.killed:
        yield f"{size.nodes - len(survivors)} nodes were killed, not {size.killed}"
    if unfinished := sorted(set(survivors) - outcome.finished):
        yield f"{unfinished} did not finish"
    if short := [rank for rank in survivors if len(outcome.records.get(rank, [])) != size.rounds]:
        yield f"{short} have not recorded all rounds"
    longest = outcome.longest_round(set(survivors))
    if longest > DEADLINE + GRACE + SLACK:
        yield f"a round took {longest:.1f} s"
    if times > MOST_TIMES:
        yield f"{times:.2f} times as far apart"
    if outcome.leftovers:
        yield f"left {outcome.leftovers}"


def is_connected(graph: Graph, ranks: list[int]) -> bool:
    """Whether these ranks reach each other without the others."""
    alive = set(ranks)
    live_graph = nx.Graph()
    live_graph.add_nodes_from(alive)
    live_graph.add_edges_from((i, j) for i in alive for j in graph.targets(i, 0) if j in alive)
    return bool(nx.is_connected(live_graph))


def parse(arguments: list[str] | None = None) -> tuple[Size, list[int]]:
    """The command line: how large, and which seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="seeds 1 to this")
    for name, default in vars(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args(arguments))
    return Size(**{name: options[name] for name in vars(Size())}), list(range(1, options["seeds"] + 1))


def main() -> int:
    """Prints a line for each seed and one of JSON for all; 1 when something is wrong."""
    size, seeds = parse()
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        runs = []
        for seed in seeds:
            one = figures(size, seed, Path(folder))
            runs.append(one)
            print(
                f"seed {seed:>2}: {one.finished} finished, longest round {one.longest_round:.2f} s (usual "
                f"{one.usual_round:.3f} s), {one.one_sided_rounds} one-sided edge rounds, "
                f"{one.times:.2f} times as far apart, {one.seconds:.0f} s  {'; '.join(one.wrong) or 'ok'}",
                flush=True,
            )  # fmt: skip
            if one.wrong:
                print(f"    {disturbed(size, seed).reproducer}")
    times = [figures_of_run.times for figures_of_run in runs if figures_of_run.times == figures_of_run.times]
    print(json.dumps({
        "seeds": len(runs), "right": sum(not one.wrong for one in runs),
        "longest_round": max(one.longest_round for one in runs),
        "most_times_apart": max(times, default=None),
        "one_sided_edge_rounds": sum(one.one_sided_rounds for one in runs),
    }))  # fmt: skip
    return 1 if any(one.wrong for one in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
