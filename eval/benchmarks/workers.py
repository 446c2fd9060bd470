"""Strong scaling: the time of a step against the number of workers, for a scheme beside all-reduce.

    decentnode bench workers [CONFIG] [KEY=VALUE ...] [--workers 1,2,4,8] [--wrapper] [--network YAML]
        [--virtual 16,64] [--step-seconds S] [--graph NAME|YAML] [--rounds N] [--repeats N] [--out FOLDER]

The global batch stays the same: batch_size (or batch_tokens) of the configuration is that of all workers
together, and each of n has 1/n of it. Measured rows are runs on this machine, of the configuration and of its
all-reduce baseline (training.name=ddp sharing=none), in turns; with --wrapper also loops of
DecentralizedDataParallel and of torch's DDP. Modelled rows are runs in virtual time behind the network of the
configuration (communication: simulated) or of --network, with steps as long as those that one node makes here
with its share of the batch; all-reduce is a ring there (eval/benchmarks/_ring_all_reduce.py).
"""

import argparse
import csv
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from _command import run_decentnode
from _report import conclude, median, median_ratio, parser
from _ring_all_reduce import Ring
from _wrapped_steps import check, step_seconds

from decentnode.config import shipped
from decentnode.config.loader import dump, load, resolved
from decentnode.config.overrides import Override
from decentnode.config.settings import Settings
from decentnode.config.type_check import parameters_of
from decentnode.core.clock import Clock
from decentnode.core.control_groups import processors
from decentnode.core.registry import GRAPHS
from decentnode.core.streams import explain
from decentnode.core.text import counted
from decentnode.errors import BadInput, DecentnodeError
from decentnode.node.calibration import calibrate
from decentnode.node.experiment import Experiment

WORKERS = "1,2,4,8"
WARM_UP = 3
"""Measured rounds that are not counted."""
ROUNDS = {"measured": 20, "modelled": 8}
"""Rounds, or steps of the wrapper, that are counted by default."""
CALIBRATION_STEPS = 60
MOST_WORKERS = 4096


@dataclass(frozen=True)
class Row:
    """The times of a step for one number of workers."""

    workers: int
    loop: Literal["run", "wrapper"]
    kind: Literal["measured", "modelled"]
    batch: int
    """Samples, or tokens, of one worker."""
    scheme: str
    scheme_ms: float
    all_reduce_ms: float
    ratio: float
    """All-reduce over the scheme: above 1 the scheme is faster."""
    threads: int
    """Those of each worker."""
    compute_ms: float | None = None
    """Modelled rows: the step of one worker without communication."""
    shares_processors: bool = False
    """Measured rows: whether there were more workers than processors."""


@dataclass(frozen=True)
class Benchmark:
    """A configuration whose batch is divided among workers."""

    config: Path
    overrides: tuple[Override, ...]
    settings: Settings
    """Those of the configuration itself."""
    graph: dict[str, Any]
    """Name and options of the graph, without the number of nodes."""
    rounds: dict[str, int]
    """Rounds that are counted, by kind of row."""
    repeats: int
    threads: int
    """Those of each worker: as many for each number of workers, or one would have the work of all."""

    @classmethod
    def of(cls, options: argparse.Namespace, most: int) -> "Benchmark":
        """Reads the configuration; raises BadInput. `most`: workers that are measured."""
        config = shipped.config_path(options.config)
        settings = load(config, options.overrides)
        if settings.training.gradient_sync.make().one_model:
            raise BadInput(f"{config}: is all-reduce itself; take a configuration that shares models")
        threads = settings.training.threads
        if threads == "auto":
            threads = max(1, processors() // most)
        return cls(
            config, tuple(options.overrides), settings, graph_of(options, settings),
            {kind: options.rounds or rounds for kind, rounds in ROUNDS.items()}, options.repeats, threads,
        )  # fmt: skip

    @property
    def batch_key(self) -> str:
        """The key of the batch that is divided."""
        return "batch_size" if self.settings.training.batch_tokens is None else "batch_tokens"

    @property
    def global_batch(self) -> int:
        """Samples, or tokens, of a step of all workers."""
        return int(getattr(self.settings.training, self.batch_key))

    def check_division(self, counts: Sequence[int]) -> None:
        """Raises BadInput where the batch cannot be divided equally."""
        whole = self.global_batch
        if unfit := [count for count in counts if whole % count]:
            multiple = math.lcm(*counts)
            near = sorted({max(1, whole // multiple) * multiple, -(-whole // multiple) * multiple})
            raise BadInput.at(
                f"training.{self.batch_key}",
                f"{whole} is the batch of all workers, and {unfit[0]} do not divide it; "
                f"{' and '.join(map(str, near))} can be divided: training.{self.batch_key}={near[0]}",
            )

    def settings_of(self, workers: int, *more: Override) -> Settings:
        """The settings of a run with so many workers; raises BadInput."""
        quiet = {"every": 0, "average_model": False, "figures": False}
        changes: dict[str, Any] = {
            "graph": {**self.graph, "nodes": workers}, "mapping": None, "evaluation": quiet,
            "rounds": WARM_UP + self.rounds["measured"],
        }  # fmt: skip
        training = {self.batch_key: self.global_batch // workers, "threads": self.threads}
        return load(self.config, [*self.overrides, changes, {"training": training}, *more])

    # On this machine.

    def measured_settings(self, workers: int) -> tuple[Settings, Settings]:
        """The settings of a measured run and of its baseline; raises BadInput."""
        virtual = self.settings.communication.make().plan.has_virtual_time
        real: list[Override] = [{"training": {"pace": None}}]
        real += [
            {"communication": {"name": "zeromq", "overlap": self.settings.communication.overlap}}
        ] * virtual
        baseline = {"training": {"name": "ddp"}, "sharing": "none", "communication": "zeromq"}
        return self.settings_of(workers, *real), self.settings_of(workers, *real, baseline)

    def measured(self, workers: int) -> Row:
        """A run and its baseline, in turns."""
        times: list[list[float]] = [[], []]
        settings = self.measured_settings(workers)
        for _ in range(self.repeats):
            for found, one in zip(times, settings, strict=True):
                found.append(run_step_seconds(one))
        return self._row(workers, "run", self.settings.sharing.name, times=times)

    def wrapped(self, workers: int) -> Row:
        """The wrapper and torch's DDP in loops of their own, in turns."""
        experiment = Experiment.from_settings(self.measured_settings(workers)[0])
        times = step_seconds(experiment, self.rounds["measured"], self.repeats)
        return self._row(workers, "wrapper", "wrapper", times=[times["wrapper"], times["ddp"]])

    def _row(
        self, workers: int, loop: Literal["run", "wrapper"], scheme: str, times: Sequence[Sequence[float]]
    ) -> Row:
        ours, theirs = times
        return Row(
            workers, loop, "measured", self.global_batch // workers, scheme,
            scheme_ms=median([1e3 * seconds for seconds in ours]),
            all_reduce_ms=median([1e3 * seconds for seconds in theirs]), ratio=median_ratio(theirs, ours),
            threads=self.threads, shares_processors=workers > processors(),
        )  # fmt: skip

    # In virtual time.

    def modelled_settings(
        self, workers: int, network: dict[str, Any], loop: str, seconds: float | None = None
    ) -> Settings:
        """The settings of a run in virtual time, whose steps take so many seconds; raises BadInput.

        Without `seconds` they are those of a calibration, which needs the threads of a worker.
        """
        pace = resolved(self.settings)["training"]["pace"]
        others = pace if isinstance(pace, dict) else {}
        changes: dict[str, Any] = {
            "rounds": self.rounds["modelled"],
            "communication": {"overlap": self.settings.communication.overlap, **network},
            "training": {"pace": "instant"}
            if seconds is None
            else {"pace": {**others, "step_seconds": seconds}, "threads": 1},
        }  # fmt: skip
        if loop == "wrapper":
            # The same algebra as `communicate_while_adapt`: one step, mixed while it is computed.
            changes["communication"] |= {"overlap": True}
            changes["training"] |= {"steps_per_round": 1, "epochs_per_round": None}
            changes["sharing"] = {"name": "gossip", "weights": resolved(self.settings)["sharing"]["weights"]}
        return self.settings_of(workers, changes)

    def modelled(
        self, workers: int, network: dict[str, Any], loops: Sequence[str], step: float | None
    ) -> Iterator[Row]:
        """A run in virtual time for each kind of loop; `step`: seconds of a step with the whole batch."""
        experiment = Experiment.from_settings(self.modelled_settings(workers, network, "run"))
        if step is None:
            seconds = float(calibrate(experiment, CALIBRATION_STEPS).pace["step_seconds"])
        else:
            seconds = step / workers
        for loop in loops:
            settings = self.modelled_settings(workers, network, loop, seconds)
            ours = run_step_seconds(settings)
            theirs = ring_seconds(replace(experiment, settings=settings))
            yield Row(
                workers, "wrapper" if loop == "wrapper" else "run", "modelled", self.global_batch // workers,
                scheme="wrapper" if loop == "wrapper" else self.settings.sharing.name,
                scheme_ms=median([1e3 * ours]), all_reduce_ms=median([1e3 * theirs]),
                ratio=median_ratio([theirs], [ours]), threads=self.threads,
                compute_ms=median([1e3 * seconds]),
            )  # fmt: skip


def run_step_seconds(settings: Settings) -> float:
    """Seconds of a step of a run, with its part of the exchange, in the time of the run; raises RunFailed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(dump(settings))
        run = run_decentnode(str(config))
    if run.summary["finished_nodes"] != run.summary["nodes"]:
        raise RuntimeError("a node was lost")
    simulated = run.summary["simulated"]
    # In virtual time no round is slower because it is one of the first.
    skipped = 0 if simulated else WARM_UP
    if not (steps := sum(run.round_steps[skipped:])):
        raise BadInput("the first node makes no steps; give training.steps_per_round")
    return float(simulated["seconds"] if simulated else sum(run.round_seconds[skipped:])) / steps


def ring_seconds(experiment: Experiment) -> float:
    """Seconds of a step by ring all-reduce behind the modelled network, at the modelled pace."""
    settings, nodes = experiment.settings, experiment.graph.num_nodes
    network = settings.communication.make().network_of(nodes)
    slowed, clock = settings.training.slowed, Clock()
    assert slowed is not None, "steps in virtual time have a duration"
    paces = [slowed.of_rank(rank, nodes, settings.seed, clock=clock) for rank in range(nodes)]
    size = sum(p.numel() * p.element_size() for p in experiment.network.parameters() if p.requires_grad)
    return Ring(
        network, lambda rank, step: paces[rank].seconds(step, 0), size, settings.rounds
    ).step_seconds()


def numbers(text: str, flag: str) -> list[int]:
    """A list such as 1,2,4; raises BadInput."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= MOST_WORKERS for word in words):
        raise BadInput(f"{flag}: must be numbers of workers such as {WORKERS}, not '{text}'")
    return sorted({int(word) for word in words})


def graph_of(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Name and options of a graph for any number of nodes, without that number; raises BadInput."""
    if options.graph is None:
        if "nodes" in parameters_of(settings.graph.cls):
            return dict(resolved(settings)["graph"])
        print(
            "graph: ring, because that of the configuration has one size; --graph names another", flush=True
        )
        return {"name": "ring"}
    graph = mapping_of(options.graph) or {"name": options.graph}
    if "nodes" not in parameters_of(GRAPHS.find(str(graph.get("name")))):
        raise BadInput(f"--graph: {options.graph} has no option nodes; take one for any number, such as ring")
    return graph


def mapping_of(text: str) -> dict[str, Any]:
    """A mapping in YAML; empty if the text is none."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    return found if isinstance(found, dict) else {}


def network_of(options: argparse.Namespace, benchmark: Benchmark) -> dict[str, Any] | None:
    """The modelled network as the section `communication` has it; None: nothing is modelled."""
    section = resolved(benchmark.settings)["communication"]
    is_virtual = benchmark.settings.communication.make().plan.has_virtual_time
    if options.network is None:
        if options.virtual is not None and not is_virtual:
            raise BadInput("--virtual: name a network, such as --network '{latency: 1 ms, uplink: 1 Gbit/s}'")
        return section if is_virtual else None
    if not (given := mapping_of(options.network)):
        raise BadInput(f"--network: must be such as '{{latency: 1 ms}}', not {options.network}")
    return {"name": "simulated", **given}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines for the screen."""
    heads = f"{'scheme':<16} {'step, ms':>9}  {'all-reduce, ms':>14}  {'ratio':>6}"
    yield f"{'workers':>7}  {'batch':>6}  {heads}  what"
    for row in rows:
        what = row.kind + (", processors shared" if row.shares_processors else "")
        yield (
            f"{row.workers:>7}  {row.batch:>6}  {row.scheme:<16} {row.scheme_ms:>9.4g}  "
            f"{row.all_reduce_ms:>14.4g}  {row.ratio:>6.2f}  {what}"
        )


def notices(rows: Sequence[Row], load: float) -> Iterator[str]:
    """What a reader of the table must know; `load`: processes that wanted a processor before the start."""
    yield f"each worker computes on {counted(rows[0].threads, 'thread')}"
    if any(row.shares_processors for row in rows):
        here = counted(processors(), "processor")
        yield f"more workers than the {here} here share them: such rows do not show how machines scale"
    is_loaded = load + rows[0].threads > processors() + 0.5
    if is_loaded and any(row.kind == "measured" for row in rows):
        yield f"load {load:.1f} before the start: other programs use the processors, too"
    if any(row.kind == "modelled" for row in rows):
        yield "modelled: steps by the pace, messages by the network; all-reduce is a ring behind backward"


def write(rows: Sequence[Row], folder: Path, title: str) -> None:
    """Writes the rows as CSV and JSON, and their picture; raises BadInput."""
    lines = [vars(row) for row in rows]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step_times.json").write_text(json.dumps(lines, indent=1) + "\n")
        with (folder / "step_times.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, lines[0])
            writer.writeheader()
            writer.writerows(lines)
    except OSError as error:
        raise BadInput(f"--out {folder}: cannot be written: {error.strerror}") from error
    # Only here, because a process with matplotlib must not fork nodes.
    from _scaling_picture import draw

    draw(lines, folder / "step_times.png", title, processors())
    print(f"{folder}: step_times.csv, step_times.json, step_times.png", flush=True)


def measure(options: argparse.Namespace) -> list[Row]:
    """All rows; raises BadInput before anything is started."""
    only_virtual = options.virtual is not None and options.workers is None
    real = [] if only_virtual else numbers(options.workers or WORKERS, "--workers")
    benchmark = Benchmark.of(options, most=max(real, default=1))
    network = network_of(options, benchmark)
    virtual = []
    if network is not None:
        virtual = real if options.virtual is None else numbers(options.virtual, "--virtual")
    benchmark.check_division([*real, *virtual])
    loops = ["run", "wrapper"] if options.wrapper else ["run"]
    for workers in real:
        settings = benchmark.measured_settings(workers)[0]
        if options.wrapper and workers == real[0]:
            check(Experiment.from_settings(settings))
    for workers in virtual:
        for loop in loops:
            benchmark.modelled_settings(workers, network or {}, loop)
    rows = []
    for workers in real:
        rows.append(benchmark.measured(workers))
        if options.wrapper:
            rows.append(benchmark.wrapped(workers))
    for workers in virtual:
        rows += benchmark.modelled(workers, network or {}, loops, options.step_seconds)
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("config", nargs="?", default="quickstart", metavar="CONFIG")
    options.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes of the configuration")
    options.add_argument("--workers", metavar="N,N", help=f"measured numbers of workers; default: {WORKERS}")
    options.add_argument("--virtual", metavar="N,N", help="modelled numbers; default: those of --workers")
    options.add_argument("--network", metavar="YAML", help="options of communication: simulated")
    options.add_argument(
        "--step-seconds",
        type=float,
        metavar="S",
        help="of a step with the whole batch, divided by n; default: calibrated here for each share",
    )
    options.add_argument(
        "--wrapper", action="store_true", help="also DecentralizedDataParallel, beside torch's DDP"
    )
    options.add_argument(
        "--graph", metavar="NAME|YAML", help="a family of graphs; default: that of the configuration"
    )
    options.add_argument(
        "--rounds", type=int, help="counted rounds, or steps of the wrapper; default: 20, modelled 8"
    )
    options.add_argument("--repeats", type=int, default=1, help="runs of each, in turns")
    options.add_argument("--out", type=Path, help="a folder for rows and picture; default: runs/workers-NAME")
    arguments = options.parse_intermixed_args()
    # Nodes and trials are forked from this process.
    torch.set_num_threads(1)
    if arguments.small:
        arguments.workers, arguments.virtual = "2", "4"
        arguments.network, arguments.wrapper, arguments.rounds = (
            "{latency: 1 ms, uplink: 100 Mbit/s}",
            True,
            3,
        )
        arguments.repeats = 1
    load = os.getloadavg()[0]
    try:
        if min(arguments.rounds or 1, arguments.repeats) < 1 or arguments.rounds == 0:
            raise BadInput("--rounds and --repeats: must be at least 1")
        if arguments.step_seconds is not None and not 0 < arguments.step_seconds < math.inf:
            raise BadInput(f"--step-seconds: must be above 0, not {arguments.step_seconds:g}")
        rows = measure(arguments)
        for line in (*table(rows), *notices(rows, load)):
            print(line)
        if arguments.out or not arguments.small:
            name = Path(arguments.config).stem
            write(rows, arguments.out or Path("runs") / f"workers-{name}", name)
    except DecentnodeError as error:
        sys.exit(int(explain(error)))
    ratio = {f"{row.scheme} {row.workers} {row.kind}": row.ratio for row in rows}
    conclude("workers", arguments.small, [vars(row) for row in rows], ratio, [])


if __name__ == "__main__":
    main()
