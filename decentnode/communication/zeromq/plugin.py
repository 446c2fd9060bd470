"""Nodes in processes of their own: ZeroMQ between machines, shared memory or ZeroMQ on one.

Threads: the thread that opens the transport calls everything here, before the first round and after the last.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from annotated_types import Ge, Le
from torch import Tensor

from decentnode.communication.base import BufferSpec, Communication, ProcessDirectory, Slots, TransportPlan
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq.endpoint import ProcessEndpoint
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.communication.zeromq.sockets import Sockets
from decentnode.communication.zeromq.stripes import MOST_CONNECTIONS, Connections
from decentnode.core.clock import AwakeClock
from decentnode.core.registry import COMMUNICATIONS
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost, StartError
from decentnode.mapping.base import tcp_endpoint
from decentnode.options import Port, Positive, option

POLL_INTERVAL = 0.005


@dataclass
class ProcessCommunication(Communication):
    """The sockets, the shared memory and the thread of a host process, whatever carries the payloads."""

    local: Literal["shared_memory", "ipc", "tcp"] = option("shared_memory", changes="results")
    base_port: Port = option(29600, changes="nothing")
    nodes_per_process: Positive = option(1, changes="results")

    _endpoints: dict[int, ProcessEndpoint] = field(default_factory=dict, init=False, repr=False)
    _io_thread: IoThread | None = field(default=None, init=False, repr=False)

    def prepare(self, directory: ProcessDirectory, most_bytes: int) -> None:
        self._io_thread = IoThread(
            directory, lambda process: self._endpoint_of(directory, process), most_bytes, self._connections
        )
        if self.local == "shared_memory":
            self._io_thread.open_doorbells()
        if self.local != "tcp":
            self._io_thread.bind(ipc_endpoint(directory, directory.own))
        if self.local == "tcp" or any(p.machine != directory.process.machine for p in directory.processes):
            process = directory.process
            port = self.base_port + process.index
            self._io_thread.bind(tcp_endpoint(process.bound or process.address, port))

    @property
    def _connections(self) -> Connections:
        """Connections of each link over TCP."""
        return 1

    @property
    def io_thread(self) -> IoThread:
        """The thread that serves the sockets; `prepare` makes it."""
        assert self._io_thread is not None, "prepare comes first"
        return self._io_thread

    @property
    def sockets(self) -> Sockets:
        """What any thread may ask of that thread."""
        return self.io_thread.sockets

    def endpoint(self, rank: int, buffer_spec: BufferSpec) -> ProcessEndpoint:
        endpoint = self.make_endpoint(rank, buffer_spec)
        self._endpoints[rank] = endpoint
        public = endpoint.segment.shared if endpoint.segment else None
        endpoint.waiter = self.io_thread.add_node(endpoint.peers, public, buffer_spec.peers, endpoint.waiter)
        return endpoint

    def make_endpoint(
        self, rank: int, buffer_spec: BufferSpec, slots: Slots | None = None
    ) -> ProcessEndpoint:
        """An endpoint with routes between processes; `slots`: those of its vector, if not in host memory."""
        ranks, segment = len(self.sockets.directory.home), None
        if self.local == "shared_memory":
            segment = Segment(rank, buffer_spec, readers=ranks)
        slots = slots or (segment.slots if segment else buffer_spec.slots())
        return ProcessEndpoint(rank, buffer_spec, slots, io_thread=self.io_thread, segment=segment)

    def open(self, peers: Sequence[int], run_id: int, timeout: float, absent: Collection[int] = ()) -> None:
        sockets, io_thread = self.sockets, self.io_thread
        # Before the first exchange, so no node waits for one of an absent machine.
        for known in sockets.peers_by_rank.values():
            for rank in absent:
                known.lose(rank, PeerLost(rank, "has not come yet"))
        # Before the thread starts: it refuses messages of any other run.
        sockets.run_id = run_id
        io_thread.start()
        home, links = sockets.directory.home, sockets.links
        processes = {home[peer] for peer in peers} - {sockets.directory.own}
        for process in sorted(processes):
            sockets.post(partial(links.make, process))
        # A process that has died by now is lost as in any round.
        for silent in io_thread.hello_barrier.wait(
            processes, timeout, lambda process: sockets.post(partial(links.resend_hello, process))
        ):
            sockets.post(partial(io_thread.lose_silent, silent))

    def locate(self, peers: Mapping[int, Iterable[int]], enough: int, timeout: float) -> int:
        return self._seek(peers, timeout, enough)

    def rejoin(self, peers: Mapping[int, Iterable[int]], timeout: float) -> int:
        return self._seek(peers, timeout)

    def _seek(self, peers: Mapping[int, Iterable[int]], timeout: float, enough: int | None = None) -> int:
        """The round in which local ranks rejoin, or with `enough` the position of their peers.

        Peers that rejoin themselves are asked again until the timeout (`RejoinProtocol.seek`).
        """
        sockets, rejoining = self.sockets, self.io_thread.rejoining
        assert rejoining is not None, "only a process that was restarted can rejoin"
        clock = AwakeClock(Timeouts.rejoin_answer)
        limit = clock.now() + timeout
        pairs = [(rank, peer) for rank in peers for peer in peers[rank] if peer not in sockets.peers_by_rank]
        others, round = {peer for _, peer in pairs}, None
        while round is None and (left := limit - clock.now()) > 0.0 and sockets.any_lives(others):
            round = rejoining.seek(pairs, sockets.directory.clock.now() + left, sockets.post, enough)
        if round is None:
            own_rank = sockets.directory.process.ranks[0]
            raise StartError(f"rank {own_rank}: no neighbor agreed on a round to rejoin in")
        return round

    def start_at(self, round: int) -> None:
        rejoining = self.io_thread.rejoining
        assert rejoining is not None, "only a process that was restarted can rejoin"
        rejoining.settle(round)

    def fetch(self, rank: int, peer: int, timeout: float) -> Tensor | None:
        clock, pair, receiver = AwakeClock(POLL_INTERVAL), (rank, peer), self.io_thread.receiver
        limit = clock.now() + timeout
        # Before the request: a model without an entry here is refused.
        receiver.models.setdefault(pair, None)
        self.sockets.post(lambda: self.sockets.send_control(Kind.MODEL_REQUEST, *pair, (0, 0, 0)))
        content = None
        while content is None and clock.now() < limit and self.sockets.any_lives([peer]):
            time.sleep(POLL_INTERVAL)
            content = receiver.take_model_for(rank)
        dtype = self._endpoints[rank].slots[0].dtype
        return None if content is None or content.numel() % dtype.itemsize else content.view(dtype)

    def close(self, timeout: float) -> None:
        if self._io_thread is not None:
            self._io_thread.stop(timeout)
        for endpoint in self._endpoints.values():
            if endpoint.segment is not None:
                endpoint.segment.close()

    def tcp_endpoint(self, directory: ProcessDirectory, process: int) -> str:
        """Where this process reaches another: its machine's address, and base_port + its number there."""
        return tcp_endpoint(
            directory.address_of(process), self.base_port + directory.processes[process].index
        )

    def _endpoint_of(self, directory: ProcessDirectory, process: int) -> str:
        if directory.co_located(process) and self.local != "tcp":
            return ipc_endpoint(directory, process)
        return self.tcp_endpoint(directory, process)


@COMMUNICATIONS.register("zeromq", "zmq", "tcp", "tcp_ack")
@dataclass
class ZeroMQ(ProcessCommunication):
    """One process per node: TCP between machines; shared memory, ipc or tcp on one (ZMTP 3, RFC 23)."""

    connections: Literal["auto"] | Annotated[int, Ge(1), Le(MOST_CONNECTIONS)] = option(
        "auto", changes="results", per_host=True
    )
    """TCP connections for the large payloads of a link; auto: by its round trip, one in a local network."""

    @property
    def _connections(self) -> Connections:
        return self.connections

    @property
    def plan(self) -> TransportPlan:
        # A connection each way, and three of a DEALER and its monitor. `auto` has a bound of its own.
        linked = 5 * (self.connections if isinstance(self.connections, int) else 1)
        return TransportPlan(
            nodes_per_process=self.nodes_per_process,
            has_messages=True,
            # On one machine two pipes and a segment, or a link of one connection.
            local_files={"shared_memory": 3, "ipc": 5, "tcp": linked}[self.local],
            remote_files=linked,
            first_ports={"base_port": self.base_port},
            local_ports={"base_port"} if self.local == "tcp" else (),
        )


def ipc_endpoint(directory: ProcessDirectory, process: int) -> str:
    """The ipc endpoint of a host process on this machine."""
    return f"ipc://{directory.directory}/{directory.processes[process].index}"
