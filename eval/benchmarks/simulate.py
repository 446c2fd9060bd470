"""Thousands of nodes in one process: what a round costs, what it takes beside its step, memory, the launcher.

    python eval/benchmarks/simulate.py [--small] [--part NAME ...] [--nodes N] [--rounds N]

costs: processor time of a node in a round among 256, 1,024, 4,096 and 16,384 nodes, from pairs of runs of
different lengths. large: one run of 16,384 nodes and 40 rounds, with its memory and the processor time of the
launcher. stop: seconds from SIGINT to the exit of a run, with a checkpoint of all its nodes, and of
`decentnode resume` until its first round begins. lenet: 1,024 nodes of LeNet (89,834 parameters) on images
like CIFAR-10, 20 rounds. overhead: what a node's round takes beside its step and its mix, all nodes in this
process. batch: a step by the loop beside one in batches of nodes (training.execution), in turns, without the
rest of a round; beside both torch's products alone, for the layers of this model.
"""

import asyncio
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _command import CONFIGS, ROOT, MemoryWatch, cpu_of_children
from _images import write_images
from _report import Target, conclude, parser, show

from decentnode.communication.base import ProcessDirectory
from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import Reporter
from decentnode.communication.launcher_link.snapshots import EvaluatorBoard, SnapshotBuffers
from decentnode.core.clock import Clock
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.evaluation import NodeResources
from decentnode.node.experiment import Experiment
from decentnode.node.factory import NodeFactory, NodeHost
from decentnode.node.host_process import collect_rarely
from decentnode.sharing.gossip import Gossip
from decentnode.simulation.clock import VirtualClock
from decentnode.simulation.loop import VirtualLoop
from decentnode.training.training import StepExecutor, StepResult, SubmittedStep, Training

PARTS = ("batch", "costs", "large", "lenet", "overhead", "stop")
NODES = (256, 1024, 4096, 16384)
WORK = 16384
"""Rounds of all nodes together between the two runs of a pair, at least."""
MOST_NODES, ROUNDS, LENET_NODES, LENET_ROUNDS, OVERHEAD_NODES, OVERHEAD_ROUNDS = 16384, 40, 1024, 20, 256, 60
SMALL_NODES, SMALL_ROUNDS = 64, 4
REPEATS, LEAST_BATCH_GAIN = 3, 10
BATCH_NODES, BATCH_ROUNDS = 1024, 20
MOST_GROWTH, MOST_MINUTES, MOST_GB, MOST_OVERHEAD_MS, MOST_SHARE = 1.3, 10, 12, 0.25, 0.05
MOST_STOP_SECONDS, ENDLESS = 20, 100_000
STOPPED = 128 + signal.SIGINT
LIMIT = 3600.0
"""Seconds of one run, at most."""
CHECK_INTERVAL = 0.1
QUIET = "evaluation={every: 0, final: false, figures: false}", "checkpoint.final=false"


def of_nodes(nodes: int, rounds: int) -> list[str]:
    """The overrides for so many nodes and rounds."""
    return [f"graph.nodes={nodes}", f"dataset.nodes={nodes}", f"rounds={rounds}"]


@dataclass
class LongRun:
    """A run that has ended well."""

    seconds: float
    used_mb: float
    """By how much the memory of the machine was fuller at the fullest moment than before."""
    cpu_seconds: float
    """Processor time of all its processes."""
    launcher_seconds: float
    """Processor time of the launcher alone, from the first round on."""
    summary: dict[str, Any]


def run(*overrides: str) -> LongRun:
    """One command in an empty directory that is gone afterwards; raises RuntimeError when it fails."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, MemoryWatch() as memory:
        directory, began, spent = Path(folder, "run"), time.monotonic(), cpu_of_children()
        command = [sys.executable, "-m", "decentnode", "run", str(CONFIGS / "simulate.yaml")]
        first = last = 0.0
        with Path(folder, "output").open("w+") as output:
            process = subprocess.Popen(
                [*command, f"run_dir={directory}", *overrides], cwd=ROOT, stdout=output, stderr=output
            )
            while process.poll() is None:
                if time.monotonic() - began > LIMIT:
                    process.kill()
                last = processor_seconds(process.pid) or last
                # What a start takes is no share of the rounds.
                first = first or (last if is_started(directory) else 0.0)
                time.sleep(CHECK_INTERVAL)
            if process.returncode:
                output.seek(0)
                raise RuntimeError(f"the run ended with {process.returncode}:\n{output.read()[-2000:]}")
        summary = json.loads((directory / "summary.json").read_text())
        return LongRun(
            time.monotonic() - began, memory.used_mb, cpu_of_children() - spent, last - first, summary
        )


def is_started(directory: Path) -> bool:
    """Whether the first round of a run has begun."""
    return starts(directory) > 0


def starts(directory: Path) -> int:
    """How often the nodes of a run have begun a round as its first one, at its start or as it was resumed."""
    events = directory / "events.jsonl"
    return events.read_bytes().count(b'"started"') if events.exists() else 0


def stopped_and_resumed(*overrides: str) -> dict[str, float]:
    """A run that is stopped after some rounds, and once more after it was resumed; raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        directory, log = Path(folder, "run"), Path(folder, "output")
        run = "run", str(CONFIGS / "simulate.yaml"), f"run_dir={directory}", *overrides
        _, stop = until_stopped(directory, log, *run)
        summary = json.loads((directory / "summary.json").read_text())
        resume, _ = until_stopped(directory, log, "resume", str(directory))
        return {
            "stop_seconds": round(stop, 1), "resume_seconds": round(resume, 1),
            "checkpoint_mb": round(summary["checkpoint_bytes"] / 1e6),
        }  # fmt: skip


def until_stopped(directory: Path, log: Path, *arguments: str) -> tuple[float, float]:
    """Seconds of a command until its first round began, and from SIGINT, a round later, to its exit."""
    before, records = starts(directory), 0
    with log.open("w") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "decentnode", *arguments], cwd=ROOT, stdout=output, stderr=output
        )
        while process.poll() is None and starts(directory) == before:
            time.sleep(CHECK_INTERVAL)
            records = bytes_of_records(directory)
        started = time.monotonic()
        while process.poll() is None and bytes_of_records(directory) == records:
            time.sleep(CHECK_INTERVAL)
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        try:
            process.wait(LIMIT)
        finally:
            process.kill()
    if process.returncode != STOPPED:
        raise RuntimeError(f"the run ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    return started - began, time.monotonic() - asked


def bytes_of_records(directory: Path) -> int:
    """The bytes of all records of a run so far."""
    return sum(path.stat().st_size for path in (directory / "records").glob("*"))


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far, without that of its children; 0 where it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def cost(nodes: int, overrides: Sequence[str] = (), rounds: int | None = None) -> float:
    """Milliseconds of processor time of a node in a round: a longer run without a shorter one."""
    more = rounds or max(2, WORK // nodes)
    short, long = (run(*of_nodes(nodes, length), *QUIET, *overrides) for length in (1, 1 + more))
    return 1000 * (long.cpu_seconds - short.cpu_seconds) / nodes / more


class NoSteps(StepExecutor):
    """Steps without any computation."""

    def __init__(self) -> None:
        self._result = StepResult(torch.tensor(1.0), False, count=16.0, samples=16)

    def submit(self, training: Training, round: int, step: int) -> SubmittedStep:
        return lambda: self._result


class TimedSteps(StepExecutor):
    """Measures the processor time of another executor."""

    def __init__(self, executor: StepExecutor) -> None:
        self.executor, self.seconds = executor, 0.0

    def submit(self, training: Training, round: int, step: int) -> SubmittedStep:
        submitted = self._timed(partial(self.executor.submit, training, round, step))
        return partial(self._timed, submitted)

    def _timed(self, call: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = call()
        self.seconds += time.process_time() - began
        return result

    async def pause(self, clock: Clock) -> None:
        await self.executor.pause(clock)


def in_process(
    nodes: int, rounds: int, executor: StepExecutor | None = None, *overrides: str
) -> tuple[float, float, float]:
    """Milliseconds of processor time of a node's round, of the mix and of the step in it, in this process.

    `executor`: of the steps, by default that of the settings.
    """
    mixing, mix = [0.0], Gossip.mix

    def timed(*arguments: Any) -> None:
        began = time.perf_counter()
        mix(*arguments)
        mixing[0] += time.perf_counter() - began

    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        experiment = Experiment.from_yaml(
            CONFIGS / "simulate.yaml", [*of_nodes(nodes, rounds), *QUIET, *overrides]
        )
        collect_rarely(nodes)
        steps = TimedSteps(executor or experiment.execution.executor_here(nodes))
        built = built_nodes(Path(folder), experiment, steps)
        Gossip.mix = timed  # type: ignore[method-assign, assignment]
        try:
            with asyncio.Runner(loop_factory=partial(VirtualLoop, built[0].exchange.clock)) as runner:
                spent = runner.run(spent_by([node.run for node in built]))
        finally:
            Gossip.mix = mix  # type: ignore[method-assign]
        for node in built:
            node.records.close()
    each = 1000 / nodes / rounds
    return each * spent, each * mixing[0], each * steps.seconds


async def spent_by(calls: Sequence[Callable[[], Any]]) -> float:
    """Processor time of all calls together, with the garbage collector as in a process of so many nodes."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    collect_rarely(len(calls))
    began = time.process_time()
    await asyncio.gather(*(call() for call in calls))
    spent = time.process_time() - began
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    return spent


def bare_products(nodes: int = 436, repeats: int = 40) -> float:
    """Microseconds of a node for torch's products of a step, and for copying its vector there and back."""
    x, w1, w2 = (torch.randn(nodes, *shape) for shape in ((64, 16), (64, 64), (10, 64)))
    vectors, stacked = [torch.randn(4810) for _ in range(nodes)], torch.empty(nodes, 4810)
    gradients = [torch.empty_like(w) for w in (w1, w2)]

    def step() -> None:
        torch.stack(vectors, out=stacked)
        hidden = torch.bmm(w1, x)
        scores = torch.bmm(w2, hidden)
        torch.bmm(scores, hidden.mT, out=gradients[1])
        torch.bmm(torch.bmm(w2.mT, scores), x.mT, out=gradients[0])
        torch._foreach_copy_(vectors, stacked.unbind())

    spent = []
    for _ in range(repeats):
        began = time.process_time()
        step()
        spent.append(time.process_time() - began)
    return 1e6 * statistics.median(spent) / nodes


def built_nodes(folder: Path, experiment: Experiment, executor: StepExecutor) -> list[Any]:
    """Nodes that are ready to run."""
    nodes = experiment.graph.num_nodes
    reading, writing = os.pipe()
    os.close(reading)
    layout = experiment.layout
    resources = NodeResources(
        SnapshotBuffers(range(nodes), layout.numel, layout.dtype),
        EvaluatorBoard(SnapshotBuffers([], 1), 0),
        1.0,
        Reporter(writing),
        folder,
        HeartbeatBoard(range(nodes)),
        RunIdentity(folder / "checkpoints", "benchmark"),
    )
    clock, communication = VirtualClock(), experiment.settings.communication.make()
    communication.prepare(ProcessDirectory(experiment.processes, 0, str(folder), clock=clock), 1 << 20)
    host = NodeHost(resources, communication, clock, is_shared=True, executor=executor)
    made = [NodeFactory(experiment).node(rank, host) for rank in range(nodes)]
    for node in made:
        node.sharing.begin(node.training.vector.values)
    return made


def lenet(folder: Path, nodes: int) -> list[str]:
    """The overrides for nodes of LeNet on images like CIFAR-10, eight for each."""
    write_images(folder, 8 * nodes, test=500)
    return [
        f"dataset={{name: cifar10, path: {folder}, partition: iid}}", "model=lenet", "training.batch_size=8",
        f"graph.nodes={nodes}",
    ]  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    options.add_argument("--nodes", type=int, help=f"of the large and the stopped run; default: {MOST_NODES}")
    options.add_argument("--rounds", type=int, help=f"of the large run; default: {ROUNDS}")
    options.add_argument("--override", action="append", default=[], help="of costs, large and stop")
    arguments = options.parse_args()
    small, parts = arguments.small, arguments.part or PARTS
    nodes = arguments.nodes or (SMALL_NODES if small else MOST_NODES)
    table, targets, ratio = list[dict[str, Any]](), list[Target](), dict[str, float]()
    torch.set_num_threads(1)

    def add(**line: Any) -> None:
        show(line)
        table.append(line)

    if "overhead" in parts:
        size, rounds = (SMALL_NODES, SMALL_ROUNDS) if small else (OVERHEAD_NODES, OVERHEAD_ROUNDS)
        for _ in range(1 if small else REPEATS):
            bare, mix, _ = in_process(size, rounds, NoSteps())
            whole, _, _ = in_process(size, rounds, StepExecutor())
            add(
                part="overhead", nodes=size, rounds=rounds, round_ms=round(whole, 3),
                step_ms=round(whole - bare, 3), mix_ms=round(mix, 3), rest_ms=round(bare - mix, 3),
            )  # fmt: skip
        rest = statistics.median(line["rest_ms"] for line in table if line["part"] == "overhead")
        targets.append(Target("ms of a round beside its step and mix", rest, "at most", MOST_OVERHEAD_MS))
    if "batch" in parts:
        size, rounds = (SMALL_NODES, SMALL_ROUNDS) if small else (BATCH_NODES, BATCH_ROUNDS)
        gains = []
        for _ in range(1 if small else REPEATS):
            loop, batch = (
                in_process(size, rounds, None, f"training.execution={execution}")[2]
                for execution in ("alone", "{batches: auto}")
            )
            gains.append(loop / batch)
            add(
                part="batch", nodes=size, rounds=rounds, loop_us=round(1000 * loop),
                batch_us=round(1000 * batch), products_us=round(bare_products()),
                gain=round(loop / batch, 2),
            )  # fmt: skip
        ratio["batch_nodes"] = round(statistics.median(gains), 2)
        name = "a step of the loop over one in batches of nodes"
        targets.append(Target(name, statistics.median(gains), "at least", LEAST_BATCH_GAIN))
    if "costs" in parts:
        costs = {n: cost(n, arguments.override, 2 if small else None) for n in ([nodes] if small else NODES)}
        for n, milliseconds in costs.items():
            add(part="costs", nodes=n, cpu_ms=round(milliseconds, 3))
        growth = max(costs.values()) / min(costs.values())
        targets.append(Target("processor time of a round, most over least", growth, "at most", MOST_GROWTH))
    if "large" in parts:
        rounds = arguments.rounds or (SMALL_ROUNDS if small else ROUNDS)
        large = run(*of_nodes(nodes, rounds), *arguments.override)
        share = large.launcher_seconds / (large.cpu_seconds - large.launcher_seconds)
        minutes, used = round(large.seconds / 60, 2), round(large.used_mb)
        add(
            part="large", nodes=nodes, rounds=rounds, minutes=minutes,
            startup_seconds=large.summary["startup_seconds"], cpu_seconds=round(large.cpu_seconds, 1),
            launcher_share=round(share, 4), machine_mb=used,
        )  # fmt: skip
        targets += [
            Target(f"minutes of {nodes} nodes, {rounds} rounds", minutes, "at most", MOST_MINUTES),
            Target("GB of the machine's memory taken", used / 1000, "at most", MOST_GB),
            Target("the launcher's processor time over that of the rest", share, "at most", MOST_SHARE),
        ]
    if "stop" in parts:
        never = "evaluation={every: 0, final: false, figures: false}"
        stop = stopped_and_resumed(*of_nodes(nodes, ENDLESS), never, *arguments.override)
        add(part="stop", nodes=nodes, **stop)
        name = f"seconds of a stop with a checkpoint of {nodes} nodes"
        targets.append(Target(name, stop["stop_seconds"], "at most", MOST_STOP_SECONDS))
    if "lenet" in parts:
        size, rounds = (16, 2) if small else (LENET_NODES, LENET_ROUNDS)
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            images = run(*lenet(Path(folder), size), f"rounds={rounds}", *arguments.override)
        minutes, used = round(images.seconds / 60, 2), round(images.used_mb)
        add(part="lenet", nodes=size, rounds=rounds, minutes=minutes, machine_mb=used)
        targets.append(Target("GB of 1,024 LeNet nodes", used / 1000, "at most", MOST_GB))
    conclude("simulate", small, table, ratio, [] if small else targets)


if __name__ == "__main__":
    main()
