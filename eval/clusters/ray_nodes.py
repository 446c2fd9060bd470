"""Removes nodes of a Ray cluster at random moments of a run by `ray_start.py`, and of a sweep.

    python eval/clusters/ray_nodes.py [--trials 5] [--sweeps 2]

Three nodes on this host (`ray.cluster_utils.Cluster`), one machine of a run on each. A node that is removed
is replaced after some seconds by another one. Each run must end with the model hash of one without Ray, and
no process of it may be left.
"""

import argparse
import contextlib
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ray
import yaml
from ray.cluster_utils import Cluster

ROOT = Path(__file__).parents[2]
for folder in ("reliability", "slurm", "studies"):
    sys.path.insert(0, str(ROOT / "eval" / folder))
from executors import MARK, Trials, marked  # noqa: E402
from repeated import NODES_PER_MACHINE, configuration, model_hash  # noqa: E402

MACHINES, LIMIT, MEMORY = 3, 300.0, 100_000_000


class Nodes:
    """A cluster whose head runs nothing, and three nodes of one processor."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add() for _ in range(MACHINES)]

    def add(self) -> "ray._private.node.Node":
        """Returns a new node."""
        return self.cluster.add_node(num_cpus=1, object_store_memory=MEMORY)

    def replace(self, seconds: float) -> float:
        """Removes a node at a random moment of so many seconds, and adds another; returns the moment."""
        moment = self.chance.uniform(0.5, seconds)
        time.sleep(moment)
        self.cluster.remove_node(self.nodes.pop(self.chance.randrange(MACHINES)), allow_graceful=False)
        time.sleep(self.chance.uniform(0.0, 5.0))
        self.nodes.append(self.add())
        return moment


def left(mark: str) -> list[str]:
    """Returns the commands of decentnode that are left after some seconds."""
    found, limit = ["first"], time.monotonic() + 20.0
    while found and time.monotonic() < limit:
        found = []
        for pid in marked(mark):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                found += [" ".join(words)] if "decentnode" in words else []
        time.sleep(0.2)
    return found


def run(work: Path, nodes: Nodes, number: int, seconds: float, expected: str) -> bool:
    """Returns whether a run whose node is removed has the hash of the run without Ray."""
    run_dir, began = work / f"run-{number}", time.monotonic()
    with (work / f"run-{number}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "eval/clusters/ray_start.py"), str(work / "run.yaml"), str(MACHINES),
             f"run_dir={run_dir}"],
            env=os.environ | {"RAY_ADDRESS": nodes.cluster.address}, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        moment = nodes.replace(seconds)
        is_amid = process.poll() is None
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            code = -1
    found = model_hash(run_dir, MACHINES) if code == 0 else ""
    remaining = left(os.environ[MARK])
    is_right = is_amid and found == expected and not remaining
    verdict = "same hash" if is_right else f"FAULT (amid the run: {is_amid}, left: {remaining})"
    print(f"run {number}: {verdict}, node removed after {moment:.1f} s, exit code {code}, "
          f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    if not is_right:
        print((work / f"run-{number}.log").read_text()[-5000:])
    return is_right


def sweep(trials: Trials, nodes: Nodes, number: int, seconds: float) -> bool:
    """Returns whether a sweep whose node is removed has the hashes of a local one."""
    name = f"ray-{number}"
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(trials.sweep, name, "--on", f"{{name: ray, address: '{nodes.cluster.address}'}}")
        moment = nodes.replace(seconds)
        is_amid = not ended.done()
        code, text = ended.result()
    remaining = left(os.environ[MARK])
    is_right = is_amid and code == 0 and trials.hashes(name) == trials.expected and not remaining
    verdict = "same hashes" if is_right else f"FAULT (amid: {is_amid}, left: {remaining})"
    print(f"sweep {number}: {verdict}, node removed after {moment:.1f} s, exit code {code}", flush=True)
    if not is_right:
        print(text[-5000:])
    return is_right


def main() -> int:
    """Returns 0 if all was as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=25.0, help="The longest time until a node is removed."
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    work = Path("runs").absolute() / f"ray-{os.getpid()}"
    trials = Trials(work, pause=0.2, rounds=40)
    (work / "run.yaml").write_text(yaml.safe_dump(configuration(NODES_PER_MACHINE * MACHINES)))
    command = [sys.executable, "-m", "decentnode", "run", str(work / "run.yaml"), f"run_dir={work / 'whole'}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    expected = model_hash(work / "whole", 1)
    if given.sweeps:
        trials.by("local")
    nodes = Nodes(random.Random(given.seed))
    try:
        verdicts = [run(work, nodes, number, given.seconds, expected) for number in range(given.trials)]
        verdicts += [sweep(trials, nodes, number, given.seconds) for number in range(given.sweeps)]
    finally:
        nodes.cluster.shutdown()
    print(f"{sum(verdicts)} of {len(verdicts)} trials end with the hashes of undisturbed runs")
    return 0 if all(verdicts) and trials.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
