"""Small groups of nodes over any transport, each host process a fork of the test."""

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from zmq.utils.garbage import gc as buffers_sent

from decentnode.communication.base import BufferSpec, Endpoint, HostProcess, Inbox, ProcessDirectory
from decentnode.communication.inproc import InProcess
from decentnode.communication.security.curve import Credentials, KeyPair
from decentnode.communication.torch_distributed.plugin import Hybrid, TorchDistributed
from decentnode.communication.zeromq import io_thread as sockets
from decentnode.communication.zeromq.plugin import ZeroMQ
from tests.integration.spawner import WORKER
from tests.support.pages import blocks

FORK = multiprocessing.get_context("fork")
RUN_ID = 0x1234_5678_9ABC
LIMIT = 30.0
"""Seconds after which the processes are killed."""


def in_a_child(act: Callable[[], object]) -> int:
    """Forks a process that does something and then leaves with 0; returns how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass(frozen=True)
class TransportCase:
    """A transport and how the nodes are spread over processes and machines."""

    name: str
    local: str = ""
    nodes_per_process: int = 1
    machines: int = 1
    guarded: bool = False
    grouped: str = ""
    """Whose payloads go through a process group: of all, or of some."""
    connections: object = "auto"
    """TCP connections of a link."""

    def communication(self, base_port: int = 29600):
        if not self.local:
            return InProcess()
        if self.local == "documented":
            return documented_transport()()
        if self.grouped == "all":
            return TorchDistributed(self.local, base_port, backend="gloo", group_port=base_port + 5)
        if self.grouped:
            return Hybrid(self.local, base_port, backend="gloo", group_ranks=(0, 1, 2))
        return ZeroMQ(self.local, base_port, self.nodes_per_process, self.connections)

    def processes(self, nodes: int) -> tuple[HostProcess, ...]:
        per_machine = -(-nodes // self.machines)
        places = []
        for machine in range(self.machines):
            ranks = range(machine * per_machine, min(nodes, (machine + 1) * per_machine))
            size = self.nodes_per_process
            groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
            address = f"127.0.0.{machine + 1}"
            places += [HostProcess(machine, i, tuple(group), address) for i, group in enumerate(groups)]
        return tuple(places)


@cache
def documented_transport() -> type:
    """The transport of docs/adding_a_transport.md."""
    names: dict = {"__name__": "datagrams"}
    (code,) = blocks("docs/adding_a_transport.md", "python")
    exec(code, names)
    return names["Datagrams"]


INPROC = TransportCase("inproc")
SHARED = TransportCase("shared_memory", "shared_memory")
IPC = TransportCase("ipc", "ipc")
TCP = TransportCase("tcp", "tcp")
SHARED_SIBLINGS = TransportCase("shared_memory, 2 nodes per process", "shared_memory", 2)
TCP_SIBLINGS = TransportCase("tcp, 2 nodes per process", "tcp", 2)
MACHINES = TransportCase("two machines", "shared_memory", 1, 2)
GUARDED = TransportCase("two machines with keys", "shared_memory", 1, 2, guarded=True)
GLOO = TransportCase("gloo", "ipc", grouped="all")
GLOO_MACHINES = TransportCase("gloo, two machines", "ipc", machines=2, grouped="all")
HYBRID = TransportCase("hybrid", "shared_memory", grouped="some")
GROUPED = (GLOO, HYBRID)
TRANSPORT_CASES = (*GROUPED, INPROC, SHARED, IPC, TCP, SHARED_SIBLINGS, TCP_SIBLINGS, MACHINES, GUARDED)
DOCUMENTED = TransportCase("docs/adding_a_transport.md", "documented")


@dataclass
class RunningNode:
    """One node, in one of the processes."""

    rank: int
    endpoint: Endpoint
    communication: object
    inbox: Inbox | None = None

    async def exchange(self, outgoing, sources, key, layout, timeout=20.0) -> Inbox:
        """Releases what the exchange before brought, and makes the next one."""
        self.release()
        handle = await self.endpoint.exchange(outgoing, sources, key, timeout, layout)
        self.inbox = Inbox(handle, layout, self.endpoint)
        return self.inbox

    def release(self):
        if self.inbox is not None:
            self.inbox.release()
            self.inbox = None

    @property
    def refused(self) -> Counter:
        """Refused messages of all nodes of its process, by reason."""
        nodes = self.communication.sockets.peers_by_rank.values()
        return sum((peers.mailbox.refused for peers in nodes), Counter())


Work = Callable[[RunningNode], Awaitable[object]]


@dataclass
class Outcomes:
    """The results of all ranks; ranks that did not end are missing."""

    results: dict[int, object] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    close_seconds: list[float] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    """Descriptors and threads that outlived `close`."""


def free_ports(count: int) -> int:
    """The first of some ports in a row that nobody listens to, below those that the system gives out.

    Each worker has a range of its own: between the look and the use another one could take them.
    """
    worker = int(os.environ.get(WORKER, "0"))
    begin = 20000 + worker % 4 * 2300
    for first in range(begin + os.getpid() % 1500, begin + 2300, count):
        with ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.create_server(("0.0.0.0", port)))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def run_nodes(
    case: TransportCase, nodes: int, work: Work, memory: BufferSpec, tick: float = 1.0, absent=()
) -> Outcomes:
    """Runs `work` on every node and gathers the results; `absent` ranks never end by themselves."""
    with tempfile.TemporaryDirectory(prefix="dn-") as directory:
        if not case.local:
            return _run_here(case, nodes, work, memory)
        processes = case.processes(nodes)
        keys = credentials(case.machines) if case.guarded else [None] * case.machines
        places = [_place(processes, number, Path(directory), keys) for number in range(len(processes))]
        return _run_apart(case, places, work, memory, tick, set(absent))


def _place(processes: tuple[HostProcess, ...], own: int, directory: Path, keys: list) -> ProcessDirectory:
    machine = directory / str(processes[own].machine)
    machine.mkdir(exist_ok=True)
    return ProcessDirectory(processes, own, str(machine), grace=0.3, credentials=keys[processes[own].machine])


def credentials(machines: int) -> list[Credentials]:
    """Fresh keys for some machines that know each other."""
    pairs = [KeyPair.make() for _ in range(machines)]
    public = tuple(pair.public for pair in pairs)
    return [Credentials(machine, pair, public) for machine, pair in enumerate(pairs)]


def _run_here(case: TransportCase, nodes: int, work: Work, memory: BufferSpec) -> Outcomes:
    place = ProcessDirectory((HostProcess(0, 0, tuple(range(nodes)), "127.0.0.1"),), 0, "")
    return Outcomes(*_run_process(case.communication(), place, work, memory, lambda: None))


def _run_process(communication, place: ProcessDirectory, work: Work, memory: BufferSpec, ready):
    before, running = open_descriptors(), set(threading.enumerate())
    communication.prepare(place, 1 << 20)
    ranks = place.process.ranks
    nodes = [RunningNode(rank, communication.endpoint(rank, memory), communication) for rank in ranks]
    ready()
    communication.open([rank for rank in place.home if rank not in ranks], RUN_ID, 10.0)
    outcomes = dict(zip(ranks, asyncio.run(_run_all(nodes, work)), strict=True))
    began = time.monotonic()
    communication.close(3.0)
    seconds = time.monotonic() - began
    errors = {
        r: "".join(traceback.format_exception(e)) for r, e in outcomes.items() if isinstance(e, Exception)
    }
    results = {rank: outcome for rank, outcome in outcomes.items() if rank not in errors}
    del communication, nodes, outcomes
    gc.collect()
    buffers_sent.stop()  # the thread with which pyzmq itself collects what was sent without a copy
    return results, errors, [seconds], left_behind(before, running)


def open_descriptors() -> dict[str, str]:
    """Returns what each open descriptor of this process points to."""
    target_of = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target_of[entry.name] = str(entry.readlink())
    return target_of


def left_behind(before: dict[str, str], running: set[threading.Thread]) -> list[str]:
    """Descriptors that were not open before, and threads of ours that did not run before and still do."""
    new = set(threading.enumerate()) - running
    threads = [thread.name for thread in new if thread.name.startswith("decentnode")]
    opened = [target for fd, target in open_descriptors().items() if before.get(fd) != target]
    # What the driver of a GPU opens stays open until the process ends.
    return threads + [target for target in opened if "nvidia" not in target]


async def _run_all(nodes: list[RunningNode], work: Work) -> list[object]:
    return await asyncio.gather(*(_run_one(node, work) for node in nodes), return_exceptions=True)


async def _run_one(node: RunningNode, work: Work) -> object:
    try:
        return await work(node)
    finally:
        node.release()
        node.endpoint.leave()


def _run_apart(
    case: TransportCase, places: list[ProcessDirectory], work: Work, memory: BufferSpec, tick: float, absent
) -> Outcomes:
    base_port = free_ports(2 * len(places) + 2)
    bound = FORK.Barrier(len(places))

    def host(place: ProcessDirectory, pipe):
        torch.set_num_threads(1)
        sockets.PROPOSAL_INTERVAL = tick
        pipe.send(_run_process(case.communication(base_port), place, work, memory, lambda: bound.wait(10.0)))

    pipes, hosts = [], []
    for place in places:
        receiving, sending = FORK.Pipe(duplex=False)
        hosts.append(FORK.Process(target=host, args=(place, sending)))
        hosts[-1].start()
        sending.close()
        pipes.append(receiving)
    whole = Outcomes()
    limit = time.monotonic() + LIMIT
    try:
        for place, pipe in zip(places, pipes, strict=True):
            if not absent & set(place.process.ranks):
                _collect(whole, place, pipe, limit)
    finally:
        for process, pipe in zip(hosts, pipes, strict=True):
            _end(process, absent, limit)
            pipe.close()
    assert not whole.errors, "\n".join(whole.errors.values())
    return whole


def _collect(whole: Outcomes, place: ProcessDirectory, pipe, limit: float) -> None:
    if not pipe.poll(max(0.0, limit - time.monotonic())):
        raise AssertionError(f"ranks {place.process.ranks} did not end")
    try:
        results, errors, seconds, left = pipe.recv()
    except EOFError:
        raise AssertionError(f"ranks {place.process.ranks} ended without a result") from None
    whole.results |= results
    whole.errors |= errors
    whole.close_seconds += seconds
    whole.left_behind += left


def _end(process, absent, limit: float) -> None:
    if absent:
        process.join(0.3)
    else:
        process.join(max(0.0, limit - time.monotonic()))
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
