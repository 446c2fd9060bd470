"""Virtual time in several host processes of one machine, for all its processors.

Conservative synchronization in windows (Nicol, The cost of conservative synchronization in parallel discrete
event simulations, Journal of the ACM, 1993). No message between two processes takes less than the lookahead,
the least latency between their nodes. So when the next event of all processes is at time t, each of them can
do everything before t + lookahead alone. Then they meet: each sends the others what crosses to them, and when
its own next event is.

Payloads stay in the memory of their sender, which the others read; the messages about them, and payloads that
lie elsewhere, go through Unix sockets. An acknowledgement takes the latency of its link here, and no time
within a process.

Threads: none but that of the event loop, which waits for the other processes at the end of a window. It waits
as long as they live, and shows the launcher that it lives itself: the launcher ends one that hangs, and the
socket of one that has ended says so.
"""

import socket
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, permutations
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from decentnode.communication.base import (
    STAGING_ALIGNMENT,
    BufferSpec,
    Endpoint,
    ProcessDirectory,
    Slots,
)
from decentnode.communication.exchange.handle import Key, Message
from decentnode.communication.peers.peer import Peer
from decentnode.communication.peers.peers import PeersByRank
from decentnode.communication.routes import FramedMessage, Route
from decentnode.communication.shared_memory.attached import PeerSegment, SharedMessage
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.wire import SharedSegment
from decentnode.core.payload import Payload
from decentnode.core.timeouts import Timeouts
from decentnode.errors import RunFailed, StartError
from decentnode.simulation.clock import SECOND, EventLoop, VirtualClock
from decentnode.simulation.network import Network
from decentnode.simulation.outages import NEVER

LENGTH_BYTES = 8


class ProcessHello(msgspec.Struct, frozen=True):
    """What a process tells each other one before its first event."""

    process: int
    segment: SharedSegment
    """Where the vectors of its nodes are."""
    nanoseconds: int
    """The time at which its first node continues."""


class CrossingPayload(msgspec.Struct, array_like=True):
    """A payload for nodes of another process."""

    due: int
    """Nanoseconds of virtual time."""
    source: int
    targets: list[int]
    key: Key
    seq: int
    layout: int
    """The hash of its layout."""
    length: int
    offset: int | None
    """Where it is in the memory of its process; None: `body` has it."""
    body: bytes = b""


class Acknowledgement(msgspec.Struct, array_like=True):
    """A reader has read a payload of a node of another process."""

    due: int
    source: int
    reader: int
    seq: int


class Departure(msgspec.Struct, array_like=True):
    """A node has ended after its last exchange, if it has had one."""

    due: int
    rank: int
    last: Key | None
    failed: bool


class WindowEnd(msgspec.Struct, array_like=True):
    """What one process sends another one at the end of a window."""

    earliest: int = NEVER
    """When the next event is that its sender knows of, those it has sent included."""
    acknowledgements: list[Acknowledgement] = []
    payloads: list[CrossingPayload] = []
    departures: list[Departure] = []
    is_last: bool = False


class OtherProcesses:
    """The other host processes of a run, as one of them meets them."""

    def __init__(
        self, directory: ProcessDirectory, peers: PeersByRank, network: Network, clock: VirtualClock
    ) -> None:
        """`peers`: those of each node of this process, as they are made. Raises StartError."""
        if directory.incarnation:
            raise StartError("a simulation in several processes cannot go on with a process started again")
        self.departures: dict[int, Departure] = {}
        """By rank how nodes of other processes have ended."""
        self.endpoint: Endpoint | None = None
        """One of this process, in whose heartbeat the launcher sees that it lives."""
        self._directory = directory
        self._places = {rank: place for place, rank in enumerate(directory.process.ranks)}
        self._peers = peers
        self._network = network
        self._clock = clock
        self._windows: defaultdict[int, WindowEnd] = defaultdict(WindowEnd)
        """By process what is sent to it when this window ends."""
        self._earliest_sent = NEVER
        self._connections: dict[int, socket.socket] = {}
        self._peer_segments: dict[int, PeerSegment] = {}
        self._segment: Segment | None = None
        self._loop: EventLoop | None = None
        self._lookahead = least_latency(network, [process.ranks for process in directory.processes])
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path(directory.own))
        self._listener.listen(len(directory.processes))

    def slots(self, rank: int, buffer_spec: BufferSpec) -> Slots:
        """Two vectors of a node of this process, which the other processes read."""
        ranks, dtype = self._directory.process.ranks, buffer_spec.vector_dtype
        stride = -(-buffer_spec.vector_elements * dtype.itemsize // STAGING_ALIGNMENT) * STAGING_ALIGNMENT
        stride //= dtype.itemsize
        if self._segment is None:
            whole = BufferSpec(stride * len(ranks), dtype)
            self._segment = Segment(ranks[0], whole, readers=len(self._directory.home))
        first, second = self._segment.slots
        begin = stride * self._places[rank]
        end = begin + buffer_spec.vector_elements
        return first[begin:end], second[begin:end]

    def open(self, timeout: float) -> None:
        """Connects all processes, and sets the clock to the first event of all; raises StartError."""
        assert self._segment is not None, "a process has nodes"
        own, now = self._directory.own, self._clock.nanoseconds
        hello = msgspec.msgpack.encode(ProcessHello(own, self._segment.shared, now))
        try:
            self._listener.settimeout(timeout)
            for process in range(len(self._directory.processes)):
                if process == own:
                    continue
                if process < own:
                    link = socket.socket(socket.AF_UNIX)
                    link.settimeout(timeout)
                    link.connect(self._path(process))
                else:
                    link, _ = self._listener.accept()
                link.settimeout(Timeouts.busy_beat)
                self._send(link, hello)
                theirs = msgspec.msgpack.decode(self._receive(link), type=ProcessHello)
                self._connections[theirs.process] = link
                self._peer_segments[theirs.process] = PeerSegment(theirs.segment)
                self._clock.nanoseconds = min(self._clock.nanoseconds, theirs.nanoseconds)
        except (OSError, EOFError) as error:
            raise StartError(f"a host process of the simulation cannot be reached: {error}") from error
        finally:
            self._listener.close()

    def enter(self, loop: EventLoop) -> None:
        """Has what comes from the others delivered by a loop."""
        self._loop = loop

    def meet(self, earliest: int, is_last: bool = False) -> int:
        """Ends a window: sends and takes what crosses processes; returns the time before which the next one
        ends.

        `earliest`: the next event here; NEVER: there is none. `is_last`: this process has ended, and the
        others go on without it. Raises RunFailed when one of them has ended without that.
        """
        if not self._connections:
            return NEVER
        first = earliest = min(earliest, self._earliest_sent)
        windows, self._windows, self._earliest_sent = self._windows, defaultdict(WindowEnd), NEVER
        came: list[tuple[int, WindowEnd]] = []
        for process, link in sorted(self._connections.items()):
            window = windows[process]
            window.earliest, window.is_last = earliest, is_last
            theirs = self._swap(process, link, window)
            first = min(first, theirs.earliest)
            came.append((process, theirs))
        for process, theirs in came:
            self._take(process, theirs)
        return min(NEVER, first + self._lookahead)

    def close(self) -> None:
        """Lets the others go on without this process."""
        # One that has failed meanwhile no longer matters to the nodes here, which have ended.
        with suppress(RunFailed):
            self.meet(NEVER, is_last=True)
        for link in self._connections.values():
            link.close()
        self._connections.clear()
        if self._segment is not None:
            self._segment.close()

    # What nodes send.

    def send(self, rank: int, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        """Has a payload delivered to nodes of other processes."""
        assert self._segment is not None, "a sender has slots"
        offset = self._segment.place(payload.buffer)
        body = payload.buffer.numpy().tobytes() if offset is None else b""
        home, layout, length = self._directory.home, payload.layout.hash, payload.buffer.numel()
        for due, arriving in self._network.arrivals(self._clock.nanoseconds, rank, targets).items():
            self._earliest_sent = min(self._earliest_sent, due)
            for process, there in groupby(sorted(arriving, key=home.__getitem__), key=home.__getitem__):
                self._windows[process].payloads.append(
                    CrossingPayload(
                        due=due,
                        source=rank,
                        targets=list(there),
                        key=key,
                        seq=seq,
                        layout=layout,
                        length=length,
                        offset=offset,
                        body=body,
                    )
                )

    def acknowledge(self, source: int, reader: int, seq: int) -> None:
        """Tells a node of another process that one of this process has read its payload."""
        due = self._due(reader, source)
        process = self._directory.home[source]
        self._windows[process].acknowledgements.append(Acknowledgement(due, source, reader, seq))

    def depart(self, rank: int, last: Key | None, failed: bool) -> None:
        """Tells all other processes that a node of this one has ended."""
        for process in self._connections:
            due = self._due(rank, self._directory.processes[process].ranks[0])
            self._windows[process].departures.append(Departure(due, rank, last, failed))

    def _due(self, rank: int, peer: int) -> int:
        due = self._clock.nanoseconds + round(float(self._network.latency[rank, peer]) * SECOND)
        self._earliest_sent = min(self._earliest_sent, due)
        return due

    # What comes from the others.

    def _swap(self, process: int, link: socket.socket, window: WindowEnd) -> WindowEnd:
        """Sends a window and receives one; the lower process sends first, so that no two wait for room."""
        body = msgspec.msgpack.encode(window)
        try:
            if self._directory.own < process:
                self._send(link, body)
            theirs = msgspec.msgpack.decode(self._receive(link), type=WindowEnd)
            if self._directory.own > process:
                self._send(link, body)
        except (OSError, EOFError):
            ranks, now = self._directory.processes[process].ranks, self._clock.now()
            raise RunFailed(
                f"the process of ranks {ranks[0]} to {ranks[-1]} has ended at {now:g} simulated s"
            ) from None
        if theirs.is_last:
            link.close()
            del self._connections[process]
        return theirs

    def _send(self, link: socket.socket, body: bytes) -> None:
        left = memoryview(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        while left:
            try:
                left = left[link.send(left) :]
            except TimeoutError:
                self._show_alive()

    def _receive(self, link: socket.socket) -> bytearray:
        return self._read(link, int.from_bytes(self._read(link, LENGTH_BYTES), "little"))

    def _read(self, link: socket.socket, size: int) -> bytearray:
        content = bytearray(size)
        left = memoryview(content)
        while left:
            try:
                if not (count := link.recv_into(left)):
                    raise EOFError
                left = left[count:]
            except TimeoutError:
                self._show_alive()
        return content

    def _show_alive(self) -> None:
        """Shows the launcher that this process waits for another one, which may compute for long."""
        if self.endpoint is not None and self.endpoint.heartbeat is not None:
            self.endpoint.heartbeat.beat()

    def _take(self, process: int, window: WindowEnd) -> None:
        """Plans the delivery of what has come, in the order in which it was sent."""
        if self._loop is None:
            return
        for due, acknowledgements in groupby(window.acknowledgements, key=attrgetter("due")):
            self._loop.call_at_nanosecond(due, self._acknowledged, list(acknowledgements))
        for due, payloads in groupby(window.payloads, key=attrgetter("due")):
            self._loop.call_at_nanosecond(due, self._deliver, process, list(payloads))
        for departure in window.departures:
            self._loop.call_at_nanosecond(departure.due, self._departed, departure)

    def _acknowledged(self, acknowledgements: list[Acknowledgement]) -> None:
        for acknowledgement in acknowledgements:
            mailbox = self._peers[acknowledgement.source].mailbox
            mailbox.acknowledged(acknowledgement.reader, acknowledgement.seq)

    def _deliver(self, process: int, payloads: list[CrossingPayload]) -> None:
        segment = self._peer_segments[process]
        for sent in payloads:
            for target in sent.targets:
                message: Message = (
                    FramedMessage(sent.source, sent.seq, sent.layout, sent.body)
                    if sent.offset is None
                    else SharedMessage(
                        sent.source,
                        sent.seq,
                        sent.layout,
                        reader=target,
                        segment=segment,
                        offset=sent.offset,
                        length=sent.length,
                    )
                )
                self._peers[target].mailbox.deliver(sent.source, sent.key, message)

    def _departed(self, departure: Departure) -> None:
        rank, last = departure.rank, departure.last
        self.departures[rank] = departure
        for peer in sorted(self._peers.known_to[rank]):
            self._peers[peer].depart(rank, last, departure.failed)

    def _path(self, process: int) -> str:
        return str(Path(self._directory.directory) / f"virtual-{process}")


class ProcessRoute(Route):
    """From one node to those of other processes."""

    def __init__(self, rank: int, peers: PeersByRank, others: OtherProcesses) -> None:
        self._rank = rank
        self._peers = peers
        self._others = others

    def send(self, payload: Payload, targets: list[int], key: Key, seq: int) -> None:
        self._others.send(self._rank, payload, targets, key, seq)

    def acknowledge(self, source: int, message: Message) -> bool:
        self._others.acknowledge(source, self._rank, message.seq)
        return True

    def introduce(self, peer: Peer) -> None:
        if (departure := self._others.departures.get(peer.rank)) is not None:
            self._peers[self._rank].meet_ended(peer, departure.last, departure.failed)

    def leave(self, failed: bool) -> None:
        self._others.depart(self._rank, self._peers[self._rank].mailbox.last_exchange, failed)


def least_latency(network: Network, groups: Sequence[Sequence[int]]) -> int:
    """The least nanoseconds that a message takes between ranks of different groups."""
    # A number for all pairs is one number in memory.
    if not any(network.latency.strides):
        return round(float(network.latency.flat[0]) * SECOND)
    pairs = permutations(map(list, groups), 2)
    return round(min(float(network.latency[np.ix_(*pair)].min()) for pair in pairs) * SECOND)
