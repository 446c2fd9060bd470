"""Repeats one command until its run has finished, and kills all its machines at random moments before.

    python eval/reliability/repeated.py [--machines 3] [--trials 20] [--signal KILL|TERM] [--only MACHINE]

Each machine gets its place from the neutral variables of the environment, as any engine can set them, and an
address of the loopback network. A trial passes if the model hash is that of an undisturbed run, every exit
code is one of the documented ones, and nothing outlives its limit.
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
from pathlib import Path
from typing import Any, TextIO

import yaml

NODES_PER_MACHINE, ROUNDS, LIMIT, MOST_STARTS = 2, 600, 180.0, 40
HUNG = 999
ENDS = {0, 1, 3, 4, 5, 130, 143, -9, -15}
"""Exit codes of starts that are killed, or that lack a machine that was killed."""


def configuration(nodes: int) -> dict[str, Any]:
    """Returns the experiment; its scheme has state beside the models."""
    return {
        "name": "repeated", "rounds": ROUNDS, "graph": {"name": "ring", "nodes": nodes}, "dataset": "digits",
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"batch_size": 8, "optimizer": {"name": "SGD", "lr": 0.1}, "steps_per_round": 2},
        "sharing": {"name": "choco", "transforms": [{"name": "top_k", "fraction": 0.3}]},
        "checkpoint": {"every": 20}, "evaluation": {"every": 100, "figures": False},
        "failures": {"start_deadline": 20, "on_loss": "stop", "deadline": 10},
    }  # fmt: skip


def start(
    config: Path, run_dir: Path, machines: int, port: int, log: TextIO
) -> "list[subprocess.Popen[bytes]]":
    """The processes of all machines, each in a session of its own."""
    processes = []
    for machine in range(machines):
        place = {
            "DECENTNODE_MACHINE": str(machine), "DECENTNODE_MACHINES": str(machines),
            "DECENTNODE_RENDEZVOUS": f"127.0.0.1:{port}", "DECENTNODE_JOB": "repeated",
        }  # fmt: skip
        command = [sys.executable, "-m", "decentnode", "run", str(config), "--continue", f"run_dir={run_dir}"]
        processes.append(
            subprocess.Popen(
                command,
                env=os.environ | place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
    return processes


def end(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Sends a signal to all processes of a machine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def model_hash(run_dir: Path, machines: int) -> str:
    """Returns what the summary of all says."""
    path = run_dir / "machine-0" if machines > 1 else run_dir
    return str(json.loads((path / "summary.json").read_text())["model_hash"])


def whole(processes: "list[subprocess.Popen[bytes]]") -> list[int]:
    """Returns the exit codes; what outlives the limit is killed and counts as hung."""
    limit, codes = time.monotonic() + LIMIT, []
    for process in processes:
        try:
            codes.append(process.wait(max(0.1, limit - time.monotonic())))
        except subprocess.TimeoutExpired:
            end(process, signal.SIGKILL)
            codes.append(HUNG)
    return codes


def trial(
    config: Path, run_dir: Path, chance: random.Random, options: argparse.Namespace, log: TextIO
) -> list[list[int]]:
    """Returns the exit codes of all starts until one has finished on all machines."""
    history = []
    for number in range(MOST_STARTS):
        processes = start(config, run_dir, options.machines, options.port, log)
        # Earlier starts are killed, from the first import on; the later ones may finish.
        if number < options.kills:
            time.sleep(chance.uniform(0.1, options.seconds))
            for process in processes if options.only is None else [processes[options.only]]:
                end(process, signal.Signals[f"SIG{options.signal}"])
        codes = whole(processes)
        history.append(codes)
        if HUNG in codes or set(codes) == {0}:
            break
    return history


def main() -> None:
    """Prints a line for each trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=1)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--signal", choices=["KILL", "TERM"], default="KILL")
    parser.add_argument("--only", type=int, metavar="MACHINE", help="Kill this one alone.")
    parser.add_argument("--port", type=int, default=29931)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, failed = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="repeated-") as temporary:
        folder = Path(temporary)
        config = folder / "repeated.yaml"
        config.write_text(yaml.safe_dump(configuration(NODES_PER_MACHINE * options.machines)))
        with (folder / "log").open("a") as log:
            codes = whole(start(config, folder / "undisturbed", options.machines, options.port, log))
            if set(codes) != {0}:
                sys.exit(f"the undisturbed run ended with {codes}:\n{(folder / 'log').read_text()[-3000:]}")
            expected = model_hash(folder / "undisturbed", options.machines)
            for number in range(options.trials):
                run_dir = folder / f"trial-{number}"
                begun = log.tell()
                history = trial(config, run_dir, chance, options, log)
                found = model_hash(run_dir, options.machines) if set(history[-1]) == {0} else None
                passes = found == expected and all(code in ENDS for codes in history for code in codes)
                failed += not passes
                print(f"{number:3d} {'same hash' if passes else 'FAULT'} {history}", flush=True)
                if not passes:
                    print((folder / "log").read_text()[begun:][-4000:])
    print(f"{options.trials - failed} of {options.trials} trials end with the hash of the undisturbed run")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
