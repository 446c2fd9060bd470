"""What recording costs the honest nodes: rounds of the same run with and without an adversary that records.

    eval/attacks/recording.py [--pairs 7] [KEY=VALUE ...]

Runs alternate. Compared are the medians of the honest nodes' seconds per round and the processor time of all.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from decentnode.results.records import read_records

ROOT = Path(__file__).resolve().parents[2]
RUN = [
    "graph={name: ring, nodes: 4}", "dataset={name: digits, partition: iid}", "model.hidden=[512, 128]",
    "rounds=60", "training.steps_per_round=10", "evaluation={every: 0, final: false, figures: false}",
]  # fmt: skip
RECORDS = "adversaries=[{name: record, ranks: [0], every: 1}]"
HONEST = (1, 2, 3)


def main() -> None:
    """Prints a line for each pair of runs, and their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    rounds, processor = [], []
    for pair in range(arguments.pairs):
        plain, recorded = (measured([*arguments.overrides, *more], pair) for more in ([], [RECORDS]))
        rounds.append(recorded[0] / plain[0])
        processor.append(recorded[1] / plain[1])
        print(f"{plain[0] * 1e3:8.2f} ms a round, recorded {recorded[0] * 1e3:8.2f} ms", flush=True)
    print(
        f"median of {len(rounds)}: seconds x {median(rounds):.4f}, processor time x {median(processor):.4f}"
    )


def measured(overrides: list[str], seed: int) -> tuple[float, float]:
    """Seconds of a round of an honest node, the median, and processor seconds of the run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        config = str(ROOT / "configs" / "quickstart.yaml")
        command = [sys.executable, "-m", "decentnode", "run", config, *RUN, *overrides, f"run_dir={run}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, f"seed={seed + 1}"], cwd=ROOT, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spans = []
        for rank in HONEST:
            ends = [record.seconds for record in read_records(run / "records" / f"{rank:05d}.jsonl")]
            # The first rounds warm up.
            spans += [b - a for a, b in pairwise(ends[5:])]
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return median(spans), used


if __name__ == "__main__":
    main()
