"""Shows that a partition heals: nobody waits for ever, and then the models approach each other as before it.

Acceptance figure R4: sixteen nodes gossip without training, their models far apart after the first round.
The halves hear nothing from each other for twenty rounds. After that the distance between the models shrinks
in each round by the factor that the whole graph has, within 5 %.
"""

import argparse
import json
import math
import sys
from itertools import pairwise
from statistics import fmean

from _runs import TINY, Outcome, Trial, faults, run

from decentnode.config.loader import load
from decentnode.errors import ExitCode
from decentnode.graph.base import Graph
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import measure

NODES = 16
FIRST, LAST = 20, 39
"""The rounds of the partition."""
MOST_ERROR = 0.05


def trial(options: argparse.Namespace) -> Trial:
    """The run that is cut in two."""
    halves = [list(range(NODES // 2)), list(range(NODES // 2, NODES))]
    cut = {"name": "partition", "groups": halves, "rounds": [options.first, options.last]}
    pace = {"name": "more_faults:Hang", "seconds": options.pace, "activity": "begin"}
    return Trial("partition", (
        f"rounds={options.rounds}", f"graph={options.graph}",
        f"dataset={{name: quadratic, nodes: {NODES}, dimension: 64, b: normal, partition: natural}}",
        # One step, and none after it: from then on there is nothing but gossip.
        "training.scheduler={name: StepLR, step_size: 1, gamma: 0.0}", "training.optimizer.lr=0.9",
        "evaluation={every: 1, average_model: false, figures: false}",
        f"failures={{deadline: {options.deadline}, grace: 1}}", faults(cut, pace),
    ), limit=120.0 + 40 * options.deadline)  # fmt: skip


def distances(outcome: Outcome) -> dict[int, float]:
    """After each round the mean distance of all models from their mean."""
    return {
        row["round"]: row["consensus_distance"] for row in outcome.evaluations if row["consensus_distance"]
    }


def contraction(found: dict[int, float], first: int) -> float:
    """The mean factor per round from that round on, as long as single precision can tell."""
    least = 1e-5 * max(found.values())
    kept = [found[round] for round in sorted(found) if round >= first and found[round] > least]
    return (
        math.exp(fmean(math.log(late / early) for early, late in pairwise(kept)))
        if len(kept) > 2
        else math.nan
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--graph", default="{name: ring, nodes: 16}", help="as in a configuration")
    parser.add_argument("--first", type=int, default=FIRST, help="the first round of the partition")
    parser.add_argument("--last", type=int, default=LAST, help="its last round")
    parser.add_argument("--rounds", type=int, default=160)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that a round takes at least")
    parser.add_argument("--settle", type=int, default=60, help="rounds after it that do not count")
    parser.add_argument("--deadline", type=float, default=2.0, help="failures.deadline")
    return parser.parse_args(arguments)


def main() -> int:
    """Prints what the run has shown; 1 when it hung, lost a node or did not come together as it should."""
    options = parse()
    plan = trial(options)
    graph: Graph = load(TINY, plan.overrides).graph.make()
    wanted = measure(WeightedGraph(graph, load(TINY, plan.overrides).sharing.weights.make())).contraction
    assert wanted is not None
    outcome = run(plan)
    by_round = distances(outcome)
    rates = {
        "before": contraction({r: d for r, d in by_round.items() if r < options.first}, 1),
        "during": contraction({r: d for r, d in by_round.items() if r <= options.last}, options.first + 3),
        "after": contraction(by_round, options.last + options.settle),
    }
    struck = {(report.rank, report.round) for _, report in outcome.injected if report.fault == "partition"}
    longest = outcome.longest_round(outcome.finished)
    print(f"finished {len(outcome.finished)} of {NODES}, exit {outcome.code}, {outcome.seconds:.1f} s")
    print(f"longest round {longest:.1f} s, {len(struck)} node rounds cut")
    shown = ", ".join(f"{name} {rate:.4f}" for name, rate in rates.items())
    print(f"contraction per round: the whole graph's {wanted:.4f}; {shown}")
    healed = abs(rates["after"] / wanted - 1.0) <= MOST_ERROR
    right = healed and len(outcome.finished) == NODES and outcome.code in (ExitCode.OK, ExitCode.NODES_LOST)
    print(json.dumps({"right": right, "wanted": wanted, **rates, "exit": outcome.code}))
    if not right:
        print(plan.reproducer)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
