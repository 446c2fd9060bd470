"""Shows that memory stays flat over many rounds with a large model.

Acceptance figure R7: nodes of a complete graph exchange a large model for 1,000 rounds; what only a node's
process uses is taken from its records, and the slope after the warm-up must stay below 1 MB in 100 rounds.
"""

import argparse
import json
import sys

import numpy as np
from _runs import Outcome, Trial, run

MOST_SLOPE = 1.0
"""MB in 100 rounds."""
WARM_UP = 0.2
"""Share of the rounds that is not judged."""
EVALUATIONS = 50


def trial(options: argparse.Namespace) -> Trial:
    """The run; the quadratic model is a vector of as many numbers as wanted."""
    elements = round(options.megabytes * 1e6 / 4)
    return Trial("memory", (
        f"rounds={options.rounds}", f"graph={{name: fully_connected, nodes: {options.nodes}}}",
        f"dataset={{name: quadratic, nodes: {options.nodes}, dimension: {elements}, partition: natural}}",
        f"communication={{name: zeromq, local: {options.local}}}",
        f"evaluation.every={max(1, options.rounds // EVALUATIONS)}", "failures={deadline: 30}",
    ), limit=options.limit)  # fmt: skip


def slope(outcome: Outcome, rank: int) -> float:
    """MB in 100 rounds, by least squares over what was recorded after the warm-up."""
    records = [record for record in outcome.records[rank] if record.memory_mb is not None]
    judged = [record for record in records if record.round >= WARM_UP * records[-1].round]
    rounds = np.array([record.round for record in judged])
    memory = np.array([record.memory_mb for record in judged])
    return float(100 * np.polyfit(rounds, memory, 1)[0])


def main() -> int:
    """Prints the slope of every node; 1 when one is too steep, or the run failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=45.0)
    parser.add_argument("--local", default="shared_memory", choices=("shared_memory", "ipc", "tcp"))
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which it counts as hung")
    options = parser.parse_args()
    outcome = run(trial(options))
    if outcome.code != 0:
        print(outcome.text, f"exit code {outcome.code}")
        return 1
    slopes = {rank: slope(outcome, rank) for rank in outcome.records}
    last = {
        rank: next(r.memory_mb for r in reversed(records) if r.memory_mb is not None)
        for rank, records in outcome.records.items()
    }
    steepest = max(slopes.values())
    for rank, value in slopes.items():
        print(f"rank {rank}: {last[rank]:.1f} MB at the end, {value:+.3f} MB in 100 rounds")
    verdict = "met" if steepest < MOST_SLOPE else "MISSED"
    print(
        f"{verdict}: at most {steepest:+.3f} MB in 100 rounds (below {MOST_SLOPE}); {outcome.seconds:.0f} s"
    )
    print(json.dumps({"figure": "R7", "slopes": slopes, "last_mb": last, "seconds": outcome.seconds}))
    return int(steepest >= MOST_SLOPE)


if __name__ == "__main__":
    sys.exit(main())
