"""Shows that links stay bounded by the degree: 256 nodes on several machines, few descriptors per process.

Each machine is a launcher of its own with an address of the loopback network, so all links between them are
TCP, and the links within one are, too. The graph is random: over the rounds every node meets nearly all
others. No process may have more than `--files` descriptors. Some nodes may be killed by a fault; the others
must finish.

    python eval/reliability/links.py [--nodes 256] [--machines 4] [--rounds 40] [--files 1024] [--kill 0]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _runs import TINY

CHECK_INTERVAL = 0.5
TIMEOUT = 1500.0
"""Seconds that the run may take."""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument("--files", type=int, default=1024, help="most descriptors of a process")
    parser.add_argument("--kill", type=int, default=0, help="nodes that crash half way")
    return parser.parse_args()


def overrides(options: argparse.Namespace) -> list[str]:
    """The run: as many nodes on each machine, one process each, a random graph."""
    share = options.nodes // options.machines
    machines = ", ".join(f"{{address: 127.0.0.{2 + m}, nodes: {share}}}" for m in range(options.machines))
    dead = ", ".join(str(rank) for rank in range(1, options.nodes, max(2, options.nodes // 16)))
    ranks = ", ".join(dead.split(", ")[: options.kill])
    faults = f"[{{name: crash, ranks: [{ranks}], rounds: {options.rounds // 2}}}]" if options.kill else "[]"
    return [
        f"rounds={options.rounds}", f"mapping.machines=[{machines}]", f"faults={faults}",
        f"graph={{name: epidemic_oracle, nodes: {options.nodes}, degree: {options.degree}}}",
        f"dataset={{name: quadratic, nodes: {options.nodes}, dimension: 64, b: normal, partition: natural}}",
        "communication={name: zeromq, local: tcp, base_port: 21000}", "security=none",
        "evaluation={every: 0, average_model: false, figures: false}",
        "failures={deadline: 120, grace: 5, start_deadline: 600}",
    ]  # fmt: skip


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, directly or not."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def descriptors(pid: int) -> int:
    """Open descriptors of a process; 0 when it has ended."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def start(folder: Path, machine: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """The command on one machine."""
    words = [*overrides(options), f"machine={machine}", f"run_dir={folder}/{machine}"]
    command = [sys.executable, "-m", "decentnode", "run", str(TINY), *words]
    with (folder / f"{machine}.txt").open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)


def watch(runs: list[subprocess.Popen[bytes]]) -> int:
    """The most descriptors that any process has until all runs have ended."""
    most, end = 0, time.monotonic() + TIMEOUT
    while any(run.poll() is None for run in runs) and time.monotonic() < end:
        most = max([most, *(descriptors(pid) for run in runs for pid in descendants(run.pid))])
        time.sleep(CHECK_INTERVAL)
    return most


def main() -> int:
    """Prints the most descriptors of any process, and whether all nodes finished."""
    options = parse()
    # Processes that this one starts inherit the limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (options.files, options.files))
    with tempfile.TemporaryDirectory(prefix="dn-", dir="/tmp") as name:
        folder, runs = Path(name), list[subprocess.Popen[bytes]]()
        try:
            runs += [start(folder, machine, options) for machine in range(options.machines)]
            most = watch(runs)
        finally:
            for run in runs:
                run.kill()
        codes = [run.wait() for run in runs]
        if any(code not in (0, 3) for code in codes):
            print((folder / "0.txt").read_text()[-3000:])
        finished = json.loads((folder / "0" / "summary.json").read_text())["finished_nodes"]
    print(f"{finished} of {options.nodes} nodes finished, exit {codes}")
    print(f"most descriptors of a process: {most} of {options.files}")
    right = finished == options.nodes - options.kill and 0 < most < options.files
    print(json.dumps({"right": right, "most": most, "finished": finished, "exit": codes}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
