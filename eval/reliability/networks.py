"""Shows that a real partition heals: two network namespaces whose link is cut, and mended after a while.

Acceptance figure R4 on real networks: sixteen nodes on two machines gossip without training, their models
far apart after the first round. The link between the machines goes down; each half goes on alone, for twenty
rounds at least. When it is up again the edges come back by themselves, and from then on the distance between
the models shrinks in each round by the factor that the whole graph has, within 5 %. Needs the rights to make
network namespaces. What is made is taken away.

    python eval/reliability/networks.py [--seconds 8]
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _runs import TINY
from partition import MOST_ERROR, NODES, contraction

from decentnode.config.loader import load
from decentnode.formats.reader import read_evaluations
from decentnode.formats.records import RoundRecord, read_records
from decentnode.graph.base import Graph
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import measure

NAMESPACES = ("decentnode-east", "decentnode-west")
ADDRESSES = ("10.77.32.1", "10.77.32.2")
FIRST, ROUNDS_APART = 20, 20
TIMEOUT = 180.0
"""Seconds that the run may take to get to a round; most of them on a machine that starts it slowly."""
BORDER = (0, NODES // 2 - 1, NODES // 2, NODES - 1)
"""The ranks whose edges the cut goes through."""


def ip(*words: str) -> None:
    """Runs `ip`; raises CalledProcessError."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def lay_cable(names: tuple[str, str] = NAMESPACES) -> None:
    """Two namespaces with a link between them."""
    remove(names)
    for name in names:
        ip("netns", "add", name)
    east, west = names
    ip("link", "add", "eth0", "netns", east, "type", "veth", "peer", "name", "eth0", "netns", west)
    for name, address in zip(names, ADDRESSES, strict=True):
        ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")


def remove(names: tuple[str, str] = NAMESPACES) -> None:
    """Takes both namespaces away, and what is in them."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def overrides(options: argparse.Namespace) -> tuple[str, ...]:
    """Half a ring on each machine."""
    machines = ", ".join(f"{{address: {address}, nodes: {NODES // 2}}}" for address in ADDRESSES)
    pace = f"faults=[{{name: more_faults:Hang, seconds: {options.pace}, activity: begin}}]"
    return (
        f"rounds={options.rounds}", f"graph={{name: ring, nodes: {NODES}}}", f"mapping.machines=[{machines}]",
        f"dataset={{name: quadratic, nodes: {NODES}, dimension: 64, b: normal, partition: natural}}",
        # One step, and none after it: from then on there is nothing but gossip.
        "training.scheduler={name: StepLR, step_size: 1, gamma: 0.0}", "training.optimizer.lr=0.9",
        "evaluation={every: 1, average_model: false, figures: false}",
        f"failures={{deadline: {options.deadline}, grace: 1}}", "security=none", pace,
    )  # fmt: skip


def start(
    folder: Path, words: tuple[str, ...], names: tuple[str, str] = NAMESPACES
) -> list[subprocess.Popen[bytes]]:
    """The command on both machines."""
    runs = []
    for name in names:
        command = [sys.executable, "-m", "decentnode", "run", str(TINY), *words, f"run_dir={folder / name}"]
        with (folder / f"{name}.txt").open("wb") as out:
            inside = ["ip", "netns", "exec", name, *command]
            runs.append(subprocess.Popen(inside, stdout=out, stderr=subprocess.STDOUT))
    return runs


def records(folder: Path, rank: int) -> list[RoundRecord]:
    """What a rank has recorded by now."""
    path = folder / NAMESPACES[rank >= NODES // 2] / "records" / f"{rank:05d}.jsonl"
    return read_records(path) if path.exists() else []


def wait_for_rounds(folder: Path, ranks: tuple[int, ...], count: int) -> None:
    """Until all these ranks have made so many rounds; raises RuntimeError when that takes too long."""
    limit = time.monotonic() + TIMEOUT
    while min(len(records(folder, rank)) for rank in ranks) < count:
        if time.monotonic() > limit:
            raise RuntimeError(f"ranks {ranks} did not get to round {count} within {TIMEOUT:.0f} s")
        time.sleep(0.05)


def cut(folder: Path, seconds: float) -> tuple[int, int]:
    """Takes the link away for a while; the rounds at its two ends."""
    wait_for_rounds(folder, BORDER, FIRST)
    first = max(len(records(folder, rank)) for rank in BORDER)
    ip("-n", NAMESPACES[0], "link", "set", "eth0", "down")
    time.sleep(seconds)
    wait_for_rounds(folder, BORDER, first + ROUNDS_APART)
    last = min(len(records(folder, rank)) for rank in BORDER)
    ip("-n", NAMESPACES[0], "link", "set", "eth0", "up")
    return first, last


def alone(folder: Path) -> list[int]:
    """The rounds in which some rank at the border heard one neighbor only."""
    return sorted({record.round for rank in BORDER for record in records(folder, rank) if record.heard < 2})


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long the link is down at least")
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that a round takes at least")
    parser.add_argument("--deadline", type=float, default=2.0, help="failures.deadline")
    return parser.parse_args()


def main() -> int:
    """Prints what the run has shown; 1 when it hung, lost a node or did not come together as it should."""
    options = parse()
    settings = load(TINY, overrides(options)[1:2])
    graph: Graph = settings.graph.make()
    wanted = measure(WeightedGraph(graph, settings.sharing.weights.make())).contraction
    with tempfile.TemporaryDirectory(prefix="dn-", dir="/tmp") as name:
        folder, runs = Path(name), list[subprocess.Popen[bytes]]()
        try:
            lay_cable()
            runs = start(folder, overrides(options))
            first, last = cut(folder, options.seconds)
            codes = [run.wait(options.rounds * options.pace * 4 + 20 * TIMEOUT) for run in runs]
        finally:
            for run in runs:
                run.kill()
            remove()
        rows = read_evaluations(folder / NAMESPACES[0] / "evaluations.jsonl")
        distances = {row.round: row.consensus_distance for row in rows if row.consensus_distance}
        apart = alone(folder)
        finished = [len(records(folder, rank)) for rank in range(NODES)].count(options.rounds)
    healed = contraction(distances, apart[-1] + 30) if apart else math.nan
    print(f"finished {finished} of {NODES}, exit {codes}; the link was down in rounds {first} to {last}")
    print(f"apart in {len(apart)} rounds, {apart[:1]} to {apart[-1:]}")
    print(f"contraction per round: the whole graph's {wanted:.4f}; afterwards {healed:.4f}")
    right = (
        bool(apart) and finished == NODES and wanted is not None and abs(healed / wanted - 1) <= MOST_ERROR
    )
    print(json.dumps({"right": right, "wanted": wanted, "after": healed, "apart": len(apart), "exit": codes}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
