"""Shows that nothing hangs and no model gets wrong: nine faults, in six activities, in five schemes.

Acceptance figure R3, 270 runs. Node 2 is struck in one round (messages: whatever it receives during the
activity in ten rounds). A run is right when it ends in time, when the nodes that were not struck finish with
models near those of an undisturbed run (the very same where nothing was lost), and when the fault was
reported. A scheme that tolerates no loss is right, too, when it ends with exit code 4 and says why. The long
stop outlasts the watchdog, which kills the node: `--faults stop --rounds 40000` shows one that rejoins.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from _judge import Expectation, wrongs
from _runs import TINY, Outcome, Trial, faults, run_all

from decentnode.config.loader import load
from decentnode.sharing.base import Sharing

STRUCK = 2
ROUND, LAST = 5, 14
ROUNDS = 20
GRACE_SECONDS = 1.0
SLACK = 1.5
"""Seconds by which a round may be longer than deadline and grace: deadlines are looked at once a second."""
STRETCH = 0.03
"""Seconds that the activity takes at least in which messages are struck."""
MESSAGE_FAULTS = ("drop", "duplicate", "reorder", "corrupt", "delay")
ACTIVITIES = ("train", "send", "receive", "mix", "checkpoint", "begin")
SCHEMES = {
    "gossip": "gossip",
    "choco": "{name: choco, gamma: 0.5, transforms: [{name: top_k, fraction: 0.5}]}",
    "gradient_tracking": "gradient_tracking",
    "push_sum": "push_sum",
    "secure_aggregation": "secure_aggregation",
}


@dataclass(frozen=True)
class Cell:
    """One entry of the matrix."""

    fault: str
    activity: str
    scheme: str

    @property
    def name(self) -> str:
        """Its coordinates."""
        return f"{self.fault:<11} {self.activity:<10} {self.scheme}"


def all_faults(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The options of each column by its name."""
    once = {"ranks": STRUCK, "rounds": ROUND}
    often = {"ranks": STRUCK, "rounds": [ROUND, options.last]}
    return {
        "crash": {"name": "crash", **once},
        "stop": {"name": "stop", "seconds": options.stop, **once},
        "long_stop": {"name": "stop", "seconds": options.long_stop, **once},
        "slow": {"name": "slow", "factor": 10.0, **often},
        "drop": {"name": "drop", "probability": 0.1, **often},
        "duplicate": {"name": "more_faults:Duplicate", "probability": 0.1, **often},
        "reorder": {"name": "more_faults:Reorder", "probability": 0.1, **often},
        "corrupt": {"name": "more_faults:Corrupt", "probability": 0.1, **often},
        "delay": {"name": "delay", "probability": 0.1, "seconds": 0.5, **often},
    }


def trial(cell: Cell, fault: dict[str, Any] | None, options: argparse.Namespace) -> Trial:
    """The run of a cell, or the undisturbed one of its scheme."""
    overrides = [
        f"rounds={options.rounds}", f"sharing={SCHEMES[cell.scheme]}",
        f"checkpoint.every={max(1, options.rounds // ROUNDS)}",
        f"failures={{deadline: {options.deadline}, grace: {GRACE_SECONDS}}}",
    ]  # fmt: skip
    if fault is not None:
        entries = [fault | {"activity": cell.activity}]
        if cell.fault in MESSAGE_FAULTS:
            # So that something arrives meanwhile: most activities of so small a model take microseconds.
            stretch = {"name": "more_faults:Hang", "seconds": STRETCH, "ranks": STRUCK}
            entries.append(stretch | {"rounds": fault["rounds"], "activity": cell.activity})
        overrides.append(faults(*entries))
    return Trial(cell.name, tuple(overrides), options.limit)


def chosen(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells that the options ask for."""
    for scheme in options.schemes:
        for fault in options.faults:
            for activity in options.activities:
                yield Cell(fault, activity, scheme)


def undisturbed(options: argparse.Namespace) -> dict[str, Outcome]:
    """The run of each scheme without a fault."""
    trials = [trial(Cell("none", "none", scheme), None, options) for scheme in options.schemes]
    found = {outcome.trial.name.split()[-1]: outcome for outcome in run_all(trials, options.jobs)}
    for scheme, outcome in found.items():
        if outcome.code:
            raise SystemExit(f"{scheme} does not even run without faults:\n{outcome.text}")
    return found


def expectation(cell: Cell, reference: Outcome, options: argparse.Namespace) -> Expectation:
    """What is right in a cell."""
    settings = load(TINY, [f"sharing={SCHEMES[cell.scheme]}"])
    sharing: type[Sharing] = settings.sharing.cls  # type: ignore[assignment]
    # Among forty messages one in ten may happen to be none.
    sure = cell.fault not in MESSAGE_FAULTS
    name = {"long_stop": "stop"}.get(cell.fault, cell.fault)
    return Expectation(
        reference, settings.graph.make(), sharing.promises.tolerates_loss, frozenset({name} if sure else ()),
        options.deadline + GRACE_SECONDS + SLACK,
    )  # fmt: skip


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stop", type=float, default=5.0, help="seconds of the short stop")
    parser.add_argument("--long-stop", type=float, default=60.0, help="seconds of the long stop")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each run")
    parser.add_argument("--last", type=int, default=LAST, help="last round of what goes wrong repeatedly")
    parser.add_argument("--deadline", type=float, default=3.0, help="failures.deadline")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a run hangs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    columns = list(all_faults(argparse.Namespace(stop=1.0, long_stop=1.0, last=LAST)))
    for name, known in (("faults", columns), ("activities", ACTIVITIES), ("schemes", SCHEMES)):
        parser.add_argument(f"--{name}", nargs="+", choices=list(known), default=list(known))
    return parser.parse_args(arguments)


def main() -> int:
    """Prints a line for each cell that is wrong, and the counts; 1 when there are any."""
    options = parse()
    references, columns = undisturbed(options), all_faults(options)
    cells = {cell.name: cell for cell in chosen(options)}
    trials = [trial(cell, columns[cell.fault], options) for cell in cells.values()]
    counts, struck, back = Counter[str](), 0, 0
    for done, outcome in enumerate(run_all(trials, options.jobs), 1):
        cell = cells[outcome.trial.name]
        found = wrongs(outcome, expectation(cell, references[cell.scheme], options))
        struck += bool(outcome.injected)
        back += any(event["kind"] == "peer_back" for event in outcome.events)
        counts.update(wrong.split(":")[0] for wrong in found)
        verdict = "; ".join(found) or "ok"
        print(
            f"{done:>3}/{len(trials)} {cell.name:<40} exit {outcome.code} {outcome.seconds:5.1f} s  {verdict}"
        )
        if found:
            print(f"        {outcome.trial.reproducer}", flush=True)
    print(json.dumps({"cells": len(trials), "struck": struck, "back": back, "wrong": dict(counts)}))
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
