"""Whole rounds of `decentnode run` beside decentralizepy's own nodes: 4 nodes, one step, a linear model.

    python eval/benchmarks/decentralizepy.py [SIZE ...] [--source FOLDER] [--small] [--local TRANSPORT ...]

SIZE is about how many numbers a model has, such as 1e5. Both run on this machine, in turn: the same graph,
network, samples, minibatches and rounds. decentralizepy (Dhasade et al., 2023) comes from a checkout of its
source; without one git fetches it at a pinned commit. Its nodes exchange by its TCP class and full sharing.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _command import CONFIGS, ROOT, call, read_history
from _decentralizepy import WARM_UP, add_source, case_of, checkout, commit_of, run_nodes
from _ports import free_ports
from _report import Target, conclude, median, median_ratio, parser, show

from decentnode.graph.families import FullyConnected

CONFIG = "decentralizepy.yaml"
NODES, CLASSES = 4, 100
"""As in the configuration."""
SIZES = (100_000,)
FASTER = {100_000: 4.0}
"""How many times faster a whole round should be, by the size of the model and in shared memory."""
SMALL_SIZE, SMALL_ROUNDS, ROUNDS = 10_000, 12, 200
LOCALS = ("shared_memory", "tcp")


@dataclass(frozen=True)
class Rounds:
    """What the rounds of one run have taken, per round after the first."""

    seconds: float
    cpu_seconds: float
    """Processor time of one node's process, which other programs disturb less."""


def theirs(source: Path, elements: int, rounds: int) -> Rounds:
    """Nodes of decentralizepy."""
    run = run_nodes(case_of(CONFIG, source, FullyConnected(NODES), rounds, features=elements // CLASSES))
    return Rounds(run.round_seconds, run.round_cpu_seconds)


def ours(local: str, elements: int, rounds: int) -> Rounds:
    """`decentnode run`, the whole command; its nodes say what processor time their rounds have taken."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        (costs := Path(folder, "costs")).mkdir()
        words = [str(ROOT / "eval" / "benchmarks" / "_node_costs.py"), str(costs), str(WARM_UP), "run"]
        words += [str(CONFIGS / CONFIG), f"run_dir={folder}/run", f"rounds={rounds}"]
        words += [f"communication.local={local}", f"communication.base_port={free_ports(NODES)}"]
        call([*words, f"dataset.features={elements // CLASSES}"])
        histories = [read_history(path, 0.0) for path in sorted(Path(folder, "run", "records").iterdir())]
        spent = [float(path.read_text().split()[-1]) for path in costs.iterdir()]
    measured = [history.rounds[WARM_UP:] for history in histories]
    seconds = sum(map(sum, measured)) / sum(map(len, measured))
    return Rounds(seconds, sum(spent) / NODES / (rounds - WARM_UP))


def measure(source: Path, elements: int, locals_: list[str], rounds: int, repeats: int) -> dict[str, Any]:
    """One line of the table: decentralizepy, and decentnode over each transport, in turn."""
    runs: dict[str, list[Rounds]] = {name: [] for name in ("decentralizepy", *locals_)}
    for _ in range(repeats):
        runs["decentralizepy"].append(theirs(source, elements, rounds))
        for local in locals_:
            runs[local].append(ours(local, elements, rounds))
    figures: dict[str, Any] = {
        "source": commit_of(source),
        "elements": elements,
        "nodes": NODES,
        "rounds": rounds,
        "repeats": repeats,
    }
    for name, measured in runs.items():
        figures[f"{name}_us"] = median([1e6 * run.seconds for run in measured])
        figures[f"{name}_cpu_us"] = median([1e6 * run.cpu_seconds for run in measured])
    for local in locals_:
        pairs = list(zip(runs["decentralizepy"], runs[local], strict=True))
        figures[f"{local}_times"] = median_ratio(
            *zip(*((a.seconds, b.seconds) for a, b in pairs), strict=True)
        )
        cpu = zip(*((a.cpu_seconds, b.cpu_seconds) for a, b in pairs), strict=True)
        figures[f"{local}_cpu_times"] = median_ratio(*cpu)
    return figures


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "sizes", nargs="*", type=lambda text: int(float(text)), metavar="SIZE", help="default: 1e5"
    )
    options.add_argument("--local", action="append", choices=LOCALS, help="default: shared_memory, tcp")
    options.add_argument("--repeats", type=int, default=7)
    add_source(options, "without it, git fetches it")
    arguments = options.parse_args()
    rounds, repeats = (SMALL_ROUNDS, 1) if arguments.small else (ROUNDS, arguments.repeats)
    table = []
    with checkout(arguments.source) as source:
        for elements in arguments.sizes or ((SMALL_SIZE,) if arguments.small else SIZES):
            table.append(measure(source, elements, arguments.local or list(LOCALS), rounds, repeats))
            show(table[-1])
    ratio, targets = {}, []
    for figures in table:
        for local in arguments.local or LOCALS:
            name, times = f"{local} d={figures['elements']:g}", figures[f"{local}_times"]
            ratio[name] = times
            limit = FASTER.get(figures["elements"])
            if local == "shared_memory" and limit:
                targets.append(
                    Target(f"{name}, a whole round, times decentralizepy", times, "at least", limit)
                )
    conclude("decentralizepy", arguments.small, table, ratio, targets)


if __name__ == "__main__":
    main()
