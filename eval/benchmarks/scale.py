"""How many nodes one machine carries: 1,024 processes, digits, 5 rounds; and that rounds do not slow down.

    python eval/benchmarks/scale.py [--small] [--nodes N] [--long-rounds N] [--only-costs] [--random]

The raw counterpart forks as many bare training loops that make the same steps and never talk. Then what a
round costs a node, in processor time and control messages, among few nodes and many, alone and beside two
busy loops. `--random` compares rounds of a random graph with those of a static one instead, in turns: of
nodes that hardly train, and of a published experiment (LeNet on images like CIFAR-10, three batches of 8).
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _command import CONFIGS, ROOT, Run, call, regular_graph, run_decentnode
from _images import write_images
from _report import Target, conclude, parser, show

NODES, ROUNDS = 1024, 5
LONG_NODES, LONG_ROUNDS = 64, 300
SMALL_NODES, SMALL_ROUNDS = 8, 6
FULL_MB = 24_000
MOST_GROWTH = 1.15
"""A quick round of the last third over one of the first: 1 but for what else the machine does."""
WARM_UP = 5
FEW_NODES, COST_ROUNDS, BUSY_LOOPS = 64, 20, 2
RANDOM_NODES, PAIRS, MOST_RANDOM = 256, 3, 1.10
"""Processor time of a round of `epidemic_oracle`, of that of a static regular graph of the same degree."""
TRAINED, IMAGES = "experiment.yaml", 4800
"""The published experiment, and the images of all its nodes."""
MOST_COST = 1.5
"""Processor time of a node in a round, of that among few nodes with nothing beside them."""


def many_nodes(nodes: int, rounds: int) -> tuple[dict[str, Any], Run]:
    """The big run and its figures."""
    graph = ["graph=../../graphs/regular_1024_4.edges"] if nodes == NODES else [regular_graph(nodes)]
    run = run_decentnode("scale.yaml", *graph, f"rounds={rounds}")
    figures = {
        "nodes": nodes,
        "rounds": rounds,
        "command_seconds": round(run.seconds, 2),
        "cpu_seconds": round(run.cpu_seconds, 2),
        "startup_seconds": run.summary["startup_seconds"],
        "first_round_of_last_node_seconds": round(max(run.first_round), 2),
        "round_seconds": [round(seconds, 4) for seconds in run.round_seconds],
        "finished_nodes": run.summary["finished_nodes"],
        "private_mb_per_node": round(run.summary["peak_memory_mb_per_node"]["mean"], 2),
        "machine_mb": round(run.used_mb),
    }
    return figures, run


def bare_seconds(nodes: int, rounds: int) -> float:
    """Seconds until as many bare processes have made as many steps."""
    began = time.time()
    printed = call([str(ROOT / "eval" / "benchmarks" / "_bare_nodes.py"), str(nodes), str(rounds)])
    return float(json.loads(printed.output)["last"]) - began


def long_run(nodes: int, rounds: int) -> dict[str, Any]:
    """Whether a round takes longer the later it is."""
    return growth_in(run_decentnode("scale.yaml", regular_graph(nodes), f"rounds={rounds}"), nodes)


def growth_in(run: Run, nodes: int) -> dict[str, Any]:
    """Whether it does in this run."""
    rounds = len(run.round_seconds)
    seconds = run.round_seconds[min(WARM_UP, rounds // 3) :]
    third = max(1, len(seconds) // 3)
    growth = lower_quartile(seconds[-third:]) / lower_quartile(seconds[:third])
    slope = statistics.linear_regression(range(len(seconds)), seconds).slope
    return {
        "nodes": nodes,
        "rounds": rounds,
        "median_round_ms": round(statistics.median(seconds) * 1e3, 3),
        "slope_us_per_round": round(slope * 1e6, 3),
        "growth": round(growth, 3),
    }


def lower_quartile(seconds: list[float]) -> float:
    """What the quicker quarter stays below; other programs slow down some rounds but speed up none."""
    return sorted(seconds)[len(seconds) // 4]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many programs that compute without an end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def round_costs(
    nodes: int,
    rounds: int,
    loops: int,
    graph: str = "",
    warm_up: int = WARM_UP,
    experiment: str = "scale.yaml",
) -> dict[str, Any]:
    """What one round after `warm_up` others costs one node, in its own process, beside so many busy loops."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, busy_loops(loops):
        (costs := Path(folder, "costs")).mkdir()
        words = [str(ROOT / "eval" / "benchmarks" / "_node_costs.py"), str(costs), str(warm_up), "run"]
        words += [str(CONFIGS / experiment), f"run_dir={folder}/run", f"rounds={warm_up + rounds}"]
        if experiment == TRAINED:
            write_images(Path(folder), IMAGES, test=100)
            words += [f"dataset.path={folder}", "evaluation={every: 0, figures: false}"]
        call([*words, graph or regular_graph(nodes)])
        spent = [[float(word) for word in path.read_text().split()] for path in costs.iterdir()]
    messages, sizes, seconds = (sum(column) / nodes / rounds for column in zip(*spent, strict=True))
    return {
        "nodes": nodes, "rounds": rounds, "busy_loops": loops, "cpu_ms": round(1000 * seconds, 3),
        "control_messages": round(messages, 3), "control_bytes": round(sizes, 1),
    }  # fmt: skip


def measure_costs(few: int, many: int, rounds: int) -> tuple[list[dict[str, Any]], list[Target]]:
    """Few nodes and many, alone and beside busy loops."""
    table = [round_costs(nodes, rounds, loops) for nodes in (few, many) for loops in (0, BUSY_LOOPS)]
    targets = []
    for line in table[1:]:
        name = f"{line['nodes']} nodes and {line['busy_loops']} busy loops: processor time of a round"
        targets.append(Target(name, line["cpu_ms"] / table[0]["cpu_ms"], "at most", MOST_COST))
    return table, targets


def measure_random(
    nodes: int, rounds: int, pairs: int, warm_up: int, experiment: str = "scale.yaml"
) -> tuple[list[dict[str, Any]], float]:
    """Pairs of runs on a static and on a random graph, in turns, and the median ratio of their rounds."""
    graph = f"graph={{name: epidemic_oracle, nodes: {nodes}, degree: 4}}"
    table: list[dict[str, Any]] = []
    for _ in range(pairs):
        for name, chosen in (("regular", regular_graph(nodes)), ("epidemic_oracle", graph)):
            costs = round_costs(nodes, rounds, 0, chosen, warm_up, experiment)
            table.append({"experiment": experiment, "graph": name} | costs)
    spent = [line["cpu_ms"] for line in table]
    ratios = [random / static for static, random in zip(spent[::2], spent[1::2], strict=True)]
    return table, statistics.median(ratios)


def compare_random(nodes: int | None, warm_up: int, small: bool) -> None:
    """Both comparisons with a static graph: of bare rounds, and of rounds of an experiment."""
    rounds, pairs = (2, 1) if small else (COST_ROUNDS, PAIRS)
    table, targets, ratio = list[dict[str, Any]](), list[Target](), dict[str, float]()
    many = nodes or (SMALL_NODES if small else RANDOM_NODES)
    for experiment in ("scale.yaml", TRAINED):
        lines, figures = measure_random(many, rounds, pairs, warm_up, experiment)
        for line in lines:
            show(line)
        table += lines
        ratio[experiment] = round(figures, 3)
        name = f"{experiment}, {many} nodes: processor time of a random round over a static one"
        targets.append(Target(name, figures, "at most", MOST_RANDOM))
    conclude("scale", small, table, ratio, [] if small else targets)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, help=f"default: {NODES}")
    options.add_argument("--long-rounds", type=int, help=f"default: {LONG_ROUNDS}; 0 leaves that part out")
    options.add_argument("--only-costs", action="store_true", help="only what a round costs a node")
    options.add_argument("--random", action="store_true", help="only a random graph beside a static one")
    options.add_argument(
        "--warm-up",
        type=int,
        default=WARM_UP,
        help="with --random: rounds first, while links open",
    )
    arguments = options.parse_args()
    if arguments.random:
        compare_random(arguments.nodes, arguments.warm_up, arguments.small)
        return
    nodes = arguments.nodes or (SMALL_NODES if arguments.small else NODES)
    if arguments.small:
        costs, of_costs = [round_costs(SMALL_NODES, 2, 0)], list[Target]()
    else:
        costs, of_costs = measure_costs(min(nodes // 2, FEW_NODES), nodes, COST_ROUNDS)
    if arguments.only_costs:
        for line in costs:
            show(line)
        ratio = {"costs": round(costs[0]["cpu_ms"] / costs[-1]["cpu_ms"], 3)}
        conclude("scale", arguments.small, costs, ratio, of_costs)
        return
    rounds = SMALL_ROUNDS if arguments.small else ROUNDS
    long_rounds = LONG_ROUNDS if arguments.long_rounds is None else arguments.long_rounds
    figures, run = many_nodes(nodes, rounds)
    figures["bare_seconds"] = round(bare_seconds(nodes, rounds), 2)
    table = [figures, *costs]
    finished = run.summary["finished_nodes"]
    targets = [
        Target(f"of {nodes} nodes have finished", finished, "at least", nodes),
        Target("MB of the machine's memory taken", run.used_mb, "at most", FULL_MB),
        *of_costs,
    ]
    if long_rounds:
        table.append(growth_in(run, nodes) if arguments.small else long_run(LONG_NODES, long_rounds))
        targets.append(Target("last rounds over first rounds", table[-1]["growth"], "at most", MOST_GROWTH))
    for line in table:
        show(line)
    ratio = {f"{nodes} nodes": round(figures["bare_seconds"] / run.seconds, 3)}
    conclude("scale", arguments.small, table, ratio, targets)


if __name__ == "__main__":
    main()
