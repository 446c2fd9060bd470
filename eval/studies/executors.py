"""Sweeps of six runs by each executor: the model hashes of a local sweep, and nothing left running.

    python eval/studies/executors.py                     # those whose libraries are installed
    python eval/studies/executors.py --tools TOOLS       # as root: in a Slurm that TOOLS/up.sh starts

In Slurm one run is cancelled amid its rounds and submitted again, the runs are more than MaxArraySize, which
is set to 4, a second sweep submits nothing that is queued, and a run has two machines. TOOLS is as for
eval/slurm/ends.py.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "eval" / "slurm"))
from ends import hash_of, in_a_slurm_of_ours, rounds_of, waited  # noqa: E402

ARRAY_SIZE = 4
MARK = "DECENTNODE_TRIAL"
"""A variable by which processes of a trial are found."""
LIBRARIES = {"ray": "ray", "dask": "distributed", "submitit": "submitit"}
ON = {"dask": "{name: dask, workers: 2}", "submitit": "{name: submitit, cluster: local}"}
BASE = """\
name: six
rounds: {rounds}
graph: {{name: ring, nodes: 4}}
dataset: {{name: digits, train_size: 200, test_size: 60}}
model: {{name: mlp, hidden: [16]}}
sharing: {{name: "paced:Paced", pause: {pause}}}
training: {{optimizer: {{name: SGD, lr: 0.1}}, batch_size: 16, steps_per_round: 2}}
evaluation: {{every: 0, figures: false}}
"""
STUDY = "base: six.yaml\naxes: {training.optimizer.lr: [0.05, 0.1, 0.2]}\nseeds: 2\n"
TWO = "base: six.yaml\nset: {mapping: {name: environment, nodes_per_machine: 2}}\n"
LIMIT = 300.0


class Trials:
    """Sweeps of one study in a folder that all machines see."""

    def __init__(self, work: Path, pause: float, rounds: int) -> None:
        self.work = work
        work.mkdir(parents=True)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "eval" / "slurm")])
        os.environ[MARK] = str(work)
        (work / "six.yaml").write_text(BASE.format(rounds=rounds, pause=pause))
        (work / "study.yaml").write_text(STUDY)
        (work / "two.yaml").write_text(TWO)
        self.expected: dict[str, str] = {}
        """By run the hash of the local sweep."""
        self.is_right = True

    def sweep(self, name: str, *words: str, study: str = "study") -> tuple[int, str]:
        """Sweeps a study with a directory of its own; returns the exit code and what was printed."""
        command = [sys.executable, "-P", "-m", "decentnode", "sweep", f"{study}.yaml"]
        done = subprocess.run(
            [*command, f"out={self.work / name}", *words],
            cwd=self.work, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def states(self, name: str, on: str = "local") -> dict[str, str]:
        """Returns the state of each run of a sweep."""
        _, text = self.sweep(name, "--list", "--json", "--on", on)
        return {run["name"]: run["state"] for run in json.loads(text[text.index("[") :])}

    def hashes(self, name: str) -> dict[str, str]:
        """Returns the model hash of each run of a sweep."""
        runs = sorted(path.parent for path in (self.work / name).glob("*/seed-?/summary.json"))
        return {str(run.relative_to(self.work / name)): hash_of(run) for run in runs}

    def say(self, what: str, is_right: bool) -> None:
        """Prints a line about a trial."""
        self.is_right &= is_right
        print(f"{what}: {'as expected' if is_right else 'NOT AS EXPECTED'}", flush=True)

    def nothing_left(self) -> bool:
        """Waits a moment until no process of these trials but this one is left."""
        limit = time.monotonic() + 20.0
        while (left := marked(str(self.work))) and time.monotonic() < limit:
            time.sleep(0.2)
        for pid in left:
            print(f"  left: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        return not left

    def by(self, name: str) -> None:
        """Sweeps by one executor, twice; the second time nothing is to do."""
        began = time.monotonic()
        code, text = self.sweep(name, "--on", ON.get(name, name))
        seconds = time.monotonic() - began
        found = self.hashes(name)
        self.expected = self.expected or found
        is_right = code == 0 and len(found) == 6 and found == self.expected and self.nothing_left()
        again, nothing = self.sweep(name, "--on", ON.get(name, name))
        is_right &= again == 0 and "nothing to do" in nothing
        self.say(f"{name}: 6 runs in {seconds:.1f} s", is_right)
        if not is_right:
            print(code, text, found, sep="\n")

    def interrupted(self, name: str) -> None:
        """Interrupts a sweep amid its rounds; nothing is left, and the same command continues it."""
        out, command = (
            f"{name}-interrupted",
            [sys.executable, "-P", "-m", "decentnode", "sweep", "study.yaml"],
        )
        words = [*command, f"out={self.work / out}", "--on", ON.get(name, name)]
        log = (self.work / f"{out}.txt").open("w")
        sweep = subprocess.Popen(
            words, cwd=self.work, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        waited(lambda: [*(self.work / out).glob("*/seed-?/records/*")], "a run")
        # As a terminal does, which tells all processes of the group.
        os.killpg(sweep.pid, signal.SIGINT)
        code = sweep.wait(LIMIT)
        is_right = code == 130 and self.nothing_left()
        again, text = self.sweep(out, "--on", ON.get(name, name))
        is_right &= again == 0 and self.hashes(out) == self.expected
        self.say(f"{name}: interrupted (exit code {code}), and continued", is_right)
        if not is_right:
            print(again, text, (self.work / f"{out}.txt").read_text()[-3000:], sep="\n")

    def in_slurm(self) -> None:
        """Sweeps in Slurm, with one run cancelled amid its rounds and submitted again."""
        on = "slurm"
        began = time.monotonic()
        code, text = self.sweep("slurm", "--on", on)
        jobs = [line.split()[2].rstrip(":") for line in text.splitlines() if line.startswith("submitted job")]
        self.say(f"slurm: arrays {jobs} of at most {ARRAY_SIZE} tasks", code == 0 and len(jobs) == 2)
        if not jobs:
            print(text)
            return
        second, text = self.sweep("slurm", "--on", on)
        self.say("slurm: a second sweep submits nothing", second == 0 and "submitted job" not in text)
        killed = self.work / "slurm" / "lr-0.05" / "seed-0"
        waited(lambda: rounds_of(killed) >= 5, "round 5")
        subprocess.run(["scancel", f"{jobs[0]}_0"], check=True)
        waited(lambda: self.queue() == "", "the end of all jobs")
        states = self.states("slurm", on)
        cancelled = states.pop("lr-0.05/seed-0")
        self.say(f"slurm: the cancelled run is {cancelled!r}", cancelled == "to resume")
        self.say("slurm: the others are done", set(states.values()) == {"done"})
        code, text = self.sweep("slurm", "--on", "{name: slurm, wait: true}")
        is_right = code == 0 and text.count("submitted job") == 1 and ": 1 run\n" in text
        self.say("slurm: the same command submits the one that is missing, which continues", is_right)
        if not is_right:
            print(text)
        found = self.hashes("slurm")
        self.say(f"slurm: hashes of 6 runs after {time.monotonic() - began:.0f} s", found == self.expected)
        self.on_two_machines()
        self.say("slurm: nothing is left", self.queue() == "" and self.nothing_left())

    def on_two_machines(self) -> None:
        """Sweeps a study whose run has two machines; the models are those of a run on one."""
        code, text = self.sweep("two", "--on", "{name: slurm, wait: true}", study="two")
        runs = [*(self.work / "two").glob("*/seed-0")]
        parts = sorted(path.name for run in runs for path in run.glob("machine-*"))
        found = hash_of(runs[0] / "machine-0") if parts else "nothing"
        is_right = parts == ["machine-0", "machine-1"] and found == self.expected["lr-0.1/seed-0"]
        self.say(f"slurm: a run on {' and '.join(parts)} has the hash of one machine", is_right and not code)
        if not is_right:
            logs = [path.read_text()[-3000:] for path in (self.work / "two").glob("*.log")]
            print(code, text, found, *logs, sep="\n")

    @staticmethod
    def queue() -> str:
        """Returns the jobs of this user that have not ended."""
        return subprocess.run(
            ["squeue", "--me", "--noheader"], capture_output=True, text=True, check=True
        ).stdout.strip()  # fmt: skip


def marked(value: str) -> list[int]:
    """Returns the processes, but this one, whose environment has the mark of a trial."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={value}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def main() -> int:
    """Returns 0 if all was as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", action="append", default=[], help="one executor; may be repeated")
    parser.add_argument("--tools", type=Path, help="the folder of up.sh, on.sh and down.sh")
    parser.add_argument("--environment", type=Path, default=Path(sys.prefix), help="with bin/python")
    given = parser.parse_args()
    if given.tools:
        return in_a_slurm_of_ours(
            given.tools.absolute(), None, given.environment.absolute(), ["--on=slurm"],
            script="eval/studies/executors.py", settings={"MaxArraySize": ARRAY_SIZE},
        )  # fmt: skip
    names = given.on or [name for name, library in LIBRARIES.items() if find_spec(library)]
    is_slurm = "slurm" in names
    # Long enough for a run to be cancelled amid its rounds.
    folder = Path("runs").absolute() / f"executors-{os.getpid()}"
    trials = Trials(folder, pause=0.2 if is_slurm else 0.0, rounds=60 if is_slurm else 40)
    trials.by("local")
    for name in names:
        if name == "slurm":
            trials.in_slurm()
        else:
            trials.by(name)
            trials.interrupted(name)
    return 0 if trials.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
