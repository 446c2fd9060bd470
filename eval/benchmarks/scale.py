"""How many nodes one machine carries: 1,024 processes, digits, 5 rounds; and that rounds do not slow down.

    python eval/benchmarks/scale.py [--small] [--nodes N] [--long-rounds N]

The raw counterpart forks as many bare training loops that make the same steps and never talk.
"""

import json
import statistics
import time
from typing import Any

from _command import ROOT, Run, call, regular_graph, run_decentnode
from _report import Target, conclude, parser, show

NODES, ROUNDS = 1024, 5
LONG_NODES, LONG_ROUNDS = 64, 300
FULL_MB = 24_000
MOST_GROWTH = 1.15
"""A quick round of the last third over one of the first: 1 but for what else the machine does."""
WARM_UP = 5


def many_nodes(nodes: int) -> tuple[dict[str, Any], Run]:
    """The big run and its figures."""
    graph = ["graph=../../graphs/regular_1024_4.edges"] if nodes == NODES else [regular_graph(nodes)]
    run = run_decentnode("scale.yaml", *graph, f"rounds={ROUNDS}")
    figures = {
        "nodes": nodes,
        "rounds": ROUNDS,
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


def bare_seconds(nodes: int) -> float:
    """Seconds until as many bare processes have made as many steps."""
    began = time.time()
    printed = call([str(ROOT / "eval" / "benchmarks" / "_bare_nodes.py"), str(nodes), str(ROUNDS)])
    return float(json.loads(printed.output)["last"]) - began


def long_run(nodes: int, rounds: int) -> dict[str, Any]:
    """Whether a round takes longer the later it is."""
    run = run_decentnode("scale.yaml", regular_graph(nodes), f"rounds={rounds}")
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


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, help=f"default: {NODES}")
    options.add_argument("--long-rounds", type=int, help=f"default: {LONG_ROUNDS}; 0 leaves that part out")
    arguments = options.parse_args()
    nodes = arguments.nodes or (8 if arguments.small else NODES)
    rounds = arguments.long_rounds
    if rounds is None:
        rounds = 12 if arguments.small else LONG_ROUNDS
    figures, run = many_nodes(nodes)
    figures["bare_seconds"] = round(bare_seconds(nodes), 2)
    table = [figures]
    finished = run.summary["finished_nodes"]
    targets = [
        Target(f"of {nodes} nodes have finished", finished, "at least", nodes),
        Target("MB of the machine's memory taken", run.used_mb, "at most", FULL_MB),
    ]
    if rounds:
        table.append(long_run(8 if arguments.small else LONG_NODES, rounds))
        targets.append(Target("last rounds over first rounds", table[-1]["growth"], "at most", MOST_GROWTH))
    for line in table:
        show(line)
    ratio = {f"{nodes} nodes": round(figures["bare_seconds"] / run.seconds, 3)}
    conclude("scale", arguments.small, table, ratio, targets)


if __name__ == "__main__":
    main()
