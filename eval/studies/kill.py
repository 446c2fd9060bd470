"""Kills a sweep at random moments, by SIGKILL or Ctrl-C, and continues it until all runs are done.

    python eval/studies/kill.py [--kills N] [--seed S] [--jobs N]

At the end every run has each of its rounds once, no finished run has been touched again, no process is left,
and all models are those of a sweep that nothing disturbed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from decentnode.results import read_records

ROOT = Path(__file__).parents[2]
LIMIT = 300.0
ROUNDS = 80
EARLY = 0.1
OF_A_RUN = 3
"""Processes: launcher, fork server, nodes; a forecast has one."""
MOST_SECONDS = 10.0
STUDY = """
base: {base}
set:
  rounds: {rounds}
  evaluation.every: 40
  graph: {{name: ring, nodes: 4}}
axes:
  kind:
    gossip: {{}}
    push_sum: {{sharing: push_sum}}
    saved: {{checkpoint.every: 20, training.optimizer.lr: 0.05}}
seeds: 4
jobs: {jobs}
out: {out}
"""


@dataclass
class Trial:
    """One study that is killed again and again."""

    folder: Path
    jobs: str
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of each finished run its id, and the time of its summary."""

    def study(self, name: str) -> Path:
        """The file of a study with a directory of its own."""
        path = self.folder / f"{name}.yaml"
        path.write_text(
            STUDY.format(
                base=ROOT / "configs" / "quickstart.yaml", rounds=ROUNDS, jobs=self.jobs,
                out=self.folder / name,
            )
        )  # fmt: skip
        return path

    def start(self, name: str) -> subprocess.Popen[str]:
        """A sweep in a session of its own."""
        words = [sys.executable, "-m", "decentnode", "sweep", str(self.study(name))]
        output = (self.folder / f"{name}.out").open("a")
        return subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, text=True
        )

    def check(self) -> None:
        """Fails if a finished run has changed; remembers those that are finished now."""
        for summary in (self.folder / "killed").glob("*/seed-?/summary.json"):
            run = summary.parent
            content = json.loads(summary.read_text())
            if content["finished_nodes"] < content["nodes"]:
                continue
            found = json.loads((run / "run.json").read_text())["run_id"], summary.stat().st_mtime_ns
            assert self.seen.setdefault(str(run), found) == found, f"{run} was repeated"


def below(pid: int) -> list[int]:
    """All living processes that descend from one."""
    found, queue = [], [pid]
    while queue:
        parent = queue.pop()
        try:
            words = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        found += map(int, words)
        queue += map(int, words)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_once(trial: Trial, chance: random.Random) -> int | None:
    """Starts the sweep and ends it at random; returns its exit code if it was done before."""
    sweep = trial.start("killed")
    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
    # Mostly amid runs, sometimes before the first one.
    is_early = chance.random() < EARLY
    while not is_early and sweep.poll() is None and len(below(sweep.pid)) < OF_A_RUN:
        time.sleep(0.02)
    try:
        return sweep.wait(chance.uniform(0.0, MOST_SECONDS))
    except subprocess.TimeoutExpired:
        pass
    tree = below(sweep.pid)
    os.kill(sweep.pid, number)
    sweep.wait(LIMIT)
    limit = time.monotonic() + 10.0
    while left := [pid for pid in tree if is_alive(pid)]:
        assert time.monotonic() < limit, f"{number.name} left the processes {left}"
        time.sleep(0.05)
    trial.check()
    done = len(trial.seen)
    print(f"{number.name}: {len(tree)} processes ended, {done} runs are done", flush=True)
    return None


def hashes(out: Path) -> dict[str, str]:
    """The model hash of each run."""
    found = {}
    for summary in sorted(out.glob("*/seed-?/summary.json")):
        run = summary.parent
        rounds = [[one.round for one in read_records(path)] for path in (run / "records").iterdir()]
        assert rounds == [list(range(ROUNDS))] * 4, f"{run} has rounds twice, or not at all"
        found[str(run.relative_to(out))] = json.loads(summary.read_text())["model_hash"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kill-sweep-") as folder:
        trial = Trial(Path(folder), options.jobs)
        code = None
        for _ in range(options.kills):
            code = kill_once(trial, chance)
            if code is not None:
                break
        # What the kills have left.
        code = trial.start("killed").wait(LIMIT) if code is None else code
        assert code == 0, (trial.folder / "killed.out").read_text()[-3000:]
        trial.check()
        assert trial.start("straight").wait(LIMIT) == 0
        found, expected = (hashes(trial.folder / name) for name in ("killed", "straight"))
        assert found == expected and len(found) == 12, f"{found}\n{expected}"
        aside = len(list((trial.folder / "killed").glob("*/seed-?.*-*/")))
        resumed = sum(
            "continues after round" in path.read_text()
            for path in (trial.folder / "killed").glob("*/seed-?.log")
        )
        print(f"12 runs, each round once, all models as expected; {aside} begun again, {resumed} resumed")


if __name__ == "__main__":
    main()
