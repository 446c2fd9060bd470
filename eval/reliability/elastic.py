"""Kills parts of a run under torchrun at random moments, on two machines that are network namespaces.

    python eval/reliability/elastic.py [--what launcher|agent|machine] [--trials 5] [--kills 1]    # as root

`launcher`: the process that torchrun has started; torchrun starts it again, and all others, up to three times
(`--max-restarts=3`). `agent`: torchrun itself, whose launcher lives on for a while. `machine`: both.
Something outside, such as systemd or Kubernetes, repeats a torchrun that did not end well, as here. The run
must end with the model hash of an undisturbed one, and nothing may be left of it but a torchrun that waits
for the others, which have finished.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import yaml
from repeated import NODES_PER_MACHINE, configuration, model_hash
from returning import SUBNET, namespaces

MACHINES, ROUNDS, LIMIT, MOST_STARTS = 2, 1500, 300.0, 12
SECRET = {"DECENTNODE_SECRET": "a secret of no importance " * 2}


@dataclass
class Trial:
    """One run under torchrun, whose agents are repeated."""

    config: Path
    run_dir: Path
    log: TextIO
    agents: "dict[int, subprocess.Popen[bytes]]" = field(default_factory=dict)
    codes: dict[int, list[int]] = field(default_factory=dict)

    def start(self, machine: int) -> None:
        """Starts the agent of a machine."""
        rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={SUBNET}.1:29400", "--rdzv-id=elastic"]
        # All namespaces have one host name.
        rendezvous += [f"--rdzv-conf=is_host={int(not machine)}", f"--local-addr={SUBNET}.{1 + machine}"]
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        command += [*rendezvous, "--max-restarts=3", "--monitor-interval=0.5", "-m", "decentnode", "run"]
        self.agents[machine] = subprocess.Popen(
            ["ip", "netns", "exec", f"decentnode-{machine}", *command, str(self.config), "--continue",
             f"run_dir={self.run_dir}"],
            env=os.environ | SECRET, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def processes(self, machine: int) -> dict[int, list[str]]:
        """Returns the words of each process of a machine."""
        found, place = {}, f"decentnode-{machine}"
        listed = subprocess.run(
            ["ip", "netns", "pids", place], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in map(int, listed):
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return found

    def kill(self, machine: int, what: str) -> bool:
        """Kills a part of a machine; returns whether there was one."""
        agent, there = self.agents[machine].pid, self.processes(machine)
        children = [pid for pid, words in there.items() if parent_of(pid) == agent and "decentnode" in words]
        victims = {"agent": {agent} & {*there}, "launcher": children, "machine": there}[what]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(victims)

    def run(self, what: str, moments: Sequence[float], chance: random.Random) -> list[int]:
        """Returns the machines whose part was killed; raises RuntimeError at the limit."""
        for machine in range(MACHINES):
            self.start(machine)
        began, killed, moments = time.monotonic(), [], [*moments]
        while not self.tend():
            if time.monotonic() > began + LIMIT or any(
                len(codes) > MOST_STARTS for codes in self.codes.values()
            ):
                raise RuntimeError(f"not finished after {time.monotonic() - began:.0f} s, {self.codes}")
            if moments and time.monotonic() > began + moments[0]:
                machine = chance.randrange(MACHINES)
                if self.kill(machine, what):
                    killed.append(machine)
                    moments.pop(0)
            time.sleep(0.05)
        return killed

    def tend(self) -> bool:
        """Repeats agents that have ended badly; returns whether the run and its processes have ended."""
        for machine, agent in [*self.agents.items()]:
            if agent.poll() not in (None, 0):
                self.codes.setdefault(machine, []).append(agent.returncode)
                self.start(machine)
        summaries = [*self.run_dir.glob("machine-*/summary.json")]
        finished = [json.loads(path.read_text())["finished_nodes"] for path in summaries]
        if finished != [NODES_PER_MACHINE * MACHINES] * MACHINES:
            return False
        # torchrun waits for minutes at its end for others, and one that is repeated then waits for them.
        agents = [agent.pid for agent in self.agents.values()]
        if any(pid not in agents for machine in range(MACHINES) for pid in self.processes(machine)):
            return False
        for machine in range(MACHINES):
            self.kill(machine, "agent")
            self.agents[machine].wait()
        return True

    def left(self) -> list[str]:
        """Returns the commands of processes that are left after some seconds, which it kills."""
        limit = time.monotonic() + 20.0
        while (there := {**self.processes(0), **self.processes(1)}) and time.monotonic() < limit:
            time.sleep(0.2)
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [" ".join(words) for words in there.values()]


def parent_of(pid: int) -> int:
    """Returns the parent of a process; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def main() -> None:
    """Prints a line for each trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=["launcher", "agent", "machine"], action="append", default=[])
    parser.add_argument("--trials", type=int, default=5, help="of each")
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=35.0, help="The longest time until a kill.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, failed, trials = random.Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory(prefix="elastic-") as temporary:
        folder = Path(temporary)
        config = folder / "elastic.yaml"
        config.write_text(yaml.safe_dump(configuration(NODES_PER_MACHINE * MACHINES) | {"rounds": ROUNDS}))
        with (folder / "log").open("a") as log, namespaces(MACHINES):
            whole = Trial(config, folder / "undisturbed", log)
            began = time.monotonic()
            whole.run("launcher", [], chance)
            expected = model_hash(whole.run_dir, MACHINES)
            print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
            for what in (options.what or ["launcher", "agent", "machine"]) * options.trials:
                begun, began, trial = log.tell(), time.monotonic(), Trial(config, folder / f"{trials}", log)
                moments = sorted(chance.uniform(0.5, options.seconds) for _ in range(options.kills))
                try:
                    killed = trial.run(what, moments, chance)
                    found = model_hash(trial.run_dir, MACHINES)
                    problem = "" if found == expected else f"{found[:12]} DIFFERS from {expected[:12]}"
                    problem = problem if len(killed) == options.kills else f"ended before {moments}"
                except (RuntimeError, OSError, json.JSONDecodeError) as error:
                    problem = str(error)
                if left := trial.left():
                    problem += f"; left: {left}"
                trials, failed = trials + 1, failed + bool(problem)
                took = time.monotonic() - began
                said = f"{problem or 'same hash'} {[round(moment, 1) for moment in moments]} {trial.codes}"
                print(f"{trials:3d} {what}: {said} {took:.0f} s", flush=True)
                if problem:
                    print((folder / "log").read_text()[begun:][-8000:])
    print(f"{trials - failed} of {trials} trials end with the hash of the undisturbed run")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
