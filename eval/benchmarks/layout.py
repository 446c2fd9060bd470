"""How many nodes, and where: a process for each node, several nodes in a process, all in one process.

    python eval/benchmarks/layout.py [--small] [--nodes N ...]

An MLP with 4,554 parameters, 16 samples for each node, a 4-regular graph, one step a round, no evaluation.
All layouts end with equal models. A figure is the middle of the rounds of one run, so that others tell what a
factor of two means here and not one of 1.2.
"""

from dataclasses import dataclass
from statistics import median
from typing import Any

from _command import available_mb, regular_graph, run_decentnode
from _report import conclude, parser, show

NODES = (16, 64, 256, 1024, 4096)
SMALL_NODES = (8,)
ROUNDS = 12
PROCESS_MB = 16
"""What a process of its own takes, roughly; a layout that does not fit is left out."""


@dataclass(frozen=True)
class Layout:
    """How many nodes are in a process."""

    name: str
    nodes_per_process: int
    """0: all of them."""

    def overrides(self, nodes: int) -> list[str]:
        """Returns the changes of the configuration."""
        if not self.nodes_per_process:
            return ["communication=inproc"]
        return [f"communication={{name: zeromq, nodes_per_process: {self.nodes_per_process}}}"]

    def processes(self, nodes: int) -> int:
        """Returns the number of host processes."""
        return -(-nodes // self.nodes_per_process) if self.nodes_per_process else 1


LAYOUTS = (
    Layout("a process each", 1),
    Layout("8 a process", 8),
    Layout("64 a process", 64),
    Layout("one process", 0),
)


def measure(layout: Layout, nodes: int) -> dict[str, Any]:
    """One run."""
    dataset = f"dataset={{name: synthetic, nodes: {nodes}, samples_per_node: 20, features: 60}}"
    words = [
        regular_graph(nodes),
        dataset,
        f"rounds={ROUNDS}",
        "checkpoint.final=false",
        *layout.overrides(nodes),
    ]
    run = run_decentnode("scale.yaml", *words)
    return {
        "nodes": nodes,
        "layout": layout.name,
        "processes": layout.processes(nodes),
        "start_seconds": round(max(run.first_round), 1),
        "round_seconds": round(median(run.round_seconds[2:]), 3),
        "memory_mb": round(run.summary["peak_memory_mb"]),
        "model_hash": run.summary["model_hash"][:8],
    }


def main() -> None:
    """Prints a line for each layout that fits into the memory."""
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, nargs="+", help="numbers of nodes")
    given = options.parse_args()
    figures, equal = [], []
    for nodes in given.nodes or (SMALL_NODES if given.small else NODES):
        room = available_mb() / PROCESS_MB
        of_size = [
            measure(layout, nodes)
            for layout in LAYOUTS
            if layout.processes(nodes) < room and layout.nodes_per_process <= nodes
        ]
        for line in of_size:
            show(line)
        figures += of_size
        equal.append(len({line["model_hash"] for line in of_size}) == 1)
    conclude("layout", given.small, figures, {"sizes_with_equal_models": sum(equal) / len(equal)}, [])


if __name__ == "__main__":
    main()
