"""Shows that memory stays flat over many rounds with a large model.

Acceptance figure R7: a node with 16 neighbors, and these, exchange a model of 45 MB for 1,000 rounds; after
the warm-up the memory of no node may grow by 1 MB or more in 100 rounds. Every second each process is looked
at: its own pages, and its part of those that it shares (Pss). The launcher's, where models are averaged every
so often, goes up and down with that; it is printed for both halves of the run.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from _runs import Trial, run

MOST_SLOPE = 1.0
"""MB in 100 rounds."""
WARM_UP = 0.2
"""Share of the samples that is not judged."""
EVALUATIONS = 50
EVERY = 1.0
"""Seconds between two samples."""


@dataclass
class Sampler(threading.Thread):
    """Looks at what the run that this process has started has in memory."""

    launcher: list[float] = field(default_factory=list)
    """MB, one number for each look."""
    hosts: dict[int, list[float]] = field(default_factory=dict)
    """The same of each node's process."""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        """Until `stop`."""
        while not self._ended.wait(EVERY):
            for launcher in children(os.getpid()):
                hosts = [host for server in children(launcher) for host in children(server)]
                seen = {host: megabytes for host in hosts if (megabytes := proportional_megabytes(host))}
                if len(seen) == len(hosts) > 0:
                    self.launcher.append(proportional_megabytes(launcher))
                    for host, megabytes in seen.items():
                        self.hosts.setdefault(host, []).append(megabytes)

    def stop(self) -> None:
        """Takes no more samples."""
        self._ended.set()
        self.join()

    def slopes(self, rounds: int) -> list[float]:
        """MB of each node in 100 rounds, by least squares over what was seen after the warm-up."""
        table = []
        for samples in self.hosts.values():
            judged = np.array(samples[int(WARM_UP * len(samples)) :])
            at = np.linspace(WARM_UP * rounds, rounds, len(judged))
            table.append(float(100 * np.polyfit(at, judged, 1)[0]))
        return table


def children(pid: int) -> list[int]:
    """The living processes that this one has started."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def proportional_megabytes(pid: int) -> float:
    """A process's share of the memory, in MB; 0 of one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def trial(options: argparse.Namespace) -> Trial:
    """The run: a star, whose middle has all the others as neighbors, and nearly all numbers in one matrix."""
    width, nodes = round(math.sqrt(options.megabytes * 1e6 / 4)), options.neighbors + 1
    return Trial("memory", (
        f"rounds={options.rounds}", f"graph={{name: star, nodes: {nodes}}}",
        f"dataset={{name: synthetic, nodes: {nodes}, samples_per_node: 8, features: 64, classes: 10}}",
        f"model={{name: mlp, hidden: [{width}, {width}]}}", "training.loss=CrossEntropyLoss",
        "training.batch_size=4", f"communication={{name: zeromq, local: {options.local}}}",
        f"evaluation.every={max(1, options.rounds // EVALUATIONS)}", "failures={deadline: 30}",
    ), limit=options.limit)  # fmt: skip


def main() -> int:
    """Prints how fast memory grows; 1 when it does so too fast, or the run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--neighbors", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=45.0)
    parser.add_argument("--local", default="shared_memory", choices=("shared_memory", "ipc", "tcp"))
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which it counts as hung")
    options = parser.parse_args()
    sampler = Sampler()
    sampler.start()
    outcome = run(trial(options))
    sampler.stop()
    looks = len(sampler.launcher)
    if outcome.code != 0 or looks < 10 or len(sampler.hosts) != options.neighbors + 1:
        print(outcome.text, f"exit code {outcome.code}, {looks} looks at {len(sampler.hosts)} processes")
        return 1
    slopes = sampler.slopes(options.rounds)
    most = max(map(max, sampler.hosts.values()))
    halves = sampler.launcher[: looks // 2], sampler.launcher[looks // 2 :]
    print(f"nodes: at most {most:.0f} MB; {looks} looks in {outcome.seconds:.0f} s")
    print(f"launcher: at most {max(halves[0]):.0f} MB in the first half, {max(halves[1]):.0f} in the second")
    verdict = "met" if max(slopes) < MOST_SLOPE else "MISSED"
    print(f"{verdict}: {min(slopes):+.3f} to {max(slopes):+.3f} MB in 100 rounds (below {MOST_SLOPE})")
    print(json.dumps({"figure": "R7", "slopes": slopes, "most_mb": most, "seconds": outcome.seconds}))
    return int(max(slopes) >= MOST_SLOPE)


if __name__ == "__main__":
    sys.exit(main())
