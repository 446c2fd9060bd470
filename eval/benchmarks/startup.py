"""How fast nodes start and how much memory each takes: digits, a 4-regular graph.

    python eval/benchmarks/startup.py [--small] [--nodes N ...] [--repeats N] [--source FOLDER]

The raw counterpart forks as many bare training loops from a process that has torch in memory. The floor is
`python -c "import torch"`, which every start contains.
With --source, nodes of decentralizepy start in turn with them: the same graph, data and model.
"""

import json
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from _command import ROOT, Ended, Run, call, regular_graph, run_decentnode
from _decentralizepy import NodesRun, add_source, case_of, run_nodes
from _report import Target, conclude, median, median_ratio, parser, show

from decentnode.graph.random_graphs import Regular

START_LIMITS = {64: 5.0}
"""Seconds until the last node has begun its first round."""
IMPORT_LIMITS = {16: 1.2, 64: 1.2}
"""The same time over that of `import torch` alone, both from the start of the command."""
MEMORY_LIMIT = 15.0
"""Private MB of each further node."""
ROUNDS = 5


def bare_start(nodes: int) -> float:
    """Seconds until every bare process has made its first step."""
    began = time.time()
    printed = call([str(ROOT / "eval" / "benchmarks" / "_bare_nodes.py"), str(nodes), "1"])
    return float(json.loads(printed.output)["first"]) - began


def measure(nodes: int, repeats: int, source: Path | None = None) -> dict[str, Any]:
    """One line of the table."""
    runs: list[Run] = []
    bare = []
    imports: list[Ended] = []
    others: list[NodesRun] = []
    for _ in range(repeats):
        runs.append(run_decentnode("startup.yaml", regular_graph(nodes), f"rounds={ROUNDS}"))
        imports.append(call(["-c", "import torch"]))
        bare.append(bare_start(nodes))
        if source is not None:
            graph = Regular(nodes, seed=1, degree=4)
            others.append(run_nodes(case_of("startup.yaml", source, graph, ROUNDS)))
    last = [max(run.first_round) for run in runs]
    beside = {}
    if others:
        beside = {
            "decentralizepy_first_round_seconds": median([run.first_round for run in others]),
            "decentralizepy_private_mb_per_node": median([run.private_mb for run in others]),
            "times_decentralizepy": median_ratio([run.first_round for run in others], last),
        }
    return {
        "nodes": nodes,
        "startup_seconds": median([run.summary["startup_seconds"] for run in runs]),
        "first_round_seconds": median(last),
        "import_torch_seconds": median([alone.seconds for alone in imports]),
        "of_import_torch": median_ratio(last, [alone.seconds for alone in imports]),
        "cpu_seconds": median([run.cpu_seconds for run in runs]),
        "import_torch_cpu_seconds": median([alone.cpu_seconds for alone in imports]),
        "bare_seconds": median(bare),
        "of_bare": median_ratio(bare, last),
        "private_mb_per_node": median([run.summary["peak_memory_mb_per_node"]["mean"] for run in runs]),
        "machine_mb": median([run.used_mb for run in runs]),
        "command_seconds": median([run.seconds for run in runs]),
        **beside,
    }


def targets_of(table: list[dict[str, Any]]) -> list[Target]:
    """The targets that these numbers of nodes have."""
    targets = []
    for figures in table:
        if limit := START_LIMITS.get(figures["nodes"]):
            name = f"{figures['nodes']} nodes, seconds until the last has begun its first round"
            targets.append(Target(name, figures["first_round_seconds"], "at most", limit))
        if limit := IMPORT_LIMITS.get(figures["nodes"]):
            name = f"{figures['nodes']} nodes, that time over `import torch`"
            targets.append(Target(name, figures["of_import_torch"], "at most", limit))
    private = fmean(f["private_mb_per_node"] for f in table)
    targets.append(Target("private MB of a further node", private, "at most", MEMORY_LIMIT))
    return targets


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--nodes", action="append", type=int, help="default: 16 and 64")
    options.add_argument("--repeats", type=int, default=3)
    add_source(options, "without it, they do not")
    arguments = options.parse_args()
    counts = arguments.nodes or ([6] if arguments.small else [16, 64])
    # The first start of a checkout writes its bytecode, which an installed package has.
    call(["-c", "import decentnode.launcher.start"])
    table = []
    for nodes in counts:
        table.append(measure(nodes, 1 if arguments.small else arguments.repeats, arguments.source))
        show(table[-1])
    ratio = {f"{figures['nodes']} nodes": figures["of_bare"] for figures in table}
    conclude("startup", arguments.small, table, ratio, targets_of(table))


if __name__ == "__main__":
    main()
