"""Shows that machines need not agree on the time: one of two has a wrong clock, or one that jumps.

Two machines with keys, in network namespaces, train a ring of eight nodes. The wall clock of the second is
shifted by a library (wrong_clock.c), its uptime by a time namespace. Each case has four runs:

    whole    both train to the end
    resumed  both are stopped in the middle, the second one's clock is set back by a day, and both resume
    rejoined the second is killed, and joins again by `decentnode resume`, with another clock
    gloo     both train over torch.distributed, whose store and connections have time limits of their own

Whole, resumed and gloo runs must end with the models of the first case, whose clocks are right. In all of
them the seconds of records, evaluations and events must count from the start of the run, and never go back;
those of the two machines must agree in each round. `status`, `report` and `doctor` must do on the second what
they do on the first, and a run in progress must be found in use whatever the time of its files. Needs the
rights to make namespaces, and gcc.

    python eval/reliability/clocks.py [--cases behind jumps] [--rounds 60]
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import networks
from _runs import ROOT, TINY

from decentnode.formats.reader import read_evaluations, read_events
from decentnode.formats.records import RoundRecord, read_records

NAMESPACES = ("decentnode-even", "decentnode-odd")
NODES = 8
LIMIT = 200.0
"""Seconds that a run may take."""
APART = 1.0
"""Seconds by which the times of two machines may differ in the same round; their starts are that near."""
SOURCE = Path(__file__).with_name("wrong_clock.c")
HOUR, DAY = 3600.0, 86400.0
JUMPS = (-2 * DAY, 3 * HOUR, -300.0, 400 * DAY)
PAUSE = 0.3
"""Seconds between two jumps."""


@dataclass(frozen=True)
class Clock:
    """The clock of a machine."""

    wall: float | None = 0.0
    """Seconds that are added to its wall clock; None: it jumps."""
    uptime: int = 0
    """Seconds that are added to its monotonic clock."""


CASES = {
    "right": Clock(),
    "behind": Clock(-2 * DAY),
    "ahead": Clock(3 * HOUR),
    "far ahead": Clock(3000 * DAY),
    "jumps": Clock(None),
    "uptime": Clock(0.0, uptime=30 * int(DAY)),
    "all": Clock(-400 * DAY, uptime=30 * int(DAY)),
}
RESET = Clock(-3 * DAY, uptime=int(DAY))
"""The clock of the second machine from its second start on."""
SETTINGS = (
    "graph={name: ring, nodes: 8}", "evaluation={every: 1, average_model: true, figures: false}",
    "mapping.machines=[{{address: {}, nodes: 4}}, {{address: {}, nodes: 4}}]".format(*networks.ADDRESSES),
    "checkpoint.every=5", "failures={deadline: 10, grace: 1}",
)  # fmt: skip
PACE = 0.05
"""Seconds that a round takes at least."""
SLOWLY = 1.0
"""The same in the run that is asked for its state: commands take seconds to start."""


@dataclass
class Pair:
    """Two machines on one cable, and their clocks."""

    folder: Path
    keys: Path
    clock: Clock
    rounds: int
    wrong: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, machine: int, clock: Clock, *words: str) -> list[str]:
        """`decentnode` on a machine, as its clock has it."""
        command = ["ip", "netns", "exec", NAMESPACES[machine]]
        if machine == 1:
            # A file for each shift: a process of the first start must not see the second one's.
            shifted = self.jumper if clock.wall is None else self.folder / f"shift{clock.wall:+.0f}"
            if clock.wall is not None:
                shifted.write_bytes(struct.pack("d", clock.wall))
            fake = [f"LD_PRELOAD={self.folder / 'wrong_clock.so'}", f"WRONG_CLOCK={shifted}"]
            shift = ["--monotonic", str(clock.uptime), "--boottime", str(clock.uptime)]
            command += ["unshare", "--time", *shift, "env", *fake]
        return [*command, sys.executable, "-m", "decentnode", *words]

    @property
    def jumper(self) -> Path:
        """The file with the shift of a clock that jumps, in seconds."""
        return self.folder / "jumps"

    def path(self, name: str, machine: int) -> Path:
        """The run directory of a machine."""
        return self.folder / f"{name}-{machine}"

    def start(self, name: str, machine: int, verb: str, clock: Clock, *words: str) -> subprocess.Popen[bytes]:
        """Starts or resumes a machine's part of a run."""
        path = self.path(name, machine)
        words_ = [str(path)]
        if verb == "run":
            words_ = [str(TINY), *SETTINGS, f"rounds={self.rounds}", f"run_dir={path}"]
            pace = SLOWLY if name == "whole" else PACE
            words_ += [f"faults=[{{name: more_faults:Hang, seconds: {pace}, activity: begin}}]"]
            words_ += [f"security={{keys: {self.keys}/{machine}}}", *words]
        with path.with_suffix(".txt").open("ab") as out:
            process = subprocess.Popen(
                self.command(machine, clock, verb, *words_), stdout=out, stderr=out,
                env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def run_all(self, *asked: tuple[int, tuple[str, ...]]) -> list[tuple[int, str]]:
        """Commands, each on a machine, all at the same time; their exit codes, and what they said."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        running = [
            subprocess.Popen(
                self.command(machine, self.clock, *words), env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for machine, words in asked
        ]  # fmt: skip
        outputs = [process.communicate(timeout=LIMIT)[0] for process in running]
        return [(process.returncode, text) for process, text in zip(running, outputs, strict=True)]

    def check(self, name: str, right: bool, what: object = "") -> None:
        """Notes what is wrong."""
        if not right:
            self.wrong.append(f"{name}: {what}" if what else name)

    def wait(self, name: str, runs: list[subprocess.Popen[bytes]], code: int) -> None:
        """Both must end with this exit code."""
        codes = [run.wait(LIMIT) for run in runs]
        logs = [self.path(name, i).with_suffix(".txt").read_text()[-300:] for i in range(2)]
        self.check(f"{name}: exit", codes == [code, code], f"{codes} {logs if codes != [code, code] else ''}")

    def reach(self, name: str, rank: int, round: int) -> None:
        """Waits until a rank has recorded a round."""
        limit = time.monotonic() + LIMIT
        while not any(record.round >= round for record in self.records(name, rank)):
            if time.monotonic() > limit:
                logs = [self.path(name, i).with_suffix(".txt").read_text()[-400:] for i in range(2)]
                raise RuntimeError(f"{name}: rank {rank} did not get to round {round}: {logs}")
            time.sleep(0.05)

    def records(self, name: str, rank: int) -> list[RoundRecord]:
        """What a rank has recorded by now."""
        path = self.path(name, rank // (NODES // 2)) / "records" / f"{rank:05d}.jsonl"
        return read_records(path) if path.exists() else []

    def summary(self, name: str, machine: int = 0) -> dict[str, Any]:
        """The summary of a machine."""
        summary: dict[str, Any] = json.loads((self.path(name, machine) / "summary.json").read_text())
        return summary

    def check_times(self, name: str, whole: bool = True) -> None:
        """Times count from the start of the run, go forward, and agree between the machines."""
        wall = [self.summary(name, machine)["wall_seconds"] for machine in range(2)]
        self.check(f"{name}: wall_seconds", abs(wall[0] - wall[1]) < 2 * APART, wall)
        rounds: dict[int, list[float]] = {}
        for rank in range(NODES):
            records = self.records(name, rank)
            seconds = [record.seconds for record in records]
            limit = wall[rank // (NODES // 2)] + 0.1
            forward = seconds == sorted(seconds) and seconds[0] > 0 and seconds[-1] <= limit
            self.check(
                f"{name}: seconds of rank {rank}", forward, f"{seconds[:2]} to {seconds[-2:]}, {limit}"
            )
            spent = [
                r.train_seconds + r.exchange_seconds + r.mix_seconds + r.evaluate_seconds for r in records
            ]
            self.check(f"{name}: durations of rank {rank}", all(0 <= s < LIMIT for s in spent), max(spent))
            self.check(
                f"{name}: rounds of rank {rank}", not whole or len(records) == self.rounds, len(records)
            )
            for record in records:
                rounds.setdefault(record.round, []).append(record.seconds)
        apart = [max(times) - min(times) for times in rounds.values() if len(times) == NODES]
        # A round in which a node of one machine was slow says nothing about clocks.
        self.check(f"{name}: machines apart", sorted(apart)[len(apart) // 2] < APART, f"{max(apart):.2f} s")
        for machine in range(2):
            rows = [row.seconds for row in read_evaluations(self.path(name, machine) / "evaluations.jsonl")]
            # Of nodes that are back from different rounds on, a row has the mean of those that took part.
            back = [(a, b) for a, b in pairwise(rows) if b < a - (0.0 if whole else APART)]
            good = bool(rows) and not back and rows[0] > 0 and rows[-1] <= wall[machine] + 0.1
            self.check(f"{name}: evaluations of machine {machine}", good, (back[:1], rows[-1:], wall))
            events = read_events(self.path(name, machine) / "events.jsonl")
            backwards = [(a, b) for a, b in pairwise(events) if b.seconds < a.seconds and b.kind != "started"]
            good = bool(events) and not backwards and all(0 <= e.seconds < LIMIT for e in events)
            self.check(f"{name}: events of machine {machine}", good, backwards[:1])
            startup = self.summary(name, machine)["startup_seconds"]
            self.check(f"{name}: startup of machine {machine}", 0 < startup < LIMIT, startup)

    def check_commands(self, name: str) -> None:
        """What is asked during a run is answered on both machines, and times in it make sense."""
        asked = [(i, (verb, str(self.path(name, i)))) for i in range(2) for verb in ("status", "resume")]
        for (machine, (verb, _)), (code, output) in zip(asked, self.run_all(*asked), strict=True):
            if verb == "resume":
                good = code == 2 and "in progress" in output
            else:
                seconds = re.search(r"running for ([\d.]+) s", output)
                good = code == 0 and seconds is not None and 0 < float(seconds[1]) < LIMIT
                good = good and not re.search(r"(?<![\d.e])-\d+(\.\d+)? s", output)
            self.check(f"{name}: {verb} on machine {machine}", good, output[-400:])

    def check_report(self, name: str) -> None:
        """What is asked of a run that has ended, on both machines."""
        pages = [self.folder / f"{name}-{machine}.html" for machine in range(2)]
        asked: list[tuple[int, tuple[str, ...]]] = []
        for machine, page in enumerate(pages):
            path = str(self.path(name, machine))
            asked += [(machine, ("report", path, "--out", str(page))), (machine, ("status", path))]
        for (machine, (verb, *_)), (code, output) in zip(asked, self.run_all(*asked), strict=True):
            good = code == 0 and (verb != "report" or pages[machine].exists())
            self.check(f"{name}: {verb} of its end on machine {machine}", good, output[-400:])

    def whole(self) -> str:
        """Trains to the end; the hash of the models."""
        runs = [self.start("whole", machine, "run", self.clock) for machine in range(2)]
        self.reach("whole", 7, 5)
        self.check_commands("whole")
        self.wait("whole", runs, 0)
        self.check_times("whole")
        self.check_report("whole")
        return str(self.summary("whole")["model_hash"])

    def resumed(self) -> str:
        """Stops in the middle, and resumes with another clock."""
        runs = [self.start("resumed", machine, "run", self.clock) for machine in range(2)]
        self.reach("resumed", 7, self.rounds // 3)
        os.kill(runs[0].pid, signal.SIGTERM)
        self.wait("resumed", runs, 143)
        runs = [self.start("resumed", machine, "resume", RESET) for machine in range(2)]
        self.wait("resumed", runs, 0)
        self.check_times("resumed")
        return str(self.summary("resumed")["model_hash"])

    def rejoined(self) -> None:
        """The second machine is killed, and joins the run again with another clock."""
        words = ("sharing=gossip", f"rounds={10 * self.rounds}")
        runs = [self.start("rejoined", machine, "run", self.clock, *words) for machine in range(2)]
        self.reach("rejoined", 7, 10)
        runs[1].kill()
        runs[1].wait()
        # So long machine 0 takes the first launcher to be alive.
        time.sleep(3.5)
        before = self.records("rejoined", 7)[-1]
        runs[1] = self.start("rejoined", 1, "resume", RESET)
        for rank in range(NODES // 2, NODES):
            self.reach("rejoined", rank, before.round + 10)
        os.kill(runs[0].pid, signal.SIGTERM)
        self.wait("rejoined", runs, 143)
        self.check_times("rejoined", whole=False)
        later = [record.seconds for record in self.records("rejoined", 7) if record.round > before.round]
        self.check("rejoined: time away", min(later) - before.seconds >= 3.0, (before.seconds, min(later)))

    def gloo(self) -> str:
        """Trains over torch.distributed."""
        words = (
            "communication={name: torch_distributed, backend: gloo, trusted_network: true}",
            "checkpoint.every=0",
        )
        runs = [self.start("gloo", machine, "run", self.clock, *words) for machine in range(2)]
        self.wait("gloo", runs, 0)
        self.check_times("gloo")
        return str(self.summary("gloo")["model_hash"])

    def kill(self) -> None:
        """Ends what still runs."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def deal_keys(folder: Path) -> Path:
    """A folder of keys for each machine."""
    made = folder / "made"
    words = [
        sys.executable,
        "-m",
        "decentnode",
        "keys",
        str(TINY),
        *SETTINGS[:1],
        SETTINGS[2],
        "--out",
        str(made),
    ]
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    for machine, secret in enumerate(sorted(made.glob("*.secret"))):
        folder_ = folder / str(machine)
        folder_.mkdir(mode=0o700)
        for file in (secret, made / "machines.json"):
            shutil.copy(file, folder_)
    return folder


def jump(path: Path, over: threading.Event) -> None:
    """Writes another shift of the clock again and again."""
    # Written in place, because the processes have mapped the file.
    with path.open("r+b", buffering=0) as file:
        for shift in itertools.cycle(JUMPS):
            if over.wait(PAUSE):
                return
            os.pwrite(file.fileno(), struct.pack("d", shift), 0)


def main() -> int:
    """Prints a line for each case; 1 when one of them minds its clock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    reference, wrong = "", 0
    # The first case is what the others are compared with.
    for case in dict.fromkeys(["right", *options.cases]):
        with tempfile.TemporaryDirectory(prefix="dn-", dir="/tmp") as name:
            folder, over = Path(name), threading.Event()
            (folder / "keys").mkdir()
            library = [
                "gcc",
                "-shared",
                "-fPIC",
                "-O2",
                str(SOURCE),
                "-o",
                str(folder / "wrong_clock.so"),
                "-lm",
            ]
            subprocess.run(library, check=True)
            pair = Pair(folder, deal_keys(folder / "keys"), CASES[case], options.rounds)
            pair.jumper.write_bytes(bytes(8))
            jumper = threading.Thread(target=jump, args=(pair.jumper, over))
            jumper.start()
            began = time.monotonic()
            try:
                networks.lay_cable(NAMESPACES)
                hashes = [pair.whole(), pair.resumed(), pair.gloo()]
                pair.rejoined()
            except (RuntimeError, subprocess.TimeoutExpired, OSError, KeyError) as error:
                pair.check("broken off", False, str(error)[:1000])
                hashes = []
            finally:
                over.set()
                jumper.join()
                pair.kill()
                networks.remove(NAMESPACES)
            reference = reference or "".join(hashes[:1])
            pair.check("models", hashes == 3 * [reference], hashes)
        wrong += bool(pair.wrong)
        print(
            f"{case:<10} {time.monotonic() - began:5.0f} s  {'; '.join(pair.wrong) or 'the same'}", flush=True
        )
    print(json.dumps({"cases": list(dict.fromkeys(["right", *options.cases])), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
