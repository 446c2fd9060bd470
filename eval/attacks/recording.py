"""What recording costs the honest nodes: rounds of one run with and without an adversary that records.

    eval/attacks/recording.py [--blocks 40] [KEY=VALUE ...]

The adversary records in every second block of rounds, so both kinds of rounds meet the same machine. Compared
are neighboring blocks: the median of the honest nodes' seconds per round.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from decentnode.attacks.passive.record import Record
from decentnode.formats.records import read_records

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 20
"""Rounds of a block; the first two do not count: the disk may still take the bytes of the block before."""
RUN = [
    "graph={name: ring, nodes: 4}", "dataset={name: digits, partition: iid}", "model.hidden=[512, 128]",
    "training.steps_per_round=10", "evaluation={every: 0, final: false, figures: false}",
    "adversaries=[{name: 'recording:EverySecondBlock', ranks: [0], every: 1}]",
]  # fmt: skip
HONEST = (1, 2, 3)


@dataclass(kw_only=True)
class EverySecondBlock(Record):
    """As `record`, in blocks of odd number."""

    def records(self, round: int, rounds: int, keeps_all: bool) -> bool:
        return round // BLOCK % 2 == 1


def main() -> None:
    """Prints the ratio with its interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    blocks = seconds_of_blocks([*arguments.overrides, f"rounds={BLOCK * arguments.blocks}"])
    # Each recorded block stands between two that are not.
    ratios = [2 * b / (a + c) for a, b, c in zip(blocks[::2], blocks[1::2], blocks[2::2], strict=False)][1:]
    drawn = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    print(
        f"{statistics.median(blocks[::2]) * 1e3:.2f} ms a round; recorded x {statistics.median(ratios):.4f} "
        f"({drawn[50]:.4f} to {drawn[1949]:.4f}, 95 %, {len(ratios)} blocks)"
    )


def seconds_of_blocks(overrides: list[str]) -> list[float]:
    """The median seconds of an honest node's round, block by block."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        config = str(ROOT / "configs" / "quickstart.yaml")
        command = [sys.executable, "-m", "decentnode", "run", config, *RUN, *overrides, f"run_dir={run}"]
        paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": paths}
        )
        spans: dict[int, list[float]] = {}
        for rank in HONEST:
            ends = [record.seconds for record in read_records(run / "records" / f"{rank:05d}.jsonl")]
            for round, (a, b) in enumerate(pairwise(ends), 1):
                if round % BLOCK >= 2:
                    spans.setdefault(round // BLOCK, []).append(b - a)
    return [statistics.median(spans[block]) for block in sorted(spans)]


if __name__ == "__main__":
    main()
