"""How much of an exchange `communication.overlap` hides, when it takes 0.8 of the time of the local steps.

    python eval/benchmarks/overlap.py [--small] [--repeats N]

The same two nodes run without any exchange, with one that runs while they train, and with one after they
have trained; in the last two each message is held back where it arrives. Their steps wait, as for a GPU, so
that what else the processors do counts little. Medians over the rounds.
"""

from dataclasses import dataclass
from typing import Any

from _command import run_decentnode
from _report import Target, conclude, median, median_ratio, parser, show

WIRE = 0.8
"""Time on the wire, of the time that the local steps take."""
WARM_UP = 5
"""First rounds, which are not counted."""
LEAST = 0.95


@dataclass(frozen=True)
class Trial:
    """What a round takes, in seconds."""

    alone: float
    overlapped: float
    in_turn: float


def round_seconds(rounds: int, *overrides: str) -> float:
    """The usual round of a run."""
    run = run_decentnode("overlap.yaml", f"rounds={rounds}", *overrides)
    if run.summary["finished_nodes"] != run.summary["nodes"]:
        raise RuntimeError("a node was lost")
    return median(run.round_seconds[WARM_UP:])


def attempt(rounds: int) -> Trial:
    """All three, one after the other."""
    alone = round_seconds(rounds, "sharing=none", "communication.overlap=false")
    slow = f"faults=[{{name: delay, seconds: {WIRE * alone:.4f}}}]"
    overlapped = round_seconds(rounds, slow)
    return Trial(alone, overlapped, round_seconds(rounds, slow, "communication.overlap=false"))


def measure(rounds: int, repeats: int) -> dict[str, Any]:
    """The figures."""
    trials = [attempt(rounds) for _ in range(repeats)]
    alone = [trial.alone for trial in trials]
    overlapped, in_turn = [t.overlapped for t in trials], [t.in_turn for t in trials]
    return {
        "rounds": rounds,
        "alone_ms": round(1000 * median(alone), 1),
        "overlapped_ms": round(1000 * median(overlapped), 1),
        "in_turn_ms": round(1000 * median(in_turn), 1),
        "efficiency": median_ratio(alone, overlapped),
        "efficiency_in_turn": median_ratio(alone, in_turn),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    arguments = options.parse_args()
    figures = measure(8, 1) if arguments.small else measure(40, arguments.repeats)
    show(figures)
    targets = [
        Target("time without exchange over time with one beside", figures["efficiency"], "at least", LEAST)
    ]
    ratio = {"overlapped": figures["efficiency"], "in turn": figures["efficiency_in_turn"]}
    conclude("overlap", arguments.small, [figures], ratio, [] if arguments.small else targets)


if __name__ == "__main__":
    main()
