"""The seam between a node and whatever carries its payloads.

Its one operation, `exchange`, is a neighborhood collective: send to the targets, receive from the sources.
It fits transports that must know the sender first (NCCL), too.

Threads: the thread that opens a transport calls `Communication`, before the first round and after the last. A
node's thread calls its `Endpoint`.
"""

import os
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from decentnode.communication.arena import Arena
from decentnode.communication.exchange.handle import ExchangeHandle
from decentnode.communication.exchange.message_queue import MessageQueue
from decentnode.communication.huge_pages import new_bytes
from decentnode.communication.interceptor import MessageInterceptor
from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.communication.security.curve import Credentials
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.clock import Clock
from decentnode.core.payload import HOST, Layout, Payload
from decentnode.errors import DecentnodeError, Defect, PeerError, ProtocolError, StartError
from decentnode.mapping.base import is_loopback
from decentnode.simulation.outages import Outages

FILES_PER_PEER = 7
"""The most descriptors of a host process per peer process, whatever they communicate through."""
STAGING_ALIGNMENT = 64
"""The alignment in bytes of a payload in memory that peers read."""
MOST_KEPT_LINKS = 128
MOST_SOCKET_FOLDER_BYTES = 80
"""Bytes of the path of a folder, at most, so that the path of a socket below it is short enough."""
LINK_MULTIPLE = 2
"""Links per process that the coming rounds need: the others are the last ones used."""


def receivers_of(outgoing: Mapping[int, Payload], targets: Container[int]) -> list[tuple[Payload, list[int]]]:
    """Each payload once, with all that are among the `targets`."""
    groups: dict[int, tuple[Payload, list[int]]] = {}
    for target, payload in outgoing.items():
        if target in targets:
            # By identity: one encoded payload is sent to many targets, and is checksummed once.
            groups.setdefault(id(payload), (payload, []))[1].append(target)
    return list(groups.values())


def folder_for_sockets() -> str:
    """The folder of temporary files where ipc paths below it fit into the kernel's 107 bytes, else /tmp."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= MOST_SOCKET_FOLDER_BYTES else "/tmp"


def kept_links() -> int:
    """Links that a process keeps open although no coming round needs them.

    A peer costs up to `FILES_PER_PEER` descriptors, and half of the limit is left for everything else.
    """
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_KEPT_LINKS if limit == resource.RLIM_INFINITY else min(MOST_KEPT_LINKS, limit // 12)


Slots = tuple[Tensor, Tensor]
"""Two vectors of a node, in turn the one that peers read and the one that is written."""


@dataclass(frozen=True)
class BufferSpec:
    """How much memory an endpoint needs that peers can read in place."""

    vector_elements: int
    vector_dtype: torch.dtype = torch.float32
    payload_bytes: int = 0
    """The most that one exchange sends and that does not already lie in a vector slot."""
    parts: int = 1
    """How many exchanges of one round, each of another part of the vector, are in flight at once."""
    device: torch.device = HOST
    """The device of the vector; transports that carry only host memory keep their slots there."""
    peers: frozenset[int] | None = None
    """Ranks that may ever send to this node; None: all. Messages of others are not kept."""
    arena: Arena | None = None
    """Where the slots are, if processes that are forked later use them, too."""

    def slots(self, device: torch.device = HOST) -> Slots:
        """Two vectors of zeros, shape (vector_elements,), with equal alignment.

        Matrix products differ in their last bits with the alignment of their operands. Which slot holds a
        model depends on the number of rounds since the start or the last resume.
        """
        return self.vector(device), self.vector(device)

    def vector(self, device: torch.device = HOST) -> Tensor:
        """One more such vector."""
        size = self.vector_elements * self.vector_dtype.itemsize
        made = new_bytes(size, device) if self.arena is None else self.arena.new_bytes(size)
        return made.view(self.vector_dtype)


@dataclass(frozen=True)
class HostProcess:
    """One operating-system process of the run: its nodes and its address."""

    machine: int
    index: int
    """The number of the process on its machine, from 0."""
    ranks: tuple[int, ...]
    address: str
    """The machine's address in the mapping."""
    bound: str = ""
    """The address that it binds, if that is not `address`."""
    own: str = ""
    """The address at which processes of the same machine reach it, if that is not `address`."""


@dataclass(frozen=True)
class ProcessDirectory:
    """All host processes of the run, and which of them is this one."""

    processes: tuple[HostProcess, ...]
    own: int
    """The position of this process in `processes`."""
    directory: str
    """A private directory of this run on this machine, for ipc sockets; short, as their paths are limited."""
    grace: float = 5.0
    """Seconds that a broken link between machines may take to reconnect."""
    incarnation: int = 0
    """How often this process was restarted."""
    credentials: Credentials | None = None
    """The keys of links over TCP; None: links are plain."""
    interceptor: MessageInterceptor | None = None
    """Filter of messages from other processes, for fault injection; None: all are delivered."""
    clock: Clock = field(default_factory=Clock)
    """The clock of the nodes of this process."""
    run_directory: Path | None = None
    """Where the files of the run are; None: nowhere."""
    outages: Outages = field(default_factory=Outages)
    """In virtual time, when nodes are offline and links are cut."""
    moved: Callable[[int], str] = lambda rank: ""
    """The address of the machine of a rank, where it is not that of the mapping."""

    @property
    def process(self) -> HostProcess:
        """This process."""
        return self.processes[self.own]

    def address_of(self, other: int) -> str:
        """The address at which this process reaches the one at position `other`."""
        host = self.processes[other]
        if self.co_located(other):
            return host.own or host.address
        return self.moved(host.ranks[0]) or host.address

    @cached_property
    def home(self) -> dict[int, int]:
        """For each rank the position of its process."""
        return {rank: i for i, process in enumerate(self.processes) for rank in process.ranks}

    @cached_property
    def neighbors(self) -> frozenset[int]:
        """The positions of all processes of this machine, this one included."""
        return frozenset(i for i, p in enumerate(self.processes) if p.machine == self.process.machine)

    def co_located(self, other: int) -> bool:
        """True when the process at position `other` runs on this machine."""
        return other in self.neighbors


class Inbox(dict[int, Payload]):
    """The result of one exchange: payloads by source, and for every other source the reason.

    Payloads may be views of the senders' memory: they are valid until `release`.
    """

    def __init__(self, handle: ExchangeHandle, layout: Layout, endpoint: "Endpoint") -> None:
        super().__init__()
        self._handle = handle
        self._endpoint = endpoint
        came: dict[int, Payload] = {}
        self.missing = dict(handle.missing)
        # In rank order, so sums do not depend on the order of arrival.
        for source in sorted(handle.messages):
            payload, error = handle.messages[source].read(layout)
            if payload is not None:
                endpoint.counters.count_received(payload)
                came[source] = payload
            elif error is not None:
                self.missing[source] = error
                if isinstance(error, ProtocolError):
                    handle.refuse(error.counted_as)
        self.update(endpoint.landed(came, handle))

    def release(self) -> bool:
        """Acknowledges every payload: senders may write their memory again, and the payloads are invalid.

        Returns whether none was invalidated since it arrived. A sender invalidates the payload of a node that
        was suspended for longer than its timeout.
        """
        # Asynchronous copies may still read this memory.
        self._endpoint.finish_reading()
        self.clear()
        return self._handle.release()


class MeanOfAll(ABC):
    """The mean of all ranks' vectors, while one all-reduce computes it."""

    done: bool
    """Whether a wait has found the mean or an error."""
    error: DecentnodeError | None
    """Why there is no mean: a PeerError where a rank is lost or has left."""

    @abstractmethod
    def finish_within(self, seconds: float) -> bool:
        """Waits until it is done; returns False after `seconds` seconds."""

    def release(self) -> None:  # noqa: B027 - it is the same for all
        """Does nothing: there is no message to acknowledge, as `ExchangeHandle.release` does."""


class Collectives(ABC):
    """Collectives of all ranks, for transports whose group joins them all.

    All ranks call them in the same order. No rank can go on without another one: what has failed is not
    repeated by other routes.
    """

    @property
    @abstractmethod
    def are_open(self) -> bool:
        """Whether this rank can take part."""

    @abstractmethod
    def mean(self, values: Tensor, out: Tensor) -> MeanOfAll:
        """Starts to write the mean of all ranks' `values` to `out`, which nothing may use until it is done.

        Both are flat, and `values` may change once this returns.
        """


class Endpoint(ABC):
    """One node's end of the transport."""

    rank: int
    counters: ByteCounters
    refused: Counter[str]
    """Refused messages by reason; another thread may add to them."""
    device: torch.device = HOST
    """The device of the node's vector."""
    heartbeat: HeartbeatSlot | None = None
    """Where the launcher sees for whom the node waits; None: nobody looks."""

    messages: MessageQueue
    """The single messages that have arrived, where the transport `has_messages`."""
    slots: Slots
    """Two tensors of `BufferSpec.vector_elements`; a payload that lies in one is sent without a copy."""
    collectives: Collectives | None = None
    """Collectives of all ranks; None: the transport has none."""

    @abstractmethod
    def exchange(
        self,
        outgoing: Mapping[int, Payload],
        sources: Sequence[int],
        key: tuple[int, int, int],
        deadline: float,
        layout: Layout,
    ) -> ExchangeHandle:
        """Starts to send at once; the handle is done when every source has sent or is lost.

        `key` is (round, phase, part). When the handle is done, the memory of every earlier exchange of that
        part may be written again. `deadline`: the longest silence of a peer, in seconds, where processes
        exchange. `layout`: that of all payloads.
        """

    def send(self, target: int, payload: Payload, window: int, tag: int, number: int) -> None:
        """Sends one message outside of any exchange, and forgets it; its memory may not be written again.

        `window`: the round in which it is sent; `tag` and `number` travel with it. It may be lost, and
        nothing is sent to a lost peer.
        """
        raise NotImplementedError(f"{type(self).__name__} carries no single messages")

    def why_lost(self, peer: int) -> PeerError | None:
        """Why a peer exchanges nothing now: its link is broken, or it has left; None: it does."""
        raise NotImplementedError(f"{type(self).__name__} carries no single messages")

    def landed(self, payloads: Mapping[int, Payload], handle: ExchangeHandle) -> dict[int, Payload]:
        """The received payloads by source, on the device of the node's vector."""
        if self.device == HOST:
            return dict(payloads)
        return {source: payload.to(self.device) for source, payload in payloads.items()}

    def finish_reading(self) -> None:
        """Waits until nothing reads the memory of received payloads, before it is released."""
        return None

    def waits_for(self, peers: Collection[int]) -> None:
        """Shows the launcher for whom the node waits."""
        if self.heartbeat is not None:
            self.heartbeat.wait_for(peers)

    def show_alive(self) -> None:
        """Tells peers that may wait for this node that it lives, which extends its deadline there, within the
        limit of `Timeouts.peer_behind`; any thread may call it. Does nothing where nobody times out.
        """
        return None

    def foresee(self, peers: Collection[int]) -> None:
        """Announces the peers of this and a few coming rounds, for transports that connect on demand."""
        return None

    @abstractmethod
    def leave(self, failed: bool = False) -> None:
        """Announces to the peers that this node sends nothing more, so that no peer waits for it.

        `failed`: it ends by an error.
        """

    def admit(self, round: int) -> list[int]:
        """Starts the exchanges of a round; returns the peers that rejoin in it.

        They were lost, or their process or this one was restarted before a timeout.
        """
        return []

    @property
    def ahead(self) -> int:
        """The round to continue in when the peers are far ahead; 0: the next one."""
        return 0

    def skip_to(self, round: int) -> None:
        """Announces to the peers that this node continues in `round` and sends nothing before it."""
        raise NotImplementedError(f"{type(self).__name__} is never ahead")

    def offer(self, vector: Tensor, may_have: Callable[[int], bool]) -> None:
        """Sends a copy of the node's model, shape (d,), to peers that requested it and may have it."""
        return None


@dataclass(frozen=True)
class TransportPlan:
    """What is asked about a transport before it starts, by the settings, the launcher and the nodes.

    It follows from the options alone: making it binds and opens nothing.
    """

    one_machine: bool = False
    """Whether all nodes of the run must live on one machine."""
    nodes_per_process: int | None = None
    """The most nodes of a machine in one host process; None: all."""
    has_messages: bool = False
    """Whether it carries single messages, too (`Endpoint.send`), as asynchronous schemes need them."""
    has_group: bool = False
    """Whether payloads go through a process group, where no message can be delayed."""
    group_ranks: tuple[int, ...] | None = None
    """The nodes in that group, if the options name them."""
    has_virtual_time: bool = False
    """Whether a modelled network carries messages, in virtual time."""
    is_plain: bool = False
    """Whether payloads travel unencrypted between machines without the user's permission."""
    local_files: int = FILES_PER_PEER
    """The descriptors that a host process needs for a peer process of its machine."""
    remote_files: int = FILES_PER_PEER
    """The descriptors that it needs for a peer process of another machine."""
    first_ports: Mapping[str, int] = field(default_factory=dict)
    """By option the first of the TCP ports that a machine binds, one for each host process."""
    local_ports: Container[str] = ()
    """The options whose ports are bound on a single machine, too."""

    def nodes_in_one_process(self, local_nodes: int) -> int:
        """How many of a machine's nodes share one host process."""
        return local_nodes if self.nodes_per_process is None else min(self.nodes_per_process, local_nodes)

    def processes(self, local_nodes: int) -> int:
        """How many host processes a machine with that many nodes has."""
        return -(-local_nodes // self.nodes_in_one_process(local_nodes))

    def ports(self, local_nodes: int, several: bool) -> dict[str, range]:
        """The TCP ports that a machine with that many nodes binds, by the option with the first one.

        `several`: whether there are other machines.
        """
        processes = self.processes(local_nodes)
        return {
            option: range(first, first + processes)
            for option, first in self.first_ports.items()
            if several or option in self.local_ports
        }

    def crosses_network(self, addresses: Sequence[str]) -> bool:
        """Whether payloads would travel unencrypted between these machines without permission."""
        return self.is_plain and len(addresses) > 1 and not all(map(is_loopback, addresses))

    def defects(self, device: str, ranks: Sequence[int]) -> Iterator[Defect]:
        """Why a machine with these nodes on such a device cannot take part."""
        yield from ()


class Communication(ABC):
    """One transport in one host process, for all nodes of that process."""

    news: str = ""
    """One line for the console after `open`; empty: none."""

    @property
    def network_text(self) -> str:
        """The modelled network in words; empty: it is a real one."""
        return ""

    @property
    def plan(self) -> TransportPlan:
        """What it needs, as its options say."""
        return TransportPlan()

    @property
    def most_flows(self) -> int | None:
        """The most directed links that may carry messages at once; None: any number."""
        return None

    def check_nodes(self, nodes: int) -> None:  # noqa: B027 - most serve any number
        """Raises BadInput where an option does not fit so many nodes."""

    @abstractmethod
    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        """Binds the sockets that peers connect to; called once, after the fork.

        `most_bytes`: the largest payload that any peer may send. Raises StartError.
        """

    @abstractmethod
    def endpoint(self, rank: int, buffer_spec: BufferSpec) -> Endpoint:
        """The endpoint of a local node; all are created before `open`."""

    @abstractmethod
    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        """Connects to `peers`, the first neighbors; raises StartError that names those that do not answer.

        Ranks that are `absent` count as lost until they join.
        """

    def enter_loop(self) -> None:
        """Is called in the event loop of the nodes, before the first of them runs."""
        return None

    def locate(self, peers: Mapping[int, Iterable[int]], enough: int, timeout: float) -> int:
        """The latest round that one of the `peers` starts next, or any after `enough`; called after `open`.

        `enough + 1` where that is unknown; raises StartError when no peer answers.
        """
        return enough + 1

    def rejoin(self, peers: Mapping[int, Iterable[int]], timeout: float) -> int:
        """The round in which the nodes of a restarted process rejoin; called after `open`.

        `peers` are those of each local rank. Raises StartError when no peer answers.
        """
        raise StartError(f"{type(self).__name__} carries all nodes in one process: none can rejoin alone")

    def start_at(self, round: int) -> None:
        """Lets the nodes of a restarted process rejoin in `round`, when all their peers are in that process.

        Called after `open`.
        """
        return None

    def fetch(self, rank: int, peer: int, timeout: float) -> Tensor | None:
        """The model of a peer, shape (d,), for a local rank that rejoins without one; None: not sent."""
        return None

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Delivers what was sent within `timeout` seconds, and frees sockets, memory and threads."""
