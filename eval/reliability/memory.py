"""Shows that memory stays flat over many rounds with a large model.

Acceptance figure R7: nodes of a complete graph exchange a large model for 1,000 rounds; after the warm-up
the memory of a node must grow by less than 1 MB in 100 rounds. What all processes of the run have together
is looked at every few seconds, shared pages counted once (Pss): pages that several processes share are now
and then the private ones of any of them, so that what one process has alone goes up and down by some
hundred MB.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from _runs import Trial, run, session_of

MOST_SLOPE = 1.0
"""MB in 100 rounds."""
WARM_UP = 0.2
"""Share of the samples that is not judged."""
EVALUATIONS = 50
EVERY = 2.0
"""Seconds between two samples."""


@dataclass
class Sampler(threading.Thread):
    """Looks at what the run that this process has started has in memory."""

    samples: list[float] = field(default_factory=list)
    """MB of all its processes."""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        """Until `stop`."""
        while not self._ended.wait(EVERY):
            leaders = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            total = sum(proportional_megabytes(pid) for leader in leaders for pid in session_of(int(leader)))
            if total:
                self.samples.append(total)

    def stop(self) -> None:
        """Takes no more samples."""
        self._ended.set()
        self.join()

    def slope(self, rounds: int, nodes: int) -> float:
        """MB of a node in 100 rounds, by least squares over what was seen after the warm-up."""
        judged = np.array(self.samples[int(WARM_UP * len(self.samples)) :])
        at = np.linspace(WARM_UP * rounds, rounds, len(judged))
        return float(100 * np.polyfit(at, judged, 1)[0] / nodes)


def proportional_megabytes(pid: int) -> float:
    """A process's share of the memory, in MB; 0 of one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def trial(options: argparse.Namespace) -> Trial:
    """The run; the quadratic model is a vector of as many numbers as wanted."""
    elements = round(options.megabytes * 1e6 / 4)
    return Trial("memory", (
        f"rounds={options.rounds}", f"graph={{name: fully_connected, nodes: {options.nodes}}}",
        f"dataset={{name: quadratic, nodes: {options.nodes}, dimension: {elements}, partition: natural}}",
        f"communication={{name: zeromq, local: {options.local}}}",
        f"evaluation.every={max(1, options.rounds // EVALUATIONS)}", "failures={deadline: 30}",
    ), limit=options.limit)  # fmt: skip


def main() -> int:
    """Prints how fast memory grows; 1 when it does so too fast, or the run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=45.0)
    parser.add_argument("--local", default="shared_memory", choices=("shared_memory", "ipc", "tcp"))
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which it counts as hung")
    options = parser.parse_args()
    sampler = Sampler()
    sampler.start()
    outcome = run(trial(options))
    sampler.stop()
    if outcome.code != 0 or len(sampler.samples) < 10:
        print(outcome.text, f"exit code {outcome.code}, {len(sampler.samples)} samples")
        return 1
    slope = sampler.slope(options.rounds, options.nodes)
    most, last = max(sampler.samples), sampler.samples[-1]
    print(f"all processes together: at most {most:.0f} MB, {last:.0f} MB when seen last")
    verdict = "met" if slope < MOST_SLOPE else "MISSED"
    print(f"{verdict}: {slope:+.3f} MB of a node in 100 rounds (below {MOST_SLOPE}); {outcome.seconds:.0f} s")
    found = {"figure": "R7", "slope": slope, "most_mb": most, "last_mb": last, "seconds": outcome.seconds}
    print(json.dumps(found))
    return int(slope >= MOST_SLOPE)


if __name__ == "__main__":
    sys.exit(main())
