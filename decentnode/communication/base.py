"""The seam between a node and whatever carries its payloads.

One operation, `exchange`, is a neighborhood collective: send to my targets, hear from my sources.
It fits transports that cannot receive from just anyone (NCCL) as well as those that can.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.communication.exchange.handle import ExchangeHandle
from decentnode.communication.huge_pages import new_bytes
from decentnode.communication.interceptor import MessageInterceptor
from decentnode.communication.security.curve import Credentials
from decentnode.core.byte_counters import ByteCounters
from decentnode.core.payload import Layout, Payload
from decentnode.errors import ProtocolError, StartError

CPU = torch.device("cpu")


def receivers_of(outgoing: Mapping[int, Payload], gone: Container[int]) -> list[tuple[Payload, list[int]]]:
    """Each payload once, with everybody still here who gets it."""
    groups: dict[int, tuple[Payload, list[int]]] = {}
    for target, payload in outgoing.items():
        if target not in gone:
            groups.setdefault(id(payload), (payload, []))[1].append(target)
    return list(groups.values())


@dataclass(frozen=True)
class BufferSpec:
    """How much memory an endpoint needs that peers can read in place."""

    vector_elements: int
    vector_dtype: torch.dtype = torch.float32
    payload_bytes: int = 0
    """The most that one exchange sends and that does not already lie in a vector slot."""
    parts: int = 1
    """How many exchanges of one round, each of another part of the vector, are in flight at once."""
    device: torch.device = CPU
    """Where the vector lives; transports that carry host memory alone keep their slots there all the same."""
    peers: frozenset[int] | None = None
    """Who may ever send to this node; None: anybody. What others send is not kept."""

    def slots(self, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
        """Two vectors of zeros, shape (vector_elements,), whose memory begins at equal multiples.

        Matrix products differ in their last bits with how their operands are aligned, and which of the slots
        holds a model depends on how many rounds there were since the start or the last resume.
        """
        size = self.vector_elements * self.vector_dtype.itemsize
        first, second = (new_bytes(size, device).view(self.vector_dtype) for _ in range(2))
        return first, second


@dataclass(frozen=True)
class HostProcess:
    """One operating-system process of the run: which nodes it carries and where they can be reached."""

    machine: int
    index: int
    """Its number on its machine, from 0."""
    ranks: tuple[int, ...]
    address: str
    """The machine's address as the mapping has it."""


@dataclass(frozen=True)
class ProcessDirectory:
    """Where this host process stands among all host processes of the run."""

    processes: tuple[HostProcess, ...]
    own: int
    """The position of this process in `processes`."""
    directory: str
    """A private directory of this run on this machine, for ipc sockets; short, as their paths are limited."""
    grace: float = 5.0
    """Seconds that a broken link between machines may take to come back."""
    incarnation: int = 0
    """How often this process was started before."""
    credentials: Credentials | None = None
    """What links over TCP are guarded with; None: they are plain."""
    interceptor: MessageInterceptor | None = None
    """What messages from other processes go through before they are taken in; None: they all count."""
    meets_anybody: bool = False
    """Whether its nodes may exchange with all others, because nobody knows what the graph will be."""

    @property
    def process(self) -> HostProcess:
        """This process."""
        return self.processes[self.own]

    @cached_property
    def home(self) -> dict[int, int]:
        """For each rank the position of its process."""
        return {rank: i for i, process in enumerate(self.processes) for rank in process.ranks}

    def co_located(self, other: int) -> bool:
        """True when the process at position `other` runs on this machine."""
        return self.processes[other].machine == self.process.machine


class Inbox(Mapping[int, Payload]):
    """What one exchange brought: payloads by source, and for every other source the reason.

    Payloads may be views of the senders' memory: they are valid until `release`.
    """

    def __init__(self, handle: ExchangeHandle, layout: Layout, endpoint: "Endpoint") -> None:
        self._handle = handle
        self._endpoint = endpoint
        came: dict[int, Payload] = {}
        self.missing = dict(handle.missing)
        for source in sorted(handle.arrived):
            payload, error = handle.arrived[source].read(layout)
            if payload is not None:
                endpoint.counters.count_received(payload)
                came[source] = payload
            elif error is not None:
                self.missing[source] = error
                if isinstance(error, ProtocolError):
                    handle.refuse(error.counted_as)
        self._payloads = endpoint.landed(came, handle)

    def __getitem__(self, source: int) -> Payload:
        return self._payloads[source]

    def __iter__(self) -> Iterator[int]:
        return iter(self._payloads)

    def __len__(self) -> int:
        return len(self._payloads)

    def is_sound(self) -> bool:
        """Whether no payload has been written over since it arrived.

        That happens to a node that stood still for so long that a sender gave it up.
        """
        self._endpoint.finish_reading()
        return self._handle.is_sound()

    def release(self) -> None:
        """Tells every sender that its memory may be written again; the payloads are void from here on."""
        self._endpoint.finish_reading()
        self._payloads = {}
        self._handle.release()


class Endpoint(ABC):
    """One node's end of the transport."""

    rank: int
    counters: ByteCounters
    refused: Counter[str]
    """Messages that could not be used, by reason; another thread may add to them."""
    device: torch.device = torch.device("cpu")
    """Where the node's vector lives."""

    slots: tuple[Tensor, Tensor]
    """Two tensors of `BufferSpec.vector_elements`; a payload that lies in one is sent without a copy."""

    @abstractmethod
    def exchange(
        self,
        outgoing: Mapping[int, Payload],
        sources: Sequence[int],
        key: tuple[int, int, int],
        timeout: float,
    ) -> ExchangeHandle:
        """Starts sending at once; the handle is done when every source has been heard or given up.

        `key` is (round, phase, part). When the handle is done, the memory of every earlier exchange of that
        part is free to be written again. `timeout` is how long, in seconds, a silent peer is waited for.
        """

    def landed(self, payloads: Mapping[int, Payload], handle: ExchangeHandle) -> dict[int, Payload]:
        """What an exchange brought, by source, where the node's vector lives."""
        return {source: payload.to(self.device) for source, payload in payloads.items()}

    def finish_reading(self) -> None:
        """Waits until nothing reads the memory of what came any more, because it is to be released."""
        return None

    @abstractmethod
    def leave(self) -> None:
        """Tells the peers that this node sends nothing more, so that nobody waits for it."""

    def expect(self, layout: Layout) -> None:
        """Says what the payloads of the next exchanges look like, for transports that have to know first."""
        return None

    def admit(self, round: int) -> list[int]:
        """Begins the exchanges of a round; returns peers that are met anew from there on.

        They were lost, or another process has taken the place of theirs, or of this one, unnoticed.
        """
        return []

    @property
    def ahead(self) -> int:
        """The round in which a node should go on whose peers are far ahead; 0: wherever it is."""
        return 0

    def skip_to(self, round: int) -> None:
        """Tells the peers that this node goes on in `round` and sends nothing before it."""
        raise NotImplementedError(f"{type(self).__name__} is never ahead")

    def offer(self, vector: Tensor, may_have: Callable[[int], bool]) -> None:
        """Sends a copy of the node's model, shape (d,), to peers that have asked for it and may have it."""
        return None


class Communication(ABC):
    """One transport in one host process, carrying the nodes that live there."""

    one_process: ClassVar[bool] = False
    """True when all nodes of the run must live in one host process."""
    has_group: ClassVar[bool] = False
    """True when payloads go through a process group, where no message can be held back."""
    news: str = ""
    """What whoever watches should know after `open`, in one line."""

    def nodes_in_one_process(self, local_nodes: int) -> int:
        """How many of a machine's nodes one host process carries."""
        return local_nodes

    @abstractmethod
    def prepare(self, place: ProcessDirectory, most_bytes: int) -> None:
        """Takes its place and binds what peers will connect to; called once, after the process was forked.

        `most_bytes` is the largest payload that any peer may send. Raises StartError.
        """

    @abstractmethod
    def endpoint(self, rank: int, memory: BufferSpec) -> Endpoint:
        """The end of a local node; all are made before `open`."""

    @abstractmethod
    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        """Connects to `peers`, the ranks met first; raises StartError naming those that stay silent.

        Ranks that are `absent` count as lost until they come.
        """

    def locate(self, peers: Mapping[int, Iterable[int]], enough: int, timeout: float) -> int:
        """The latest round that one of the `peers` is about to begin, or any after `enough`; after `open`.

        It binds nobody. `enough + 1` where that is not known; raises StartError when no peer answers.
        """
        return enough + 1

    def come_back(self, peers: Mapping[int, Iterable[int]], timeout: float) -> int:
        """The round in which the nodes of a process that was started again take part; after `open`.

        `peers` are those of each local rank. Raises StartError when none answers, or none could.
        """
        raise StartError(f"{type(self).__name__} carries all nodes in one process: none can rejoin alone")

    def start_at(self, round: int) -> None:
        """Has the nodes of a process that was started again take part from `round` on; after `open`.

        Where all their peers are in it, too, and nobody else can be asked.
        """
        return None

    def fetch(self, rank: int, peer: int, timeout: float) -> Tensor | None:
        """The model of a peer, shape (d,), for a local rank that comes back without one; None: not sent."""
        return None

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Delivers what was sent, in at most `timeout` seconds, and frees sockets, memory and threads."""
