"""Kills whole machines of a run at random moments, and starts each again by the same command.

    python eval/reliability/returning.py [--machines 4] [--trials 20] [--kills 1] [--only MACHINE]
        [--open] [--namespaces [--elsewhere]]

The others go on without it, and it joins the run in progress. A trial passes if no machine outlives its
limit, every exit code is a documented one, and in the end the summaries of all machines agree: the same run,
all nodes finished, one model hash, and evaluations of the same rounds. A machine that comes back when the
others have finished finds no run (exit code 4), or no round that is left for its nodes. With `--open` the
machines are not listed, and take the places that are free. `--namespaces` needs root: each machine is a
network namespace. With `--elsewhere` an engine's variables tell each machine its place, and it returns with
another address.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import yaml

from decentnode.launcher.cluster.place import is_listening

NODES_PER_MACHINE, LIMIT = 2, 180.0
HUNG = 999
START = 20.0
"""Seconds that a start may take: a machine that returns as long before the others' last round is in time."""
ENDS = {0, 3, 4, -9}
"""All finished; all that were not lost; no run was found; killed by a trial."""
BRIDGE, SUBNET = "decentnode-hub", "10.77.40"


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the experiment."""
    machines, nodes = options.machines, NODES_PER_MACHINE * options.machines
    listed = [{"address": address(m, options), "nodes": NODES_PER_MACHINE} for m in range(machines)]
    place = {"rendezvous": f"{address(0, options)}:{options.port}", "nodes_per_machine": NODES_PER_MACHINE}
    mapping: dict[str, Any] = {"machines": listed, "rendezvous_port": options.port}
    if options.open:
        mapping = {"name": "open", **place}
    elif options.elsewhere:
        mapping = {"name": "environment", "nodes_per_machine": NODES_PER_MACHINE}
    return {
        "name": "returning", "rounds": options.rounds, "graph": {"name": "ring", "nodes": nodes},
        "dataset": "digits", "model": {"name": "mlp", "hidden": [8]}, "security": "none",
        "training": {"batch_size": 8, "optimizer": {"name": "SGD", "lr": 0.1}, "steps_per_round": 2},
        "checkpoint": {"every": 20}, "evaluation": {"every": 50, "figures": False, "average_model": True},
        "failures": {"start_deadline": 40, "deadline": 10, "grace": 1},
        "communication": {"name": "zeromq", "base_port": options.port + 10},
        "mapping": mapping,
    }  # fmt: skip


def address(machine: int, options: argparse.Namespace) -> str:
    """Returns the address of a machine."""
    return f"{SUBNET if options.namespaces else '127.0.0'}.{1 + machine}"


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[None]:
    """One namespace for each machine, all on one bridge."""
    names = [BRIDGE, *(f"decentnode-{machine}" for machine in range(count))]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            ip("netns", "add", name)
        ip("-n", BRIDGE, "link", "add", "br0", "type", "bridge")
        ip("-n", BRIDGE, "link", "set", "br0", "up")
        for machine, name in enumerate(names[1:]):
            ip(
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                f"veth{machine}",
                "netns",
                BRIDGE,
            )
            ip("-n", BRIDGE, "link", "set", f"veth{machine}", "master", "br0", "up")
            ip("-n", name, "address", "add", f"{SUBNET}.{1 + machine}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@dataclass
class Trial:
    """One run, whose machines are killed and started again."""

    config: Path
    run_dir: Path
    options: argparse.Namespace
    log: TextIO
    processes: "dict[int, subprocess.Popen[bytes]]" = field(default_factory=dict)
    codes: dict[int, list[int]] = field(default_factory=dict)
    returns: dict[int, float] = field(default_factory=dict)
    """By machine that was killed when it was started the last time."""
    missing: int = 0
    """Nodes that came too late."""
    moves: int = 0

    def start(self, machine: int) -> None:
        """Starts a machine by the command that all its starts have."""
        options = self.options
        if machine in self.codes:
            self.returns[machine] = time.time()
        inside = ["ip", "netns", "exec", f"decentnode-{machine}"] if options.namespaces else []
        command = [sys.executable, "-m", "decentnode", "run", str(self.config), "--continue"]
        # Each machine has a disk of its own.
        command += [f"run_dir={self.run_dir / f'disk-{machine}'}"]
        command += [] if options.elsewhere or (options.open and machine) else [f"machine={machine}"]
        place = {
            "DECENTNODE_MACHINE": str(machine), "DECENTNODE_MACHINES": str(options.machines),
            "DECENTNODE_RENDEZVOUS": f"{address(0, options)}:{options.port}", "DECENTNODE_JOB": "returning",
        }  # fmt: skip
        self.processes[machine] = subprocess.Popen(
            [*inside, *command],
            env=os.environ | (place if options.elsewhere else {}),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def kill(self, machine: int) -> None:
        """Kills all processes of a machine at once."""
        process = self.processes[machine]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self.codes.setdefault(machine, []).append(process.wait())

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Waits for the start of the run; gives up after the limit."""
        limit = time.monotonic() + LIMIT
        while not is_true() and time.monotonic() < limit:
            time.sleep(0.1)

    def move(self, machine: int) -> None:
        """Gives a machine another address."""
        self.moves += 1
        at, link = f"{SUBNET}.{100 + self.moves}/24", ["ip", "-n", f"decentnode-{machine}", "address"]
        subprocess.run([*link, "flush", "dev", "eth0"], check=True)
        subprocess.run([*link, "add", at, "dev", "eth0"], check=True)

    def run(self, chance: random.Random) -> str:
        """Returns what is wrong; an empty text if the trial passes."""
        options = self.options
        for machine in range(options.machines):
            self.start(machine)
            if options.open and not machine and not options.namespaces:
                # On one host the first machine is the one that comes first.
                self.wait_until(lambda: is_listening(address(0, options), options.port))
        self.wait_until(lambda: len([*self.run_dir.glob("disk-*/machine-*/run.json")]) == options.machines)
        for _ in range(options.kills):
            time.sleep(chance.uniform(0.2, options.seconds))
            machine = options.only if options.only is not None else chance.randrange(options.machines)
            if self.processes[machine].poll() is None:
                self.kill(machine)
                time.sleep(chance.uniform(0.0, options.away))
                if options.elsewhere:
                    self.move(machine)
                self.start(machine)
        limit = time.monotonic() + LIMIT
        for machine, process in self.processes.items():
            code = self.wait(machine, process, limit)
            self.codes.setdefault(machine, []).append(code)
        others = {code for codes in self.codes.values() for code in codes} - ENDS
        return f"exit codes {others}" if others else self.problem()

    def others(self, machine: int) -> "list[subprocess.Popen[bytes]]":
        """Returns the processes of the other machines."""
        return [process for other, process in self.processes.items() if other != machine]

    def wait(self, machine: int, process: "subprocess.Popen[bytes]", limit: float) -> int:
        """Returns how a machine ends; one that was refused tries again, as a person would."""
        while True:
            try:
                code = process.wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(machine)
                return HUNG
            if code not in (1, 2, 4, 5) or all(one.poll() in (0, 3) for one in self.others(machine)):
                return code
            self.codes.setdefault(machine, []).append(code)
            if len(self.codes[machine]) > 10:
                return code
            time.sleep(1.0)
            self.start(machine)
            process = self.processes[machine]

    def late(self) -> set[int]:
        """Returns the machines that returned when the others had done all rounds, or nearly all."""
        kept = [machine for machine in self.processes if machine not in self.returns]
        records = [path for m in kept for path in self.run_dir.glob(f"disk-{m}/machine-*/records/*")]
        end = min((path.stat().st_mtime for path in records), default=0.0)
        return {machine for machine, at in self.returns.items() if at > end - START}

    def problem(self) -> str:
        """Returns what the summaries of the machines disagree about, or lack."""
        found: dict[str, set[Any]] = {}
        late, without = self.late(), {machine for machine, codes in self.codes.items() if codes[-1] == 4}
        for path in sorted(self.run_dir.glob("disk-*/machine-*")):
            if int(path.parent.name.removeprefix("disk-")) in without:
                continue
            summary = json.loads((path / "summary.json").read_text())
            rows = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
            for key in ("run_id", "finished_nodes", "model_hash"):
                found.setdefault(key, set()).add(summary[key])
            found.setdefault("rounds", set()).add(tuple(sorted(row["round"] for row in rows)))
        if differing := [f"{key}: {len(values)} kinds" for key, values in found.items() if len(values) > 1]:
            return ", ".join(differing)
        (finished,) = found["finished_nodes"]
        self.missing = NODES_PER_MACHINE * self.options.machines - finished
        if self.missing > NODES_PER_MACHINE * len(late) or without - late:
            return f"{self.missing} nodes did not finish, machines {late} came late, {without} found no run"
        return ""


def main() -> None:
    """Prints a line for each trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="The longest time from one kill to the next."
    )
    parser.add_argument("--away", type=float, default=8.0, help="The longest time until a machine returns.")
    parser.add_argument("--only", type=int, metavar="MACHINE", help="Kill this one alone.")
    parser.add_argument("--open", action="store_true", help="With mapping: open.")
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--elsewhere", action="store_true", help="Machines return with other addresses.")
    parser.add_argument("--port", type=int, default=29931)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, failed = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="returning-") as temporary:
        folder = Path(temporary)
        config = folder / "returning.yaml"
        config.write_text(yaml.safe_dump(configuration(options)))
        with (folder / "log").open("a") as log:
            for number in range(options.trials):
                begun, began = log.tell(), time.monotonic()
                trial = Trial(config, folder / f"trial-{number}", options, log)
                network = namespaces(options.machines) if options.namespaces else contextlib.nullcontext()
                with network:
                    problem = trial.run(chance)
                failed += bool(problem)
                took = time.monotonic() - began
                passes = f"passes, {trial.missing} nodes came too late" if trial.missing else "passes"
                print(f"{number:3d} {problem or passes} {trial.codes} {took:.0f} s", flush=True)
                if problem:
                    print((folder / "log").read_text()[begun:][-8000:])
    print(f"{options.trials - failed} of {options.trials} trials pass")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
