"""Removes nodes of a Ray cluster at random moments of a run by `ray_start.py`, and of a sweep.

    python eval/clusters/ray_nodes.py [--trials 5] [--sweeps 5]      # as root

For runs four network namespaces are the hosts: of the head, and of a node of Ray for each of three machines.
Of one node either Ray's own process is killed, as by `remove_node`, or all processes; it returns after some
seconds. For sweeps the nodes are those of `ray.cluster_utils.Cluster`, and `remove_node` removes one, for
which another comes. All must end with the model hashes of runs without Ray, and no process may be left.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
from returning import SUBNET, namespaces  # noqa: E402

MACHINES, ROUNDS, LIMIT, MEMORY = 3, 500, 300.0, 100_000_000
RAY = str(Path(sys.executable).with_name("ray"))
HEAD = f"{SUBNET}.1:6379"
READY = """
import ray, sys, time
while not ray.is_initialized():
    try:
        ray.init(address=sys.argv[1], logging_level="ERROR")
    except ConnectionError:
        time.sleep(1)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.2)
"""


class Hosts:
    """A cluster of Ray on namespaces; the first one is the head, which runs nothing."""

    def __init__(self) -> None:
        self.nodes = {0: self.start(0)}
        self.wait()
        self.nodes |= {host: self.start(host) for host in range(1, 1 + MACHINES)}

    def start(self, host: int) -> "subprocess.Popen[bytes]":
        """Starts the node of a host."""
        head = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
        where = [f"--address={HEAD}", "--num-cpus=1"] if host else head
        where += [f"--node-ip-address={SUBNET}.{1 + host}", f"--object-store-memory={MEMORY}", "--block"]
        # Each has its own sockets in /tmp/ray, as on a host of its own.
        own = (
            ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /tmp/ray && exec "$@"', "sh"] if host else []
        )
        words, null = [*inside(host), *own, RAY, "start", *where], subprocess.DEVNULL
        return subprocess.Popen(words, stdin=null, stdout=null, stderr=null)

    def wait(self) -> None:
        """Waits until all nodes are there."""
        words = [sys.executable, "-c", READY, HEAD, str(len(self.nodes))]
        subprocess.run([*inside(0), *words], check=True, timeout=LIMIT)

    def fail(self, host: int, what: str) -> None:
        """Kills the process of Ray on a host, or all processes there."""
        found = subprocess.run(
            ["ip", "netns", "pids", f"decentnode-{host}"], capture_output=True, text=True, check=True
        )
        for pid in map(int, found.stdout.split()):
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
                if what == "host" or name.endswith(b"raylet"):
                    os.kill(pid, signal.SIGKILL)
        self.nodes[host].wait(LIMIT)

    def end(self) -> None:
        """Ends all nodes."""
        for host in reversed(self.nodes):
            self.fail(host, "host")


def inside(host: int) -> list[str]:
    """Returns the words before a command that runs on a host."""
    return ["ip", "netns", "exec", f"decentnode-{host}"]


def left() -> list[str]:
    """Returns the commands of decentnode that are left after some seconds."""
    found, limit = ["first"], time.monotonic() + 20.0
    while found and time.monotonic() < limit:
        found = []
        for pid in marked(os.environ[MARK]):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                found += [" ".join(words)] if "decentnode" in words else []
        time.sleep(0.2)
    return found


def run(work: Path, hosts: Hosts, number: int, chance: random.Random, seconds: float, expected: str) -> bool:
    """Returns whether a run one of whose nodes fails has the hash of the run without Ray."""
    hosts.wait()
    run_dir, began, host = work / f"run-{number}", time.monotonic(), chance.randint(1, MACHINES)
    what, moment = ("raylet", "host")[number % 2], chance.uniform(0.5, seconds)
    with (work / f"run-{number}.log").open("w") as log:
        process = subprocess.Popen(
            [*inside(0), sys.executable, str(ROOT / "eval/clusters/ray_start.py"), str(work / "run.yaml"),
             str(MACHINES), f"run_dir={run_dir}"],
            env=os.environ | {"RAY_ADDRESS": HEAD}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(moment)
        if process.poll() == 0:
            print(f"run {number}: ended before its moment", flush=True)
            shutil.rmtree(run_dir)
            return run(work, hosts, number, chance, seconds, expected)
        hosts.fail(host, what)
        time.sleep(chance.uniform(0.0, 5.0))
        hosts.nodes[host] = hosts.start(host)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            code = -1
    found = model_hash(run_dir, MACHINES) if code == 0 else ""
    said = f"{what} of node {host} killed after {moment:.1f} s, {time.monotonic() - began:.0f} s"
    return verdict(f"run {number}", found == expected, said, lambda: (work / f"run-{number}.log").read_text())


def sweep(trials: Trials, number: int, chance: random.Random, seconds: float) -> bool:
    """Returns whether a sweep whose node is removed has the hashes of a local one."""
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster, name = Cluster(initialize_head=True, head_node_args=head), f"ray-{number}"
    try:
        nodes = [cluster.add_node(num_cpus=2, object_store_memory=MEMORY) for _ in range(MACHINES)]
        with ThreadPoolExecutor() as pool:
            on = f"{{name: ray, address: '{cluster.address}'}}"
            ended = pool.submit(trials.sweep, name, "--on", on)
            time.sleep(moment := chance.uniform(0.5, seconds))
            is_amid = not ended.done()
            cluster.remove_node(chance.choice(nodes), allow_graceful=False)
            cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
            code, text = ended.result()
        is_right = is_amid and code == 0 and trials.hashes(name) == trials.expected
        return verdict(f"sweep {number}", is_right, f"node removed after {moment:.1f} s", lambda: text)
    finally:
        cluster.shutdown()
        ray.shutdown()


def verdict(name: str, is_right: bool, said: str, log: Callable[[], str]) -> bool:
    """Prints the line of a trial; returns whether it is right, and nothing of it is left."""
    remaining = left()
    is_right = is_right and not remaining
    print(f"{name}: {'same hash' if is_right else 'FAULT'}, {said}", flush=True)
    if not is_right:
        print(*remaining, log()[-5000:], sep="\n")
    return is_right


def main() -> int:
    """Returns 0 if all was as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40.0, help="The longest time until a node fails.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    work, chance = Path("runs").absolute() / f"ray-{os.getpid()}", random.Random(given.seed)
    trials, verdicts = Trials(work, pause=0.3, rounds=60), []
    if given.trials:
        settings = configuration(NODES_PER_MACHINE * MACHINES) | {"rounds": ROUNDS}
        (work / "run.yaml").write_text(yaml.safe_dump(settings))
        words = ["run", str(work / "run.yaml"), f"run_dir={work / 'whole'}"]
        subprocess.run([sys.executable, "-m", "decentnode", *words], check=True, stdin=subprocess.DEVNULL)
        expected = model_hash(work / "whole", 1)
        with namespaces(1 + MACHINES):
            hosts = Hosts()
            try:
                for number in range(given.trials):
                    verdicts.append(run(work, hosts, number, chance, given.seconds, expected))
            finally:
                hosts.end()
    if given.sweeps:
        trials.by("local")
        verdicts += [sweep(trials, number, chance, given.seconds) for number in range(given.sweeps)]
    print(f"{sum(verdicts)} of {len(verdicts)} trials end with the hashes of undisturbed runs")
    return 0 if all(verdicts) and trials.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
