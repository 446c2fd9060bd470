"""What loading a data set costs, and whether the nodes of a machine share one copy of it.

    python eval/benchmarks/data.py [--small] [--samples N] [--nodes N]

Samples as in LEAF's Shakespeare are made up: 80 characters and the next one, of 660 roles, one JSON file for
training and one for testing. A process loads them, as the launcher does before it forks: seconds, and the
most memory that this took beyond what the process had before. Then two runs of the published experiment
(configs/experiments/decentralizepy/shakespeare.yaml) with 16 nodes and few steps, on these samples and on few
of them: what the samples add to the memory of all processes, shared pages counted once (Pss), and to that of
a node alone (Private). The seconds of loading are compared with those of the published run, 630 rounds of 10
steps, at the seconds of a step that was measured; and with those of one such round.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from _command import CONFIGS, call, read_history
from _report import Target, conclude, parser, show

from decentnode.datasets import Shakespeare
from decentnode.datasets.leaf_texts import CHARACTERS, LENGTH

CONFIG = CONFIGS.parent / "experiments" / "decentralizepy" / "shakespeare.yaml"
ROLES = 660
TEST_EVERY = 5
FEW = 20_000
SAMPLE_BYTES = LENGTH + 8 + 8
"""Characters, label and group."""
PUBLISHED_ROUNDS, PUBLISHED_STEPS = 630, 10
STEPS = 2
CHECK_INTERVAL = 0.3
FIELDS = ("Pss", "Private_Clean", "Private_Dirty")


def write_samples(directory: Path, count: int) -> int:
    """Writes so many samples and returns the size of the files."""
    random, letters = np.random.default_rng(1), np.array(list(dict.fromkeys(CHARACTERS)))
    for part, size in (("train", count - count // TEST_EVERY), ("test", count // TEST_EVERY)):
        users = {}
        for role in range(min(ROLES, size)):
            each = size // ROLES + (role < size % ROLES)
            play = "".join(letters[random.integers(0, len(letters), each + LENGTH)])
            texts = [play[start : start + LENGTH] for start in range(each)]
            users[f"ROLE_{role}"] = {"x": texts, "y": list(play[LENGTH:])}
        content = {"users": list(users), "num_samples": [], "user_data": users}
        (directory / part).mkdir(parents=True)
        (directory / part / f"all_data_{part}.json").write_bytes(msgspec.json.encode(content))
    return sum(file.stat().st_size for file in directory.rglob("*.json"))


def load(directory: Path) -> dict[str, float]:
    """Loads the samples: seconds and megabytes. In a process of its own, because the peak is that of all."""
    before, began = status_mb("VmRSS"), time.perf_counter()
    loaded = Shakespeare(path=str(directory)).whole(0)
    seconds = time.perf_counter() - began
    count = len(loaded.train) + len(loaded.test)
    return {"samples": count, "seconds": seconds, "peak_mb": status_mb("VmHWM") - before}


def loaded_elsewhere(directory: Path) -> dict[str, float]:
    """The same in another process."""
    words = [sys.executable, __file__, "--load", str(directory)]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def status_mb(field: str) -> float:
    """A field of this process's status: VmHWM is the most memory it has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


class SharedMemoryWatch(threading.Thread):
    """Looks at the memory of all processes below this one while something runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.pss_mb = 0.0
        """Of all of them, shared pages counted once, at the fullest look."""
        self._private: dict[int, float] = {}

    @property
    def private_mb(self) -> float:
        """Of the median process, the most that it alone had: of 16 nodes and two others that of a node."""
        return median(self._private.values())

    def run(self) -> None:
        while not self._ended.wait(CHECK_INTERVAL):
            found = {pid: fields for pid in descendants(os.getpid()) if (fields := memory_mb(pid))}
            self.pss_mb = max(self.pss_mb, sum(fields[0] for fields in found.values()))
            for pid, fields in found.items():
                self._private[pid] = max(self._private.get(pid, 0.0), fields[1] + fields[2])

    def __enter__(self) -> "SharedMemoryWatch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        below = [child for child, of in parents.items() if of == parent]
        found += below
        waiting += below
    return found


def memory_mb(pid: int) -> list[float] | None:
    """Megabytes of each of `FIELDS`; None if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    fields = {line.partition(":")[0]: line.split()[1] for line in lines[1:]}
    return [int(fields[name]) / 1024 for name in FIELDS] if fields else None


def run(samples: Path, nodes: int, small: bool) -> tuple[SharedMemoryWatch, float]:
    """The memory of a run with these samples, and the seconds of one local step with all nodes at work."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        out = Path(folder) / "run"
        words = [
            f"graph={{name: ring, nodes: {nodes}}}", f"dataset.path={samples}", "rounds=2",
            f"training.steps_per_round={STEPS}", "evaluation={every: 0, final: false, figures: false}",
            f"run_dir={out}",
        ]  # fmt: skip
        words += ["model.hidden=8"] if small else []
        with SharedMemoryWatch() as memory:
            call(["-m", "decentnode", "run", str(CONFIG), *words])
        histories = [read_history(path, 0.0) for path in sorted((out / "records").iterdir())]
    return memory, median(history.rounds[-1] for history in histories) / STEPS


def measure(count: int, nodes: int, small: bool) -> dict[str, Any]:
    """The figures of loading and of the runs."""
    with tempfile.TemporaryDirectory(prefix="benchmark-samples-") as name:
        folder = Path(name)
        file_mb = write_samples(folder / "many", count) / 2**20
        loaded = (load if small else loaded_elsewhere)(folder / "many")
        write_samples(folder / "few", min(FEW, count))
        many, step = run(folder / "many", nodes, small)
        # A small run has no other, because both would be the same.
        few = many if small else run(folder / "few", nodes, small)[0]
    samples_mb = (loaded["samples"] - min(FEW, count)) * SAMPLE_BYTES / 2**20
    published = PUBLISHED_STEPS * step
    found = {
        "samples": loaded["samples"],
        "file_mb": file_mb,
        "load_seconds": loaded["seconds"],
        "load_peak_of_files": loaded["peak_mb"] / file_mb,
        "step_seconds": step,
        "load_of_published_run": loaded["seconds"] / (PUBLISHED_ROUNDS * published),
        "load_of_one_round": loaded["seconds"] / published,
        "node_private_mb": many.private_mb,
    }
    if not small:
        found["copies_in_memory"] = (many.pss_mb - few.pss_mb) / samples_mb
        found["node_private_of_samples"] = (many.private_mb - few.private_mb) / samples_mb
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--samples", type=float, default=3.7e6)
    options.add_argument("--nodes", type=int, default=16)
    options.add_argument("--load", type=Path, help="load the samples of a directory, and print what it took")
    arguments = options.parse_args()
    if arguments.load:
        print(json.dumps(load(arguments.load)))
        return
    count, nodes = (4000, 3) if arguments.small else (int(arguments.samples), arguments.nodes)
    figures = measure(count, nodes, arguments.small)
    show(figures)
    ratio = {"published run over loading and the run": 1 / (1 + figures["load_of_published_run"])}
    targets = [] if arguments.small else [
        Target(f"seconds to load {figures['samples']:g} samples", figures["load_seconds"], "at most", 10),
        Target("peak of loading over the size of the files", figures["load_peak_of_files"], "at most", 2),
        Target("loading over the published run", figures["load_of_published_run"], "at most", 0.05),
        Target(f"copies of the samples with {nodes} nodes", figures["copies_in_memory"], "at most", 1.5),
        Target("private part of a node", figures["node_private_of_samples"], "at most", 0.05),
    ]  # fmt: skip
    conclude("data", arguments.small, [figures], ratio, targets)


if __name__ == "__main__":
    main()
