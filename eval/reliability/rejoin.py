"""Shows that a node that is killed and started again takes part again within two rounds.

Acceptance figure R2: one of sixteen nodes is killed every five rounds, for two hundred rounds, and started
again. All finish. What is counted are the rounds from the one that the furthest node was in when the new
process was ready to the first one that the node recorded with a neighbor's model in it.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from statistics import median

import numpy as np
from _runs import Outcome, Trial, faults, run

from decentnode.core.rng import generator
from decentnode.errors import ExitCode

MOST_ROUNDS = 2


@dataclass(frozen=True)
class Return:
    """A node that was killed, and how it came back."""

    rank: int
    killed: int
    """The round in which it was."""
    up: int | None
    """The furthest node's round when its new process was ready; None: there was none."""
    back: int | None
    """The first round in which it heard a neighbor again."""

    @property
    def rounds(self) -> float:
        """How many it took; infinity when it never came back."""
        return self.back - self.up if self.up is not None and self.back is not None else float("inf")


def trial(options: argparse.Namespace) -> Trial:
    """The run, with a victim every few rounds; nobody is struck again before the others were."""
    draw = generator(options.seed, "rejoin")
    order = [int(rank) for _ in range(options.rounds) for rank in draw.permutation(options.nodes)]
    rounds = range(options.every, options.rounds - options.every, options.every)
    crashes = [
        {"name": "crash", "ranks": rank, "rounds": round, "activity": "train"}
        for rank, round in zip(order, rounds, strict=False)
    ]
    pace = {"name": "more_faults:Hang", "seconds": options.pace, "activity": "begin"}
    return Trial("rejoin", (
        f"rounds={options.rounds}", f"seed={options.seed}", "checkpoint.every=1",
        f"graph={{name: regular, nodes: {options.nodes}, degree: 4, seed: 1}}",
        f"dataset.nodes={options.nodes}",
        "failures={deadline: 5, grace: 1, restart: {attempts: 15}}", faults(pace, *crashes),
    ), limit=120.0 + options.rounds * (1.0 + options.pace))  # fmt: skip


def returns(outcome: Outcome) -> list[Return]:
    """One for each node that was killed, in the order of the killings."""
    rejoins = []
    crashes = [report for _, report in outcome.injected if report.fault == "crash"]
    for crash in crashes:
        later = [other.round for other in crashes if other.rank == crash.rank and other.round > crash.round]
        until = min(later, default=sys.maxsize)
        ups = [
            round for process, round in outcome.ups if process == crash.rank and crash.round <= round <= until
        ]
        heard = [
            record.round
            for record in outcome.records.get(crash.rank, [])
            if crash.round < record.round <= until and record.heard
        ]
        rejoins.append(Return(crash.rank, crash.round, min(ups, default=None), min(heard, default=None)))
    return rejoins


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=5, help="rounds between two killings")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds that a round takes at least")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main() -> int:
    """Prints a line for each killing and one of JSON; 1 when a node did not come back in time."""
    options = parse()
    plan = trial(options)
    outcome = run(plan)
    rejoins = returns(outcome)
    for back in rejoins:
        print(f"rank {back.rank:>2} killed in round {back.killed:>3}, up in {back.up}, back in {back.back}")
    counts = [returned.rounds for returned in rejoins]
    sane = all(bool(np.isfinite(model).all()) for model in outcome.models.values())
    right = (
        outcome.code in (ExitCode.OK, ExitCode.NODES_LOST)
        and len(outcome.finished) == options.nodes
        and max(counts, default=0.0) <= MOST_ROUNDS
        and sane
    )
    print(json.dumps({
        "killed": len(rejoins), "finished": len(outcome.finished), "exit": outcome.code,
        "never_back": sum(returned.back is None for returned in rejoins), "right": right,
        "median_rounds": median(counts) if counts else None, "most_rounds": max(counts, default=None),
        "longest_round": outcome.longest_round(outcome.finished), "seconds": round(outcome.seconds, 1),
    }))  # fmt: skip
    if not right:
        print(plan.reproducer)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
