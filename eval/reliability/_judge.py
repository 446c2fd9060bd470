"""What a run with faults must have come to: ended in time, no wrong model, everything said."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import more_faults
import numpy as np
from _runs import Outcome, one_sided

from decentnode.core.registry import FAULTS
from decentnode.errors import ExitCode
from decentnode.graph.base import Graph
from decentnode.node.faults import NodeFault

MOST_DRIFT = 0.5
"""How far a model may be from the undisturbed ones where nodes were lost, as a share of how far those have
come from the start."""


@dataclass(frozen=True)
class Expectation:
    """What is right for one run."""

    undisturbed: Outcome
    graph: Graph
    tolerates_loss: bool
    faults: frozenset[str]
    """The faults that have to be reported."""
    longest: float
    """Seconds that no round of a node that was not struck itself may exceed."""


def wrongs(outcome: Outcome, expected: Expectation) -> list[str]:
    """What is not right, each in a few words that begin with its kind."""
    results = [wrong for check in CHECKS if (wrong := check(outcome, expected))]
    return ["hang: it was killed" + f" after {outcome.seconds:.0f} s"] if outcome.code is None else results


def _exit(outcome: Outcome, expected: Expectation) -> str:
    """All is well, or nodes were lost, or the scheme tolerates no loss and says so in one line."""
    lossless = not outcome.missing and not outcome.failures
    if lossless:
        return "" if outcome.code == ExitCode.OK else f"exit: {outcome.code} although nothing was lost"
    if outcome.code == ExitCode.OK:
        return f"exit: 0 although {outcome.missing or outcome.failures}"
    if expected.tolerates_loss:
        return "" if outcome.code == ExitCode.NODES_LOST else f"exit: {outcome.code}, not 3, after a loss"
    if outcome.code != ExitCode.FAILED:
        return f"exit: {outcome.code}, not 4, of a scheme that tolerates no loss"
    return "" if "tolerates no loss" in outcome.text else "silence: nothing says that it tolerates no loss"


def _models(outcome: Outcome, expected: Expectation) -> str:
    """Without a loss the models are the same, bit for bit; after one they are near, and numbers."""
    undisturbed = expected.undisturbed
    if outcome.code == ExitCode.OK:
        same = outcome.summary.get("model_hash") == undisturbed.summary["model_hash"]
        return "" if same else "model: not that of the undisturbed run, although nothing was lost"
    middle = np.mean(list(undisturbed.models.values()), axis=0)
    most = MOST_DRIFT * float(np.linalg.norm(middle))
    for rank, model in outcome.models.items():
        drift = float(np.linalg.norm(model - middle))
        # Not a number is not less than anything.
        if not drift <= most + max(float(np.linalg.norm(m - middle)) for m in undisturbed.models.values()):
            return f"model: rank {rank} is {drift:.3g} away from the undisturbed run"
    return ""


def _survivors(outcome: Outcome, expected: Expectation) -> str:
    """Whoever was not struck finishes."""
    if outcome.code not in (ExitCode.OK, ExitCode.NODES_LOST):
        return ""
    struck = node_victims(outcome)
    lost = set(range(expected.graph.num_nodes)) - outcome.finished
    innocent = sorted(lost - struck)
    return f"survivors: {innocent} did not finish" if innocent else ""


def _rounds(outcome: Outcome, expected: Expectation) -> str:
    longest = outcome.longest_round(set(outcome.records) - node_victims(outcome))
    return f"slow: a round took {longest:.1f} s" if longest > expected.longest else ""


def node_victims(outcome: Outcome) -> set[int]:
    """The nodes that were struck themselves, and not only what was sent to them."""
    kinds = FAULTS.classes() | vars(more_faults)
    return {r.rank for _, r in outcome.injected if issubclass(kinds[r.fault], NodeFault)}


def _events(outcome: Outcome, expected: Expectation) -> str:
    """What had to strike has struck, and every fault that struck is in events.jsonl."""
    if unseen := expected.faults - {report.fault for _, report in outcome.injected}:
        return f"event: {', '.join(sorted(unseen))} did not strike"
    kept = {
        (event.get("rank"), event.get("round")) for event in outcome.events if event["kind"] == "injected"
    }
    lost = sorted({(report.rank, report.round) for _, report in outcome.injected} - kept)
    return f"event: none of what struck rank and round {lost[0]}" if lost else ""


def _symmetry(outcome: Outcome, expected: Expectation) -> str:
    """A loss may cost one round in which one end mixed and the other did not, and no more."""
    for edge, rounds in one_sided(outcome, expected.graph).items():
        if any(later - earlier == 1 for earlier, later in pairwise(rounds)):
            return f"symmetry: edge {edge} was one-sided in rounds {rounds}"
    return ""


def _leftovers(outcome: Outcome, expected: Expectation) -> str:
    return f"leftovers: {', '.join(outcome.leftovers)}" if outcome.leftovers else ""


def _traceback(outcome: Outcome, expected: Expectation) -> str:
    """Only a fault that raises has a traceback."""
    last = re.findall(r"^\s*(\w+(?:\.\w+)*(?:Error|Exception)): (.*)$", outcome.text, re.MULTILINE)
    odd = [
        f"{name}: {doing}" for name, doing in last if "RunFailed" not in name and "on purpose" not in doing
    ]
    return f"traceback: {odd[0][:90]}" if odd and "Traceback" in outcome.text else ""


CHECKS: tuple[Callable[[Outcome, Expectation], str], ...] = (
    _exit, _models, _survivors, _rounds, _events, _symmetry, _leftovers, _traceback,
)  # fmt: skip
