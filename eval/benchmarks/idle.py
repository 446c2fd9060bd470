"""What nodes do that wait for one that is stopped: wake-ups a second, and their share of a processor.

    python eval/benchmarks/idle.py [--small] [--seconds S] [--case CASE ...]

Each case is a run of its own: after some seconds of rounds the process of one node is stopped, and the others
are looked at for a while. Their launcher, whose output is no terminal, is looked at, too.
"""

import time
from typing import Any

from _report import Target, conclude, parser, show
from _waiting_run import Idle, idle, waiting_run

CASES = {
    "shared_memory-16": (16, []),
    "shared_memory-64": (64, []),
    "shared_memory-128": (128, []),
    "tcp-16": (16, ["communication.local=tcp"]),
    "gloo-16": (16, ["communication={name: torch_distributed, backend: gloo}"]),
}
SMALL, SMALL_NODES, SMALL_SECONDS = "shared_memory-5", 5, 3.0
SMALL_PAUSES = {"warm_up": 0.5, "settled": 4.0}
SECONDS = 60.0
LEAST_PERCENT = 0.001
NODE_WAKEUPS, NODE_PERCENT = 2.0, 0.02
LAUNCHER_WAKEUPS, LAUNCHER_PERCENT = 4.0, 0.02
"""In a second; and of a processor, for a node, and of the launcher for each 100 nodes or less."""


def measure(name: str, seconds: float, nodes: int, overrides: list[str], **pauses: float) -> dict[str, Any]:
    """One case; of the nodes the mean of all that wait, and the one that does most."""
    with waiting_run(nodes, *overrides, **pauses) as run:
        pids = [run.launcher, run.server, *run.nodes]
        began, before = time.monotonic(), {pid: idle(pid) for pid in pids}
        time.sleep(seconds)
        passed = time.monotonic() - began
        spent = {pid: idle(pid) - before[pid] for pid in pids}
    of_nodes = [spent[pid] for pid in run.nodes]
    figures: dict[str, Any] = {"case": name, "seconds": round(passed, 1)}
    for part in ("main", "libzmq", "other"):
        wakeups = sum(one.wakeups[part] for one in of_nodes) / len(of_nodes) / passed
        figures[f"{part}_wakeups"] = round(wakeups, 2)
    figures["node_wakeups"] = round(sum(map(all_wakeups, of_nodes)) / len(of_nodes) / passed, 2)
    figures["most_wakeups"] = round(max(map(all_wakeups, of_nodes)) / passed, 2)
    figures["node_percent"] = round(100 * sum(map(all_seconds, of_nodes)) / len(of_nodes) / passed, 4)
    figures["most_percent"] = round(100 * max(map(all_seconds, of_nodes)) / passed, 4)
    for which, pid in (("launcher", run.launcher), ("server", run.server)):
        figures[f"{which}_wakeups"] = round(all_wakeups(spent[pid]) / passed, 2)
        figures[f"{which}_percent"] = round(100 * all_seconds(spent[pid]) / passed, 4)
    return figures


def all_wakeups(spent: Idle) -> int:
    """Of all threads."""
    return sum(spent.wakeups.values())


def all_seconds(spent: Idle) -> float:
    """Of a processor, of all threads."""
    return sum(spent.seconds.values())


def targets(figures: dict[str, Any], nodes: int) -> list[Target]:
    """What one case has to reach."""
    name, hundreds = figures["case"], max(1.0, nodes / 100)
    return [
        Target(f"{name}: wake-ups of a node", figures["node_wakeups"], "at most", NODE_WAKEUPS),
        Target(f"{name}: % of a processor, a node", figures["node_percent"], "at most", NODE_PERCENT),
        Target(f"{name}: wake-ups of the launcher", figures["launcher_wakeups"], "at most", LAUNCHER_WAKEUPS),
        Target(
            f"{name}: % of a processor, the launcher", figures["launcher_percent"], "at most",
            round(LAUNCHER_PERCENT * hundreds, 4),
        ),
    ]  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, help=f"for how long to look; default: {SECONDS:g}")
    options.add_argument("--case", action="append", choices=CASES, help="default: all of them")
    arguments = options.parse_args()
    seconds = arguments.seconds or (SMALL_SECONDS if arguments.small else SECONDS)
    cases, pauses = CASES, dict[str, float]()
    if arguments.small:
        cases, pauses = CASES | {SMALL: (SMALL_NODES, [])}, SMALL_PAUSES
    table, wanted = [], list[Target]()
    for name in arguments.case or ([SMALL] if arguments.small else CASES):
        nodes, overrides = cases[name]
        table.append(measure(name, seconds, nodes, overrides, **pauses))
        show(table[-1])
        wanted += targets(table[-1], nodes)
    # There is nothing beside it: how far below the limit the nodes stay.
    ratio = {
        figures["case"]: round(NODE_PERCENT / max(LEAST_PERCENT, figures["node_percent"]), 3)
        for figures in table
    }
    conclude("idle", arguments.small, table, ratio, wanted)


if __name__ == "__main__":
    main()
