"""Compares virtual time with reality: the same configuration over limited links, and simulated.

Each node is a machine of its own in a network namespace, with an uplink and a downlink that `tc` limits, and
a relay delays the packets of each pair of nodes (_links.py). What launchers send each other is delayed, but
not limited: no model has it. Seconds are those from the begin of the first round to the end of the last, the
mean over the nodes. Models must be equal bit for bit.

`ad_psgd` waits for no round: what takes time are its steps, so the seconds of a step are compared, and its
staleness: the steps and averages that a model makes between a request and the answer. Its recorded order is
replayed in virtual time, and must have the same models.

Exits with 1 where a hash differs, a time is more than 15 % off, or the distributions of the staleness differ
by more than 15 % (total variation). Needs the rights to make namespaces and to go before other processes.
`late` shows by how much steps were longer than their pace, `mix` what mixing took in a round: no model has
that, and 64 processes that mix at one time share the processors. `traffic`: bytes on the links of nodes from
the first round on, with the headers of TCP/IP, acknowledgements and repeats, per byte that nodes count.

    python eval/simulation/reality.py [--nodes 16 64] [--schemes gossip ad_psgd] [--models queue]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import get_args

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import _links as links  # noqa: E402

from decentnode.formats.records import RoundRecord, read_records  # noqa: E402
from decentnode.node.asynchronous.schedule import message_of, read_schedule  # noqa: E402
from decentnode.sharing.asynchronous.ad_psgd import ANSWER, REQUEST  # noqa: E402
from decentnode.simulation.network import Model  # noqa: E402
from tests.integration.spawner import Spawner  # noqa: E402

CONFIG = Path(__file__).with_name("reality.yaml")
MOST_ERROR = 0.15
LIMIT = 600.0
"""Seconds that a run may take."""
PRIORITY = -10
"""That of the nodes during their rounds ("nice")."""
SCHEMES = {
    "gossip": (),
    "choco": ("sharing={name: choco, gamma: 0.2, transforms: [{name: top_k, fraction: 0.1}, auto]}",),
    "epidemic_oracle": ("graph={{name: epidemic_oracle, nodes: {nodes}, degree: 4}}",),
    "ad_psgd": ("sharing=ad_psgd", "training.steps_per_round=null"),
}


def staleness(events: Iterable[int | str]) -> list[int]:
    """Returns for each answer of an ad_psgd node how often its model had changed since the request."""
    changes, is_asking, found = 0, False, []
    for event in events:
        if isinstance(event, int):
            for _ in range(event):
                changes += 1
                if not is_asking:
                    changes, is_asking = 0, True
        elif not event[0].isdigit():
            continue  # a peer has left or was lost
        elif message_of(event)[1] == REQUEST:
            changes += 1
        else:
            if message_of(event)[1] == ANSWER:
                found.append(changes)
                changes += 1
            is_asking = False
    return found


@dataclass(frozen=True)
class Outcome:
    """What a run has left in its directory, or in one for each rank."""

    folder: Path
    nodes: int
    is_simulated: bool

    def directory(self, rank: int) -> Path:
        return self.folder if self.is_simulated else self.folder / str(rank)

    @cached_property
    def records(self) -> list[list[RoundRecord]]:
        """By rank and round."""
        return [read_records(self.directory(i) / "records" / f"{i:05d}.jsonl") for i in range(self.nodes)]

    @property
    def model_hash(self) -> str:
        return str(json.loads((self.directory(0) / "summary.json").read_text())["model_hash"])

    @property
    def seconds(self) -> float:
        def of_node(rows: list[RoundRecord]) -> float:
            first = rows[0].train_seconds + rows[0].exchange_seconds + rows[0].mix_seconds
            return rows[-1].seconds - rows[0].seconds + first

        return float(np.mean([of_node(rows) for rows in self.records]))

    @property
    def later_seconds(self) -> float:
        """The same of the second half of the rounds, when nodes have learned how long they usually wait."""
        half = len(self.records[0]) // 2
        return float(np.mean([rows[-1].seconds - rows[half - 1].seconds for rows in self.records]))

    def sum(self, name: str) -> float:
        """Returns the sum of a field of all records."""
        return float(sum(getattr(row, name) for row in chain(*self.records)))

    @cached_property
    def staleness(self) -> Counter[int]:
        """The number of answers by how often the model had changed."""
        rounds = len(self.records[0])
        schedules = [read_schedule(self.directory(i), i, rounds) for i in range(self.nodes)]
        return Counter(
            chain(*(staleness(chain(*(window.events for window in windows))) for windows in schedules))
        )


class Bench:
    """Runs configurations over the links of so many nodes, and simulated."""

    def __init__(self, folder: Path, nodes: int, options: argparse.Namespace) -> None:
        self.folder, self.nodes, self.options = folder, nodes, options
        self.latency_path = folder / "latency.txt"
        one_way = np.random.default_rng(1).uniform(0.020, 0.050, (nodes, nodes))
        np.savetxt(self.latency_path, (one_way + one_way.T) / 2)
        self.links = links.Links(nodes, self.latency_path)

    def measure_links(self) -> None:
        """Prints what the relay adds and carries, and the rate that is left of the limited links."""
        wanted = 2 * np.loadtxt(self.latency_path)[0, 1]
        extra = 1e3 * (links.round_trips() - wanted)
        rate = 8e-6 * 100e6 / links.transfer(100_000_000, links.FREE_PORT)
        self.links.relayed()
        self.links.limit(self.options.uplink, self.options.downlink)
        size = 400_000
        limited = 8e-6 * size / (links.transfer(size, links.NODE_PORT) - wanted / 2)
        print(
            f"relay: a round trip of {1e3 * wanted:.1f} ms takes {np.median(extra):.2f} ms more, at most "
            f"{extra.max():.2f}; it carries {rate:.0f} Mbit/s of one connection; an uplink of "
            f"{self.options.uplink / 1e6:g} Mbit/s carries {limited:.3f} Mbit/s of data"
        )

    def words(self, scheme: str, schedule: str) -> list[str]:
        graph = () if scheme == "epidemic_oracle" else (f"graph=graphs/regular_{self.nodes}_4.edges",)
        words = [
            *graph,
            *(word.format(nodes=self.nodes) if "{{" in word else word for word in SCHEMES[scheme]),
        ]
        if scheme == "ad_psgd":
            words += [
                f"time_model={{name: asynchronous, seconds_per_round: {3 * self.options.pace}, {schedule}}}"
            ]
        pace = f"training.pace.step_seconds={self.options.pace}"
        return ["-m", "decentnode", "run", str(CONFIG), *words, f"rounds={self.options.rounds}", pace]

    def run_for_real(self, scheme: str) -> tuple[Outcome, int]:
        """Starts a launcher in each namespace; raises RuntimeError where a run does not end well.

        Also returns the bytes on all links from the first round on.
        """
        outcome = Outcome(self.folder / f"{scheme}-real", self.nodes, is_simulated=False)
        outcome.folder.mkdir()
        machines = ", ".join(f"{{address: {links.address_of(i)}, nodes: 1}}" for i in range(self.nodes))
        spawner, runs = Spawner.of_this_process(), []
        try:
            for rank in range(self.nodes):
                words = [f"mapping.machines=[{machines}]", f"machine={rank}"]
                words = [
                    *self.words(scheme, "schedule: record"),
                    *words,
                    f"run_dir={outcome.directory(rank)}",
                ]
                with (outcome.folder / f"{rank}.txt").open("wb") as out:
                    environment = os.environ | {"PYTHONPATH": str(ROOT)}
                    runs.append(spawner.start(words, ROOT, environment, out.fileno(), links.name_of(rank)))
            limit = time.monotonic() + LIMIT
            events = outcome.directory(0) / "events.jsonl"
            while not (events.exists() and b'"started"' in events.read_bytes()):
                if time.monotonic() > limit or any(run.poll() for run in runs):
                    break
                time.sleep(0.02)
            # What else this machine does must not delay the nodes.
            for run in runs:
                os.setpriority(os.PRIO_PGRP, run.pid, PRIORITY)
            before, _ = self.links.carried()
            codes = [run.wait(limit - time.monotonic()) for run in runs]
        finally:
            for run in runs:
                run.kill()
        if any(codes):
            failed = codes.index(max(codes))
            raise RuntimeError(
                f"{scheme}, rank {failed}: {(outcome.folder / f'{failed}.txt').read_text()[-600:]}"
            )
        return outcome, self.links.carried()[0] - before

    def simulate(self, scheme: str, name: str, schedule: str, model: Model) -> Outcome:
        """Runs the same in virtual time."""
        outcome = Outcome(self.folder / f"{scheme}-{name}", self.nodes, is_simulated=True)
        rates = f"uplink: {self.options.uplink}, downlink: {self.options.downlink}"
        rates += f", network_model: {model}"
        network = f"communication={{name: simulated, latency: {self.latency_path}, {rates}}}"
        words = [*self.words(scheme, schedule), network, f"run_dir={outcome.folder}"]
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{scheme}, {name}: {(done.stdout + done.stderr)[-600:]}")
        return outcome

    def compare(self, scheme: str) -> bool:
        """Prints a line of the table for each network model; returns whether all is within the limits."""
        real, on_links = self.run_for_real(scheme)
        is_good, is_asynchronous = True, scheme == "ad_psgd"
        same = None
        if is_asynchronous:
            recorded = self.folder / "recorded" / "schedule"
            recorded.mkdir(parents=True)
            for rank in range(self.nodes):
                shutil.copy(real.directory(rank) / "schedule" / f"{rank:05d}.jsonl", recorded)
            replay = f"schedule: replay, schedule_path: {recorded.parent}"
            same = self.simulate(scheme, "replayed", replay, "queue")
        late = real.sum("train_seconds") / real.sum("steps") / self.options.pace - 1
        mixing = real.sum("mix_seconds") / self.nodes / self.options.rounds
        traffic = on_links / (real.sum("sent_payload") + real.sum("sent_header"))
        for model in self.options.models:
            predicted = self.simulate(scheme, model, "schedule: record", model)
            is_same = (same or predicted).model_hash == real.model_hash
            times = np.array([real.seconds, predicted.seconds])
            later, apart = predicted.later_seconds / real.later_seconds, 0.0
            shown = f"{later:.2f} in the second half; late {late:.1%}, mix {mixing:.3f} s"
            if is_asynchronous:
                times /= np.array([real.sum("steps"), predicted.sum("steps")]) / self.nodes
                counts = [real.staleness, predicted.staleness]
                either = sorted(counts[0] | counts[1])
                shares = np.array([[count[k] / count.total() for k in either] for count in counts])
                apart = float(np.abs(shares[0] - shares[1]).sum() / 2)
                means = shares @ np.array(either)
                shown = f"staleness {means[0]:.2f}, predicted {means[1]:.2f}, {apart:.0%} apart"
                shown += f"; {counts[0].total()} answers, predicted {counts[1].total()}"
            ratio = times[1] / times[0]
            print(
                f"{scheme:16} {self.nodes:5} {model:6} {times[0]:8.3f} {times[1]:10.3f} {ratio:6.2f} "
                f"{'equal' if is_same else 'DIFFER':7} {traffic:8.2f}  {shown}",
                flush=True,
            )
            is_good &= is_same and abs(ratio - 1) <= MOST_ERROR and apart <= MOST_ERROR
        return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", choices=(16, 64), default=(16, 64))
    parser.add_argument("--schemes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES))
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--pace", type=float, default=0.5, help="seconds of a step")
    parser.add_argument("--uplink", type=float, default=1e6, help="bits per second")
    parser.add_argument("--downlink", type=float, default=5e6, help="bits per second")
    parser.add_argument(
        "--models", nargs="+", choices=get_args(Model), default=["queue"], help="network models that predict"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the runs")
    options = parser.parse_args()
    good = True
    # It forks the launchers, and starts before this script goes before others.
    Spawner.of_this_process()
    os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory(prefix="dn-", dir="/tmp") as name:
            folder = Path(name)
            try:
                bench = Bench(folder, nodes, options)
                bench.measure_links()
                print("scheme           nodes model    real s  predicted  ratio hashes   traffic")
                for scheme in options.schemes:
                    good &= bench.compare(scheme)
                (count, latest), (_, dropped) = bench.links.relayed(), bench.links.carried()
                print(f"relay: {count} packets, at most {1e3 * latest:.1f} ms late; {dropped} dropped")
            finally:
                if options.keep:
                    shutil.copytree(folder, options.keep / str(nodes), dirs_exist_ok=True)
                links.remove_all()
    print("within 15 %" if good else "NOT within 15 %")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
