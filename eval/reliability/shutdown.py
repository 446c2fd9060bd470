"""Shows that runs end and leave nothing behind: ended in seven ways, each at instants drawn at random.

Short runs of four nodes, forked from a process that has everything imported: left to end by themselves, ended
by SIGTERM, by Ctrl-C twice, by killing the launcher or the server that forked the nodes, by SIGTERM after a
node was killed, and by SIGTERM while large models are on their way over TCP. A run is clean when its exit
code is one that its end can have, when no process, socket or directory of it is left within the time that its
end may take, and when every line of its files can be read.

    python eval/reliability/shutdown.py --runs 1000
    python eval/reliability/shutdown.py --runs 50 --only sigterm --seed 7     # one way, other instants
"""

import argparse
import contextlib
import gc
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from _runs import CHECK_INTERVAL, Trial, _Running, session_of

from decentnode.errors import BadInput
from decentnode.formats.reader import read_events
from decentnode.formats.records import read_records

FOUR = ("graph={name: ring, nodes: 4}", "dataset.nodes=4")
ENDLESS = (*FOUR, "rounds=1000000")
LARGE = "dataset.dimension=400000"
FIRST_PORT = 30400
PORTS_EACH = 8
LIMIT = 60.0
BEFORE_THE_START = (-signal.SIGTERM,)
"""How a launcher ends that has not set up its signals yet."""


@dataclass(frozen=True)
class Way:
    """One way to end a run."""

    name: str
    overrides: tuple[str, ...]
    codes: tuple[int, ...]
    kill: Callable[["Ending"], None] = lambda ending: None
    latest: float = 2.5
    """Seconds after the fork at which the last kill may come."""
    seconds: float = 5.0
    """How long everything may take to be gone after the kill."""


@dataclass
class Ending:
    """One run and its end."""

    way: Way
    number: int
    slot: int
    randomness: random.Random
    running: _Running = field(init=False)
    killed: float = 0.0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Seconds from the kill until everything was gone."""
    ended: float = 0.0
    """When the launcher had ended."""

    def __post_init__(self) -> None:
        port = FIRST_PORT + PORTS_EACH * self.slot
        transport = f"communication={{name: zeromq, local: tcp, base_port: {port}}}"
        overrides = tuple(transport if word == "tcp" else word for word in self.way.overrides)
        self.kill_at = self.randomness.uniform(0.0, self.way.latest)
        self.running = _Running(Trial(f"{self.way.name}-{self.number}", overrides, LIMIT))

    @property
    def leader(self) -> int:
        """The launcher."""
        return self.running.pid

    def signal(self, signum: signal.Signals) -> None:
        """Sends the launcher a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.leader, signum)

    def advance(self) -> bool:
        """Strikes when it is time; true when everything is gone, or has had the time for that."""
        if not self.killed and time.monotonic() - self.running.began >= self.kill_at:
            self.way.kill(self)
            self.killed = time.monotonic()
        if not self.ended and self.running.has_ended():
            self.ended = time.monotonic()
        if not self.ended:
            return False
        self.seconds = time.monotonic() - (self.killed if self.way.latest else self.ended)
        return self.seconds > self.way.seconds or not self._left()

    def judge(self) -> None:
        """Looks for what is left and for what is wrong with its files."""
        self.problems += [f"left: {left}" for left in self._left()]
        if self.seconds > self.way.seconds:
            self.problems.append(f"took {self.seconds:.1f} s")
        if self.running.code not in self.way.codes:
            self.problems.append(f"exit code {self.running.code}")
        self._read_files()
        self.running.kill()
        if self.problems:
            kept = Path(f"/tmp/decentnode-shutdown-{self.way.name}-{self.number}")
            shutil.copytree(self.running.folder, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)
            self.problems.append(f"kept in {kept}")
        shutil.rmtree(self.running.folder, ignore_errors=True)

    def _left(self) -> list[str]:
        files = [path.name for path in (self.running.folder / "tmp").glob("decentnode*")]
        return [*files, *(f"process {pid}" for pid in session_of(self.leader))]

    def _read_files(self) -> None:
        run = self.running.folder / "run"
        try:
            for path in run.glob("records/*.jsonl"):
                read_records(path)
            if (run / "events.jsonl").exists():
                read_events(run / "events.jsonl")
        except BadInput as error:
            self.problems.append(str(error))
        text = (self.running.folder / "out").read_text() if (self.running.folder / "out").exists() else ""
        if "Traceback" in text:
            self.problems.append("a traceback")


def kill_a_node(ending: Ending) -> None:
    """One at random, where there is one yet; and the run is ended a moment later."""
    nodes = sorted(set(session_of(ending.leader)) - {ending.leader})[1:]
    if nodes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ending.randomness.choice(nodes), signal.SIGKILL)
        time.sleep(ending.randomness.uniform(0.0, 0.2))
    ending.signal(signal.SIGTERM)


def kill_the_server(ending: Ending) -> None:
    """The parent of the nodes, where it is there yet; else the launcher."""
    below = sorted(set(session_of(ending.leader)) - {ending.leader})
    with contextlib.suppress(ProcessLookupError):
        os.kill(below[0] if below else ending.leader, signal.SIGKILL)


def interrupt_twice(ending: Ending) -> None:
    """Ctrl-C twice, within half a second."""
    ending.signal(signal.SIGINT)
    time.sleep(ending.randomness.uniform(0.0, 0.5))
    ending.signal(signal.SIGINT)


WAYS = (
    Way("normal", (*FOUR, "rounds=20"), (0,), latest=0.0),
    Way("sigterm", ENDLESS, (143, *BEFORE_THE_START), lambda e: e.signal(signal.SIGTERM), seconds=12.0),
    Way("sigint-twice", ENDLESS, (130, -signal.SIGINT), interrupt_twice),
    Way("kill-launcher", ENDLESS, (-signal.SIGKILL,), lambda e: e.signal(signal.SIGKILL)),
    Way("kill-server", ENDLESS, (4, -signal.SIGKILL), kill_the_server),
    Way("dead-peer", ENDLESS, (143, 4, *BEFORE_THE_START), kill_a_node, seconds=12.0),
    Way(
        "mid-send", (*ENDLESS, LARGE, "tcp"), (143, *BEFORE_THE_START),
        lambda e: e.signal(signal.SIGTERM), 4.0, 12.0,
    ),
)  # fmt: skip


def run_all(ways: Sequence[Way], runs: int, jobs: int, minutes: float, seed: int) -> list[Ending]:
    """Makes the runs, some at a time, until there are enough of them or the time is over."""
    limit, randomness = time.monotonic() + 60 * minutes, random.Random(seed)
    running: dict[int, Ending] = {}
    done: list[Ending] = []
    number = 0
    while running or (number < runs and time.monotonic() < limit):
        while len(running) < jobs and number < runs and time.monotonic() < limit:
            slot = next(i for i in range(jobs) if i not in running)
            randomness_ = random.Random(randomness.getrandbits(64))
            running[slot] = Ending(ways[number % len(ways)], number, slot, randomness_)
            number += 1
        for slot, ending in list(running.items()):
            if ending.advance():
                del running[slot]
                ending.judge()
                done.append(ending)
                show(ending)
        time.sleep(CHECK_INTERVAL)
    return done


def show(ending: Ending) -> None:
    """One line about a run that was not clean."""
    if ending.problems:
        where = f"{ending.way.name} at {ending.kill_at:.3f} s"
        print(f"run {ending.number}, {where}: {'; '.join(ending.problems)}", flush=True)


def main() -> int:
    """Makes the runs and prints how many were clean."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after so long")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[way.name for way in WAYS], help="one way alone")
    chosen = parser.parse_args()
    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    ways = [way for way in WAYS if chosen.only in (None, way.name)]
    done = run_all(ways, chosen.runs, chosen.jobs, chosen.minutes, chosen.seed)
    for way in ways:
        ours = [ending for ending in done if ending.way is way]
        if ours:
            clean = sum(not ending.problems for ending in ours)
            codes = Counter(ending.running.code for ending in ours)
            worst = max(ending.seconds for ending in ours)
            counts = f"{clean:>4} of {len(ours):<4} clean"
            print(f"{way.name:<14} {counts}, slowest {worst:5.2f} s, codes {dict(codes)}")
    clean, worst = sum(not ending.problems for ending in done), max((e.seconds for e in done), default=0.0)
    print(f"{clean} of {len(done)} runs ended clean, slowest {worst:.2f} s")
    return 0 if clean == len(done) else 1


if __name__ == "__main__":
    sys.exit(main())
