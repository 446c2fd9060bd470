"""Emulates the pods of `kubernetes.yaml` as namespaces of this host, and deletes them at random moments.

    python eval/clusters/emulated_pods.py [--deletions 20] [--signal TERM|KILL|both]      # as root

Names, variables, command, grace period and the experiment are read from the manifest. A pod has a network, a
host name, a `/dev/shm` and a file of names of its own; a name is known only after its pod has started. A pod
that is deleted, or that ends with another code than 0, is made again at once. The run must end with the hash
of an undisturbed one.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MANIFEST = Path(__file__).with_name("kubernetes.yaml")
ROOT = Path(__file__).parents[2]
BRIDGE, NETWORK = "dnpods", "10.77.3"
LIMIT = 1800.0


@dataclass
class Cluster:
    """The pods of one Job."""

    folder: Path
    job: str
    rounds: int
    pods: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    starts: int = 0

    def __post_init__(self) -> None:
        documents = [*yaml.safe_load_all(MANIFEST.read_text())]
        kinds: dict[str, Any] = {document["kind"]: document for document in documents}
        self.spec = kinds["Job"]["spec"]
        self.pod = self.spec["template"]["spec"]
        self.container = self.pod["containers"][0]
        self.size = self.spec["completions"]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "experiment").mkdir(exist_ok=True)
        (self.folder / "runs").mkdir(exist_ok=True)
        experiment = yaml.safe_load(kinds["ConfigMap"]["data"]["experiment.yaml"])
        experiment["rounds"] = self.rounds
        (self.folder / "experiment/experiment.yaml").write_text(yaml.safe_dump(experiment))
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")

    def variables(self, index: int) -> dict[str, str]:
        """Returns those that the manifest and Kubernetes set; $(NAME) names an earlier one."""
        found = {"JOB_COMPLETION_INDEX": str(index), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        for entry in self.container["env"]:
            if "value" in entry:
                value = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], entry["value"])
            else:
                source = entry["valueFrom"]
                value = self.job if "fieldRef" in source else "emulated secret of no importance " * 2
            found[entry["name"]] = value
        return found

    def start(self, index: int) -> None:
        """Makes a pod, and lets its name be known a moment later."""
        variables = self.variables(index)
        words = [*self.container["command"], *self.container["args"]]
        words = [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in words]
        # Volumes are folders here.
        for volume in ("/experiment/", "/runs/"):
            words = [word.replace(volume, f"{self.folder}{volume}") for word in words]
        words = [sys.executable, "-m", *words]
        name, service = f"{self.job}-{index}", self.pod["subdomain"]
        own = f"pod{index}n{self.starts}"
        self.starts += 1
        # A namespace lives a moment longer than its pod.
        subprocess.run(["ip", "link", "delete", f"dnp{index}"], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "add", f"dnp{index}", "type", "veth", "peer", "name", own], check=True)
        subprocess.run(["ip", "link", "set", f"dnp{index}", "master", BRIDGE, "up"], check=True)
        script = (
            f"hostname {name}; mount --make-rprivate /; mount --bind {self.hosts} /etc/hosts; "
            "mount -t tmpfs -o size=1g tmpfs /dev/shm; ip link set lo up; "
            f"while ! ip link show {own} >/dev/null 2>&1; do sleep .05; done; "
            f'ip addr add {NETWORK}.{10 + index}/24 dev {own}; ip link set {own} up; exec "$@"'
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["unshare", "-n", "-u", "-m", "-i", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-c",
                 script, "sh", *words],
                env=variables, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                cwd="/tmp",
            )  # fmt: skip
        subprocess.run(["ip", "link", "set", own, "netns", str(self.inner(process))], check=True)
        self.pods[index] = process
        time.sleep(0.2)
        line = f"{NETWORK}.{10 + index} {name}.{service} {name}\n"
        if line not in self.hosts.read_text():
            with self.hosts.open("a") as hosts:
                hosts.write(line)

    def inner(self, process: "subprocess.Popen[bytes]") -> int:
        """Returns the first process of a pod, which has its namespaces."""
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if children:
                return int(children[0])
            time.sleep(0.01)
        raise RuntimeError("a pod did not start")

    def delete(self, index: int, number: signal.Signals) -> None:
        """Ends a pod as Kubernetes does: the signal, and SIGKILL after the time of grace."""
        process = self.pods[index]
        try:
            os.kill(self.inner(process), number)
        except (ProcessLookupError, FileNotFoundError, RuntimeError):
            return
        try:
            process.wait(self.pod["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def tend(self) -> bool:
        """Makes pods again that have ended badly; returns whether all have ended well."""
        for index, process in [*self.pods.items()]:
            if process.poll() not in (None, 0):
                self.start(index)
        return all(process.poll() == 0 for process in self.pods.values())

    def run(self, deletions: int, signals: list[signal.Signals], chance: random.Random) -> str:
        """Runs the Job to its end; returns the model hash."""
        for index in chance.sample(range(self.size), self.size):
            self.start(index)
        limit, left = time.monotonic() + LIMIT, deletions
        due = time.monotonic() + chance.uniform(0.5, 12)
        try:
            while not self.tend():
                if time.monotonic() > limit:
                    raise RuntimeError(f"not finished after {LIMIT:.0f} s, {left} deletions left")
                if left and time.monotonic() > due:
                    index = chance.randrange(self.size)
                    if self.pods[index].poll() is None:
                        self.delete(index, chance.choice(signals))
                        left -= 1
                    due = time.monotonic() + chance.uniform(0.5, 12)
                time.sleep(0.05)
        finally:
            for process in self.pods.values():
                process.kill()
        print(f"{self.job}: {deletions - left} deletions, {self.starts} pods", flush=True)
        summary = json.loads((self.folder / f"runs/{self.job}/machine-0/summary.json").read_text())
        return str(summary["model_hash"])


def main() -> int:
    """Returns 0 if the disturbed run has the hash of the undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deletions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--signal", choices=["TERM", "KILL", "both"], default="both")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = ["TERM", "KILL"] if given.signal == "both" else [given.signal]
    signals = [signal.Signals[f"SIG{name}"] for name in names]
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
        with tempfile.TemporaryDirectory(prefix="pods-") as folder:
            chance = random.Random(given.seed)
            whole = Cluster(Path(folder), "whole", given.rounds).run(0, signals, chance)
            found = Cluster(Path(folder), "deleted", given.rounds).run(given.deletions, signals, chance)
    finally:
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False)
    print("the same hash" if found == whole else f"{found[:12]} DIFFERS from {whole[:12]}")
    return 0 if found == whole else 1


if __name__ == "__main__":
    sys.exit(main())
