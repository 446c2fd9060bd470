"""What runs in a host process: its nodes, from their construction to their last report."""

import asyncio
import contextlib
import faulthandler
import hashlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from decentnode.communication.base import Communication, ProcessDirectory
from decentnode.communication.launcher_link.handshakes import HandshakeBoard
from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatBoard
from decentnode.communication.launcher_link.reports import (
    DiskProblem,
    Failed,
    Finished,
    Notice,
    Ready,
    Reporter,
    Stopped,
)
from decentnode.communication.launcher_link.snapshots import SnapshotBuffers
from decentnode.communication.security.curve import Credentials
from decentnode.config.settings import FailureSettings
from decentnode.core.clock import Clock
from decentnode.core.frames import explained
from decentnode.core.process_setup import keep_freed_memory
from decentnode.core.streams import log_name, redirect_output
from decentnode.errors import DecentnodeError, ExitCode, is_out_of_memory
from decentnode.node.checkpoint.node_checkpoints import RunIdentity
from decentnode.node.checkpoint.safetensors_io import content_of
from decentnode.node.experiment import Experiment, NodeResources
from decentnode.node.farewell import FAREWELL_SECONDS, farewell_seconds
from decentnode.node.node import Node
from decentnode.node.rejoin import bring_back
from decentnode.results.records import private_megabytes
from decentnode.training.gradient_sync import SyncContext

TELL_STACKS = signal.SIGUSR1
"""Has a process write to its log where each of its threads is, whatever it does."""


@dataclass(frozen=True)
class ForkContext:
    """What a host process gets from its launcher through the fork."""

    experiment: Experiment
    snapshots: SnapshotBuffers
    introductions: HandshakeBoard
    beacons: HeartbeatBoard
    lineage: RunIdentity
    reporter: Reporter
    start: int
    """An eventfd that counts start signals, one for each host process."""
    run_dir: Path
    socket_dir: str
    threads: int
    """Threads of torch in each process."""
    credentials: Credentials | None = None
    """What guards links between machines."""


def run_host(inheritance: ForkContext, position: int, incarnation: int = 0) -> NoReturn:
    """Runs the host process at `position`, started for the `incarnation`-th time again, and ends it."""
    code = ExitCode.FAILED
    try:
        _settle_in(inheritance, position)
        code = _run(inheritance, position, incarnation)
    except BaseException as error:
        code = _report_failure(inheritance, position, error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        # Not sys.exit: the interpreter's own clean-up belongs to the process this one was forked from.
        os._exit(code)


def _settle_in(inheritance: ForkContext, position: int) -> None:
    first = inheritance.experiment.processes[position].ranks[0]
    redirect_output(inheritance.run_dir / log_name(first))
    faulthandler.register(TELL_STACKS, file=sys.stderr.fileno())
    torch.set_num_threads(inheritance.threads)
    keep_freed_memory()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(inheritance: ForkContext, position: int, incarnation: int) -> ExitCode:
    experiment = inheritance.experiment
    deadline = experiment.settings.failures.start_deadline
    ranks = experiment.processes[position].ranks
    if incarnation:
        _get_ready_again(inheritance.beacons, ranks)
    place = _place(inheritance, position, incarnation)
    communication, nodes = _build(inheritance, place)
    if incarnation:
        inheritance.reporter.send(Ready(position, os.getpid()))
    else:
        _start_together(inheritance, position, nodes)
    absent = inheritance.lineage.absent
    met_first = sorted(experiment.met_first(ranks) - absent)
    run_id = inheritance.snapshots.run_id
    communication.open(met_first, run_id, deadline, absent)
    if communication.news:
        inheritance.reporter.send(Notice(ranks[0], communication.news))
    patience = FAREWELL_SECONDS
    try:
        if incarnation:
            peers = {rank: experiment.graph.graph.partners(rank) - absent for rank in ranks}
            bring_back(nodes, peers, communication, inheritance.lineage, deadline)
        for node in nodes:
            node.training.join(
                experiment.coupling.connect(sync_context(experiment.settings.failures, node, place, run_id))
            )
        codes = asyncio.run(_run_nodes(nodes, inheritance))
        if ExitCode.OK in codes:
            patience = farewell_seconds(experiment.settings.failures)
    finally:
        communication.close(patience)
    return max(codes)


def sync_context(failures: FailureSettings, node: Node, place: ProcessDirectory, run_id: int) -> SyncContext:
    """What the gradient sync of a node learns of it."""
    beacon = node.course.beacon

    def mark(round: int, waits: bool) -> None:
        beacon.mark(round, Activity.RECEIVE if waits else Activity.TRAIN)

    return SyncContext(
        node.rank, node.training.vector, node.exchange.endpoint.counters, mark, place, run_id,
        failures.start_deadline, failures.deadline,
    )  # fmt: skip


def _get_ready_again(beacons: HeartbeatBoard, ranks: Sequence[int]) -> None:
    """Takes down what the process before did last: its silence is none of this one, which has to begin."""
    for beacon in map(beacons.of, ranks):
        beacon.mark(beacon.read().round, Activity.START)


def _place(inheritance: ForkContext, position: int, incarnation: int) -> ProcessDirectory:
    experiment = inheritance.experiment
    failures, ranks = experiment.settings.failures, experiment.processes[position].ranks
    nemesis = experiment.nemesis
    sieve = nemesis.sieve(ranks, inheritance.beacons, inheritance.reporter) if nemesis else None
    return ProcessDirectory(
        experiment.processes, position, inheritance.socket_dir, failures.grace, incarnation,
        failures.on_loss == "wait", inheritance.credentials, sieve, experiment.graph.graph.period is None,
    )  # fmt: skip


def _build(inheritance: ForkContext, place: ProcessDirectory) -> tuple[Communication, list[Node]]:
    experiment, ranks = inheritance.experiment, place.process.ranks
    communication: Communication = experiment.settings.communication.make()
    # A node that comes back may ask for a whole model.
    communication.prepare(place, max(experiment.most_payload_bytes, experiment.layout.nbytes))
    surroundings = NodeResources(
        communication, inheritance.snapshots, inheritance.reporter, inheritance.run_dir / "records", Clock(),
        inheritance.beacons, inheritance.lineage, shares_process=len(ranks) > 1,
    )  # fmt: skip
    return communication, [experiment.build(rank, surroundings) for rank in ranks]


def _start_together(inheritance: ForkContext, position: int, nodes: list[Node]) -> None:
    """Says that the nodes are ready, and waits for the start; then each knows what all say of themselves."""
    for node in nodes:
        inheritance.introductions.put(node.rank, node.sharing.introduction())
    inheritance.reporter.send(Ready(position, os.getpid()))
    os.eventfd_read(inheritance.start)
    everybody = inheritance.introductions.said()
    for node in nodes:
        node.sharing.meet(everybody)
        node.checkpoints.resume(node)


async def _run_nodes(nodes: list[Node], inheritance: ForkContext) -> list[ExitCode]:
    return await asyncio.gather(*(_run_node(node, inheritance) for node in nodes))


async def _run_node(node: Node, inheritance: ForkContext) -> ExitCode:
    """One node to its end; its failure does not end the others of the process."""
    is_waited_for = False
    try:
        await node.run()
        _close_records(node, inheritance.reporter)
        inheritance.reporter.send(_last_word(node))
        return ExitCode.OK
    except Exception as error:
        is_waited_for = _is_waited_for(node, inheritance, error)
        return _explain(inheritance, node.rank, error, f"rank {node.rank}, {_where(node)}: ")
    finally:
        node.training.tie.close()
        if not is_waited_for:
            node.exchange.endpoint.leave()
        _close_records(node, inheritance.reporter)


def _is_waited_for(node: Node, inheritance: ForkContext, error: Exception) -> bool:
    """Whether a node that fails says no goodbye, as one that is killed: its neighbors wait until it is back.

    Where others of its process may go on it cannot come back, and who ends on purpose does not.
    """
    if isinstance(error, DecentnodeError):
        return False
    experiment = inheritance.experiment
    process = next(process for process in experiment.processes if node.rank in process.ranks)
    return experiment.settings.failures.on_loss == "wait" and len(process.ranks) == 1


def _close_records(node: Node, reporter: Reporter) -> None:
    """Says what the disk has not taken; before the node's last word, after which nothing is heard."""
    problem = node.records.close()
    if problem:
        reporter.send(DiskProblem(node.rank, problem[:500], lost=True))


def _last_word(node: Node) -> Finished | Stopped:
    rounds = node.round + 1
    return _finished(node, rounds) if rounds == node.course.rounds else Stopped(node.rank, rounds)


def _finished(node: Node, rounds: int) -> Finished:
    values = node.training.vector.values
    counters, evaluation = node.exchange.endpoint.counters, node.evaluation
    scores = evaluation.scores if evaluation.plan.is_due(node.round) else None
    return Finished(
        rank=node.rank,
        rounds=rounds,
        digest=hashlib.sha256(content_of(values)).hexdigest(),
        bytes_sent=counters.sent,
        bytes_received=counters.received,
        # Not counted anew where the last round has just been evaluated: the kernel takes 5 ms.
        memory_mb=evaluation.peak_memory_mb if scores else private_megabytes(),
        accuracy=scores.accuracy if scores else None,
        test_loss=scores.loss if scores else None,
        refused=dict(node.exchange.refused),
    )


def _report_failure(inheritance: ForkContext, position: int, error: BaseException) -> ExitCode:
    codes = [_explain(inheritance, r, error) for r in inheritance.experiment.processes[position].ranks]
    return max(codes)


def _where(node: Node) -> str:
    return f"round {node.round + 1}" if node.round >= 0 else "before its first round"


def _explain(inheritance: ForkContext, rank: int, error: BaseException, where: str = "") -> ExitCode:
    """Writes one line to the launcher, and what nobody expected with its traceback to the node's log."""
    expected = isinstance(error, DecentnodeError)
    line = str(error) if expected else f"{where}{explained(error)}"
    with contextlib.suppress(OSError):
        if expected:
            print(line, flush=True)
        else:
            traceback.print_exception(error)
    out_of_memory = is_out_of_memory(error)
    inheritance.reporter.send(Failed(rank, line[:500], out_of_memory))
    return ExitCode.OUT_OF_MEMORY if out_of_memory else ExitCode.FAILED
