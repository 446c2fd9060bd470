"""Shows how soon a dead or a stopped node is noticed, and that nobody is accused who is well.

Acceptance figure R14: all neighbors go on without it at most a second and the grace after SIGKILL, and the
deadline, a second to look at it and the grace after SIGSTOP. There is no false accusation in 10,000 rounds of
nodes while twice as many busy processes as the machine has cores take their time away.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from statistics import median

from _runs import Outcome, Trial, faults, run

NODES, DEGREE = 16, 4
GRACE = 1.0
KINDS = {"kill": "crash", "stop": "stop"}


def struck(kind: str, seed: int, deadline: float) -> Trial:
    """A run in which a node dies, or stands still for much longer than anybody waits."""
    fault = {"name": KINDS[kind], "ranks": seed % NODES, "rounds": 10 + seed % 7, "activity": "train"}
    if kind == "stop":
        fault["seconds"] = 20.0 * deadline
    return Trial(f"{kind} {seed}", (
        "rounds=60", *graph(seed), f"failures={{deadline: {deadline}, grace: {GRACE}}}", faults(fault),
    ))  # fmt: skip


def graph(seed: int) -> tuple[str, ...]:
    """The overrides that set the graph, and samples for it."""
    return (
        f"seed={seed}",
        f"graph={{name: regular, nodes: {NODES}, degree: {DEGREE}, seed: {seed}}}",
        f"dataset.nodes={NODES}",
    )


def latencies(outcome: Outcome) -> list[float]:
    """Of each neighbor, the seconds from the fault to its going on; both as the launcher was told."""
    ((at, fault),) = outcome.injected
    return [when - at for when, report in outcome.missing if report.peer == fault.rank]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that compute without an end, while the block runs."""
    children = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            while True:
                pass
        children.append(pid)
    try:
        yield
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def accusations(node_rounds: int, deadline: float) -> tuple[int, Outcome]:
    """How often a node gave up a peer that was well, while the machine was much too busy."""
    rounds = -(-node_rounds // NODES)
    plan = Trial(
        "busy", (f"rounds={rounds}", *graph(1), f"failures={{deadline: {deadline}, grace: {GRACE}}}"),
        limit=600.0,
    )  # fmt: skip
    with busy_loops(2 * (os.cpu_count() or 1)):
        outcome = run(plan)
    return len(outcome.missing), outcome


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each kind")
    parser.add_argument("--deadline", type=float, default=2.0, help="failures.deadline of all runs")
    parser.add_argument("--node-rounds", type=int, default=10_000, help="rounds under load, over all nodes")
    return parser.parse_args(arguments)


def main() -> int:
    """Prints the latencies and the false accusations; 1 when they are too many or too long."""
    options, spans, right = parse(), dict[str, object](), True
    for kind, most in (("kill", 1.0 + GRACE), ("stop", options.deadline + 1.0 + GRACE)):
        times: list[float] = []
        for seed in range(1, options.seeds + 1):
            plan = struck(kind, seed, options.deadline)
            seen = latencies(run(plan))
            if len(seen) != DEGREE or max(seen) > most:
                right = False
                print(
                    f"{len(seen)} of {DEGREE} neighbors, seconds {seen}:\n    {plan.reproducer}", flush=True
                )
            times += seen
        spans[kind] = {"median": median(times), "most": max(times), "allowed": most, "neighbors": len(times)}
        print(f"{kind}: {spans[kind]}", flush=True)
    wrong, outcome = accusations(options.node_rounds, options.deadline)
    done = sum(map(len, outcome.records.values()))
    print(
        f"busy: {wrong} false accusations in {done} node rounds, {outcome.seconds:.0f} s, exit {outcome.code}"
    )
    for _, report in outcome.missing:
        print(
            f"    rank {report.rank}, round {report.round + 1}: without rank {report.peer}: {report.reason}"
        )
    right = right and not wrong and done >= options.node_rounds
    print(json.dumps({**spans, "false_accusations": wrong, "node_rounds": done, "right": right}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
