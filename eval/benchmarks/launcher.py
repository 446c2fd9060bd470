"""What the launcher costs while nodes run: its processor time beside that of all nodes.

    python eval/benchmarks/launcher.py [--small] [--nodes N] [--rounds N]

1,024 nodes in one process (digits, an MLP with 4,810 parameters), so that nothing but the nodes' steps and
the launcher needs the processors: once only trained, once evaluated every ten rounds, too. The time before
the first round and after the last one does not count for the launcher.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _command import CONFIGS, LIMIT, cpu_of_children, regular_graph
from _report import Target, conclude, parser, show

from decentnode.config.loader import load
from decentnode.launcher.launcher import Launcher
from decentnode.launcher.report.console import LiveConsole
from decentnode.node.child_answers import answer_of
from decentnode.node.experiment import Experiment
from decentnode.node.late_imports import import_for_nodes

NODES, ROUNDS = 1024, 20
SMALL_NODES, SMALL_ROUNDS = 8, 12
CASES = {"trained": 0, "evaluated": 10}
"""By case the rounds between two evaluations; 0: none."""
MOST_PERCENT = 5.0
"""Processor time of the launcher, of that of the nodes."""


class Stopwatch(LiveConsole):
    """A console that notes the launcher's processor time when the first round begins."""

    began_at = 0.0

    def began(self, experiment: Experiment, startup: float) -> None:
        self.began_at = time.process_time()


class TimedLauncher(Launcher):
    """A launcher that notes its processor time when the last node has ended."""

    ended_at = 0.0

    def _complete_observations(self) -> None:
        self.ended_at = time.process_time()
        super()._complete_observations()


def measure(case: str, nodes: int, rounds: int) -> dict[str, Any]:
    """One run, with its launcher in this process."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, Path(os.devnull).open("w") as null:
        settings = load(
            CONFIGS / "scale.yaml",
            [
                regular_graph(nodes), f"rounds={rounds}", "communication=inproc", f"run_dir={folder}/run",
                f"evaluation.every={CASES[case]}",
            ],
        )  # fmt: skip
        experiment = Experiment.from_settings(settings)
        import_for_nodes(settings)
        console, before = Stopwatch(null), cpu_of_children()
        launcher = TimedLauncher(experiment, 0, console)
        if code := launcher.run():
            raise RuntimeError(f"the run ended with {code}")
        of_nodes = cpu_of_children() - before
    of_launcher = launcher.ended_at - console.began_at
    return {
        "case": case,
        "nodes": nodes,
        "rounds": rounds,
        "launcher_cpu_seconds": round(of_launcher, 2),
        "nodes_cpu_seconds": round(of_nodes, 2),
        "percent": round(100 * of_launcher / of_nodes, 2),
    }


def in_a_child(case: str, nodes: int, rounds: int) -> dict[str, Any]:
    """The figures of a run whose launcher is a process of its own, which no earlier case has changed."""
    answer = answer_of(
        lambda file: file.write(json.dumps(measure(case, nodes, rounds)).encode()), seconds=LIMIT
    )
    if not answer.content:
        raise RuntimeError(f"the run of case {case} gave no figures: {answer.end}")
    figures: dict[str, Any] = json.loads(answer.content)
    return figures


def main() -> None:
    """Runs both cases."""
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, help="nodes in one process")
    options.add_argument("--rounds", type=int, help="rounds of each run")
    given = options.parse_args()
    nodes = given.nodes or (SMALL_NODES if given.small else NODES)
    rounds = given.rounds or (SMALL_ROUNDS if given.small else ROUNDS)
    # Before a fork no second thread may run.
    torch.set_num_threads(1)
    figures = []
    for case in CASES:
        figures.append(in_a_child(case, nodes, rounds))
        show(figures[-1])
    targets = [
        Target(f"launcher, {row['case']}, percent of the nodes", row["percent"], "at most", MOST_PERCENT)
        for row in figures
    ]
    ratio = {row["case"]: row["percent"] / 100 for row in figures}
    conclude("launcher", given.small, figures, ratio, targets)


if __name__ == "__main__":
    main()
