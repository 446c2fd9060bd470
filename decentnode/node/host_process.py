"""A host process: its nodes, from construction to their last report."""

import asyncio
import contextlib
import faulthandler
import gc
import hashlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import NoReturn

import msgspec
import torch

from decentnode.communication.base import Communication, ProcessDirectory
from decentnode.communication.launcher_link import reports
from decentnode.communication.launcher_link.handshakes import HandshakeBoard
from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.communication.peer_sampling.client import SamplingClient
from decentnode.communication.peer_sampling.service import endpoint_of
from decentnode.communication.security.curve import Credentials
from decentnode.config.settings import FailureSettings
from decentnode.core.clock import Clock
from decentnode.core.process_setup import keep_freed_memory
from decentnode.core.streams import flush_output, log_name, redirect_output
from decentnode.core.timeouts import Timeouts
from decentnode.errors import (
    BadInput,
    DecentnodeError,
    ExitCode,
    RunFailed,
    WorkerLost,
    explained,
    is_out_of_memory,
)
from decentnode.formats.records import RecordFile, private_megabytes
from decentnode.graph.overlays.served import ServedGraph
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.checkpoint_file import CheckpointFile
from decentnode.node.checkpoint.node_checkpoints import FROM_THE_START
from decentnode.node.checkpoint.safetensors_io import content_of
from decentnode.node.evaluation import NodeResources
from decentnode.node.experiment import Experiment
from decentnode.node.factory import NodeFactory, NodeHost
from decentnode.node.node import Node
from decentnode.node.own_loop.loop_node import AwaitedNode, BlockingNode, RoundsEnded
from decentnode.node.own_loop.loop_steps import LoopSteps
from decentnode.node.participant import Participant
from decentnode.node.rejoin import rejoin_nodes, rejoin_peers
from decentnode.simulation.clock import SECOND, VirtualClock
from decentnode.simulation.loop import VirtualLoop
from decentnode.simulation.outages import Outages
from decentnode.training.gradient_sync import SyncContext
from decentnode.training.settings import Factory

MOST_OWN_FILES = 256
"""The nodes of a process that have files of their own for records and checkpoints; more of them share one."""
OBJECTS_PER_NODE = 100
"""New objects of a node between two collections of garbage: about as many as it makes in two rounds."""
PRINT_STACKS = signal.SIGQUIT
"""Makes a process write the stacks of all threads to its log, whatever it is doing, as in a JVM."""


@dataclass(frozen=True)
class ForkContext(NodeResources):
    """The objects that a host process inherits from its launcher."""

    experiment: Experiment
    handshakes: HandshakeBoard
    start: int
    """An eventfd that counts start signals, one for each host process."""
    socket_dir: str
    threads: int
    """Threads of torch in each process."""
    credentials: Credentials | None
    """Credentials of links between machines; None: the links are plain."""


def run_host(fork_context: ForkContext, position: int, incarnation: int) -> NoReturn:
    """Runs the host process at `position` in its given incarnation, and ends it."""
    code = ExitCode.FAILED
    try:
        # First: what fails below must reach the log of the node.
        first = fork_context.experiment.processes[position].ranks[0]
        redirect_output(fork_context.records.parent / log_name(first))
        faulthandler.register(PRINT_STACKS, file=sys.stderr.fileno())
        torch.set_num_threads(fork_context.threads)
        keep_freed_memory()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each link and each segment needs descriptors; the soft limit is often 1024.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        code = _run(fork_context, position, incarnation)
    except BaseException as error:
        # Also before any node exists: without a report the launcher knows only the exit code.
        ranks = fork_context.experiment.processes[position].ranks
        code = max(explain_failure(fork_context, rank, error) for rank in ranks)
    finally:
        flush_output()
        # Not sys.exit: the interpreter's clean-up belongs to the parent of the fork.
        os._exit(code)


def _run(fork_context: ForkContext, position: int, incarnation: int) -> ExitCode:
    experiment = fork_context.experiment
    ranks = experiment.processes[position].ranks
    if incarnation:
        # Before anything that may take long: the silence of the previous process does not count.
        for heartbeat in map(fork_context.heartbeats.of, ranks):
            heartbeat.mark(heartbeat.read().round, Activity.START)
    directory, host = prepare_process(fork_context, position, incarnation)
    collect_rarely(len(ranks))
    factory = NodeFactory(experiment)
    nodes = [factory.node(rank, host, clock=directory.outages.clock_of(rank, host.clock)) for rank in ranks]
    communication, executor, clock = host.communication, host.executor, host.clock
    if experiment.settings.training.compile and not experiment.samples.gradient_sync.one_model:
        # Before this process is ready: neighbors would wait for a round in which it compiled.
        for node in nodes:
            node.training.rehearse()
    farewell_timeout = Timeouts.least_farewell
    try:
        begin_run(fork_context, position, incarnation, host, nodes)
        if news := executor.news:
            fork_context.reporter.send(reports.Notice(ranks[0], news))
        run_id = fork_context.identity.message_id
        for node in nodes:
            node.training.join(
                experiment.samples.gradient_sync.connect(
                    sync_context(experiment.settings.failures, node, directory, run_id=run_id)
                )
            )
        # What was made until here stays.
        gc.freeze()
        # The nodes are as they begin, and nothing but this thread runs.
        executor.start([node.training for node in nodes])
        loop_factory = partial(VirtualLoop, clock) if isinstance(clock, VirtualClock) else None
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            loop = experiment.settings.training.loop
            if loop is not None and not iscoroutinefunction(loop.cls):
                codes = [_run_blocking(nodes[0], loop, fork_context)]
            else:
                codes = runner.run(_run_nodes(nodes, communication, fork_context, clock))
        if ExitCode.OK in codes:
            # A node that finished may still have slower readers; after a failure no peer counts on it.
            farewell_timeout = experiment.settings.failures.timeouts.farewell
    finally:
        if host.checkpoint_file is not None:
            # Nodes that have failed are not waited for.
            host.checkpoint_file.commit()
        executor.close()
        # Also after a failure: peers may still read what this process has sent.
        communication.close(farewell_timeout)
    # The codes are ordered by severity.
    return max(codes)


def collect_rarely(nodes: int) -> None:
    """Has garbage collected rarely in a process of so many nodes.

    They stay, and so do the objects of a round, for as long as thousands of nodes are in it: collections need
    not look at them again and again.
    """
    gc.set_threshold(max(gc.get_threshold()[0], OBJECTS_PER_NODE * nodes), *gc.get_threshold()[1:])


def begin_run(
    fork_context: ForkContext, position: int, incarnation: int, host: NodeHost,
    participants: Sequence[Participant],
    wait: Callable[[int], object] = os.eventfd_read,
) -> None:  # fmt: skip
    """Takes the participants of a process into the run: at its start, or in its midst after a restart.

    `wait`: waits for the start signal, given its eventfd. Raises StartError.
    """
    experiment, communication, clock = fork_context.experiment, host.communication, host.clock
    deadline = experiment.settings.failures.start_deadline
    ranks = experiment.processes[position].ranks
    if incarnation:
        # It does not wait for a start signal: the run is in progress.
        fork_context.reporter.send(reports.Ready(position, os.getpid()))
    else:
        start_together(fork_context, position, participants, wait)
    if isinstance(clock, VirtualClock):
        # The first node that was saved continues; each of the others waits for its time.
        starts = (participant.records.continues_at for participant in participants)
        clock.nanoseconds = round(SECOND * min(starts))
    _request_views(fork_context, position, clock)
    absent = fork_context.identity.absent
    first_peers = sorted(experiment.first_peers(ranks) - absent)
    # The run id is known only now: the machines agree on it at the rendezvous.
    communication.open(first_peers, fork_context.identity.message_id, deadline, absent)
    if communication.news:
        fork_context.reporter.send(reports.Notice(ranks[0], communication.news))
    if incarnation:
        others, seed, graph = {*ranks, *absent}, experiment.settings.seed, experiment.graph.graph
        peers = {
            rank: rejoin_peers(graph, rank, others, seed=seed, incarnation=incarnation) for rank in ranks
        }
        rejoin_nodes(participants, peers, communication, identity=fork_context.identity, deadline=deadline)


def _request_views(fork_context: ForkContext, position: int, clock: Clock) -> None:
    """Has a graph that asks a service ask it, and fetches the first views; raises StartError."""
    experiment = fork_context.experiment
    graph, mapping, limits = experiment.graph.graph, experiment.mapping, experiment.settings.failures.timeouts
    if not isinstance(graph, ServedGraph):
        return

    first = experiment.processes[position].ranks[0]

    def log(text: str) -> None:
        print(text, flush=True)
        round = fork_context.heartbeats.of(first).read().round
        fork_context.reporter.send(reports.Degraded(first, round, "peer_sampling", text))

    host = mapping.machines[0].own if experiment.processes[position].machine == 0 else ""
    endpoint = endpoint_of(mapping, graph.address, graph.port, socket_dir=fork_context.socket_dir, host=host)
    graph.connect(
        SamplingClient(
            endpoint, position, limits, log=log, credentials=fork_context.credentials, clock=clock
        ).start()
    )


def sync_context(
    failures: FailureSettings, node: Node, directory: ProcessDirectory, run_id: int
) -> SyncContext:
    """Returns what the gradient sync of a node needs."""
    heartbeat = node.scheduler.heartbeat

    def mark(round: int, waits: bool) -> None:
        heartbeat.mark(round, Activity.RECEIVE if waits else Activity.TRAIN)

    return SyncContext(
        rank=node.rank,
        vector=node.training.vector,
        counters=node.exchange.endpoint.counters,
        mark=mark,
        directory=directory,
        run_id=run_id,
        start_deadline=failures.start_deadline,
        deadline=failures.deadline,
    )


def prepare_process(
    fork_context: ForkContext, position: int, incarnation: int
) -> tuple[ProcessDirectory, NodeHost]:
    """Prepares what the participants of this process have in common, with its transport."""
    experiment, heartbeats = fork_context.experiment, fork_context.heartbeats
    ranks, injector = experiment.processes[position].ranks, experiment.injector
    communication: Communication = experiment.settings.communication.make()
    clock = VirtualClock() if communication.plan.has_virtual_time else Clock()
    outages = injector.outages(fork_context.reporter) if injector else Outages()
    directory = ProcessDirectory(
        processes=experiment.processes,
        own=position,
        directory=fork_context.socket_dir,
        grace=experiment.settings.failures.grace,
        incarnation=incarnation,
        credentials=fork_context.credentials,
        interceptor=injector.interceptor(ranks, heartbeats, fork_context.reporter) if injector else None,
        clock=clock,
        run_directory=fork_context.records.parent,
        outages=outages,
        moved=fork_context.identity.address_of,
    )
    # A rejoining node may request a whole model.
    communication.prepare(directory, max(experiment.schemes.most_payload_bytes, experiment.layout.nbytes))
    record_file = checkpoint_file = None
    # The ranks of a script are threads, which write beside each other.
    if len(ranks) > MOST_OWN_FILES and not experiment.settings.is_of_scripts:
        record_file = RecordFile(fork_context.records, ranks, partial(fork_context.report_disk, ranks[0]))
        checkpoint_file = CheckpointFile(ranks, record_file)
    executor = experiment.execution.executor(len(ranks), marks=lambda rank: heartbeats.of(rank).marks)
    host = NodeHost(
        fork_context, communication, clock, is_shared=len(ranks) > 1, executor=executor,
        record_file=record_file, checkpoint_file=checkpoint_file,
    )  # fmt: skip
    return directory, host


def start_together(
    fork_context: ForkContext, position: int, participants: Sequence[Participant],
    wait: Callable[[int], object] = os.eventfd_read,
) -> None:  # fmt: skip
    """Reports that the nodes are ready, waits for the start signal, processes all handshakes, and resumes."""
    for node in participants:
        fork_context.handshakes.fill({node.rank: node.handshake()})
    # After the handshakes are written: the launcher collects them when all processes are ready.
    fork_context.reporter.send(reports.Ready(position, os.getpid()))
    wait(fork_context.start)
    everybody, identity = fork_context.handshakes.contents(), fork_context.identity
    for node in participants:
        node.receive_handshakes(everybody)
        if identity.round != FROM_THE_START:
            device = node.exchange.endpoint.device
            node.restore(checkpoint.read(identity.directory, node.rank, identity.round, device=device).state)
        node.set_elapsed(identity.seconds)


def _run_blocking(node: Node, loop: Factory, fork_context: ForkContext) -> ExitCode:
    """Runs a node whose loop is a function that waits, in this thread."""
    steps = node.local_steps
    assert isinstance(steps, LoopSteps)
    codes: list[ExitCode] = []
    seen = BlockingNode(
        node, steps, fork_context, node.vector.module, fork_context.experiment.settings.seed, node.training,
        run=partial(run_participant, fork_context=fork_context), closes=codes.append,
    )  # fmt: skip
    node.exchange.ends_with_peers = True
    node.vector.module.train()
    # What it raises is reported where its participant ends.
    with contextlib.suppress(Exception, SystemExit), seen:
        # A server makes no steps, so its loop would not have its turn before the end.
        if not seen.is_server:
            seen.start()
        if not seen.is_over:
            loop.cls(seen, **loop.options)
    return codes[0]


async def _run_loop(node: Node, steps: LoopSteps, fork_context: ForkContext) -> None:
    """Runs the loop of a node beside it; raises what the loop raises."""
    loop = fork_context.experiment.settings.training.loop
    assert loop is not None
    seen = AwaitedNode(
        node, steps, fork_context, node.vector.module, fork_context.experiment.settings.seed, node.training
    )
    node.exchange.ends_with_peers = True
    node.vector.module.train()
    try:
        if not seen.is_server:
            await seen.begin()
        if not seen.is_over:
            await loop.cls(seen, **loop.options)
    except RoundsEnded:
        # The run is whole; the loop only went on after it.
        print(f"rank {node.rank}: its loop was ended after the last round", flush=True)
    except SystemExit as stop:
        # A loop that does not look at what step() returns is ended by SystemExit where the run was stopped.
        if stop.code and not seen.is_over:
            error: Exception = RunFailed(f"rank {node.rank}: its loop exits with {stop.code}")
            node.failure = node.failure or error
    except Exception as error:
        node.failure = node.failure or error
    finally:
        seen.leave()


async def _run_nodes(
    nodes: list[Node], communication: Communication, fork_context: ForkContext, clock: Clock
) -> list[ExitCode]:
    communication.enter_loop()
    return await asyncio.gather(*(_run_node(node, fork_context, clock) for node in nodes))


async def _run_node(node: Node, fork_context: ForkContext, clock: Clock) -> ExitCode:
    """Runs one node to its end; its failure does not end the other nodes of the process.

    `clock`: that of the process.
    """
    if clock.is_virtual and (ahead := node.records.continues_at - clock.now()) > 0:
        await clock.sleep(ahead)
    steps, loop = node.local_steps, None
    if isinstance(steps, LoopSteps):
        loop = asyncio.create_task(_run_loop(node, steps, fork_context))
        if node.rank in node.graph.graph.servers:
            # Its loop has no turn before the end, and shows its optimizer now.
            await steps.turn.begun()
    try:
        return await run_participant(node, fork_context)
    finally:
        node.training.reducer.close()
        if loop is not None and isinstance(steps, LoopSteps):
            steps.turn.end()
            await loop


async def run_participant(participant: Participant, fork_context: ForkContext) -> ExitCode:
    """Runs a participant to its end, and reports how it has ended.

    That report is its last one: where a loop makes the steps, it follows when the loop has left.
    """
    reporter, rank, code = fork_context.reporter, participant.rank, ExitCode.OK
    try:
        try:
            await participant.run()
        finally:
            # Before the last report, which ends the node.
            if problem := participant.records.close():
                reporter.send(reports.DiskProblem(rank, problem[:500], lost=True))
        rounds = participant.round + 1
        is_whole = participant.scheduler.is_last(participant.round)
        # Now, because a loop may change the model after its last round.
        last = _finished(participant, rounds) if is_whole else reports.Stopped(rank, rounds)
    except Exception as error:
        participant.failure = error
        where = f"round {participant.round + 1}" if participant.round >= 0 else "before its first round"
        code = explain_failure(fork_context, rank, error, where=f"rank {rank}, {where}: ")
    finally:
        # Also after a failure: LEAVE spares the peers their deadline.
        participant.exchange.endpoint.leave(code != ExitCode.OK)
    if code == ExitCode.OK:
        await participant.local_steps.left()
        if isinstance(last, reports.Finished):
            last = msgspec.structs.replace(last, metrics=_scores(participant))
        reporter.send(last)
    return code


def _scores(participant: Participant) -> dict[str, float]:
    """Returns the scores of its model after its last round."""
    scores: dict[str, float] = {}
    for look in participant.after_round:
        scores |= look.scores_after(participant.round)
    return scores


def _finished(participant: Participant, rounds: int) -> reports.Finished:
    values, steps = participant.vector.values, participant.local_steps
    counters = participant.exchange.endpoint.counters
    scores = _scores(participant)
    # The last evaluation measured it; the kernel takes 5 ms for that.
    peak = max((look.peak_memory_mb for look in participant.after_round), default=0.0) if scores else 0.0
    return reports.Finished(
        rank=participant.rank,
        rounds=rounds,
        digest=hashlib.sha256(content_of(values)).hexdigest(),
        bytes_sent=counters.sent,
        bytes_received=counters.received,
        memory_mb=(peak or private_megabytes()) + steps.memory_mb,
        metrics=scores,
        refused=dict(participant.exchange.refused),
        epsilon=steps.epsilon,
        doubts=steps.doubts,
        attacker_weight=participant.exchange.attacker_weight,
        virtual_seconds=participant.records.seconds if participant.records.are_virtual else None,
    )


def explain_failure(fork_context: ForkContext, rank: int, error: BaseException, where: str = "") -> ExitCode:
    """Reports a failure in one line; an unexpected error goes to the node's log with its traceback."""
    expected = isinstance(error, DecentnodeError)
    line = str(error) if expected else f"{where}{explained(error)}"
    # A full disk must not prevent the report to the launcher.
    with contextlib.suppress(OSError):
        if expected:
            if not isinstance(error, WorkerLost):
                print(line, flush=True)
        else:
            traceback.print_exception(error)
    out_of_memory = is_out_of_memory(error)
    fork_context.reporter.send(reports.Failed(rank, line[:500], out_of_memory, isinstance(error, BadInput)))
    return ExitCode.OUT_OF_MEMORY if out_of_memory else ExitCode.FAILED
