"""Shows that nothing in a run goes by the wall clock: it jumps to and fro by an hour while nodes train.

Acceptance figure R12: runs over each transport end with the models of a run whose clock went on evenly, in
the same time, and nobody is given up. Sets the clock of the whole machine, so it needs the right to (root),
and sets it right again.

    python eval/reliability/wall_clock.py
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

from _runs import Outcome, Trial, faults, run

STEPS = (3600.0, -7200.0, 3600.0)
"""Seconds by which it jumps; in the end it is right."""
PAUSE = 0.3
"""Seconds between two jumps: many to a deadline."""
MOST_LONGER = 1.5
TRANSPORTS = {
    "shared memory": "communication={name: zeromq}",
    "tcp": "communication={name: zeromq, local: tcp}",
    "gloo": "communication={name: torch_distributed, backend: gloo}",
}


@contextlib.contextmanager
def jumping() -> Iterator[None]:
    """Has the clock jump until the block ends."""
    jumper = os.fork()
    if jumper == 0:
        _jump_on()
    try:
        yield
    finally:
        os.kill(jumper, signal.SIGTERM)
        os.waitpid(jumper, 0)


def _jump_on() -> None:
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(1))
    while not over:
        for step in STEPS:
            time.sleep(PAUSE)
            time.clock_settime(time.CLOCK_REALTIME, time.time() + step)
    os._exit(0)


def verdict(calm: Outcome, jumpy: Outcome) -> str:
    """What is wrong with a run whose clock jumped; empty when nothing is."""
    if calm.code or jumpy.code:
        return f"exit codes {calm.code} and {jumpy.code}:\n{jumpy.text}"
    if jumpy.missing:
        return f"given up: {jumpy.missing}"
    if jumpy.summary["model_hash"] != calm.summary["model_hash"]:
        return "the models are others"
    return "it takes longer" if jumpy.seconds > MOST_LONGER * calm.seconds else ""


def main() -> int:
    """Prints a line for each transport; 1 when one of them minds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="of at least a tenth of a second each")
    rounds = parser.parse_args().rounds
    # Asked before anything else is done; it changes nothing.
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    wrong = 0
    for name, communication in TRANSPORTS.items():
        pace = faults({"name": "more_faults:Hang", "seconds": 0.1, "activity": "begin"})
        trial = Trial(name, (f"rounds={rounds}", communication, "checkpoint.every=10", pace), limit=600.0)
        calm = run(trial)
        with jumping():
            jumpy = run(trial)
        why = verdict(calm, jumpy)
        wrong += bool(why)
        print(f"{name}: {calm.seconds:.1f} s evenly, {jumpy.seconds:.1f} s with jumps: {why or 'the same'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
