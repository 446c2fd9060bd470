"""One node's end where nodes are in processes of their own.

Threads: the node's thread sends and waits; what it asks of the sockets is thread-safe. The socket thread
sends the node's model to peers that request it, while the node computes.
"""

from collections.abc import Callable, Collection

from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.base import BufferSpec, Slots
from decentnode.communication.exchange.handle import ExchangeHandle, Key, Waiter
from decentnode.communication.inproc import WithinProcess
from decentnode.communication.peers.edges import PROPOSAL_INTERVAL
from decentnode.communication.routes import RoutedEndpoint
from decentnode.communication.shared_memory.segment import Segment
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.communication.zeromq.routes import FrameRoute, SharedMemoryRoute
from decentnode.core.payload import as_bytes


class ProcessEndpoint(RoutedEndpoint):
    """One node's end: routes between processes, and what it asks of the sockets for other messages."""

    def __init__(
        self, rank: int, buffer_spec: BufferSpec, slots: Slots, io_thread: IoThread,
        segment: Segment | None,
    ) -> None:  # fmt: skip
        """`segment`: the memory that peers on this machine read; None: they receive frames, too."""
        sockets = io_thread.sockets
        directory = sockets.directory
        alone = len(directory.process.ranks) == 1
        # Numbers of an earlier incarnation are all lower: acknowledging them frees no memory of this one.
        super().__init__(
            rank, buffer_spec, slots, alone=alone, numbered_from=directory.incarnation << wire.SEQ_BITS,
            clock=directory.clock,
            host_slots=segment.slots if segment and segment.slots is not slots else None,
        )  # fmt: skip
        self.segment = segment
        self.frame_route = FrameRoute(self.mailbox, sockets)
        if not alone:
            self.routes.append(WithinProcess(rank, sockets.peers_by_rank))
        if segment is not None:
            self.routes.append(SharedMemoryRoute(segment, self.frame_route, sockets))
        self.routes.append(self.frame_route)
        self.waiter: Waiter | None = None
        """Receives while the node waits; None: other threads do."""
        self.keeps_links = False
        """Whether links to all peers stay open, also to those that no coming round needs."""
        self._sockets = sockets
        self._io_thread = io_thread
        """Nothing of it is called here: its commands are posted."""
        self._offered: tuple[Tensor, Callable[[int], bool]] | None = None
        """What `offer` got last."""

    def is_linked(self, peer: int) -> bool:
        return self._sockets.is_linked(peer)

    def foresee(self, peers: Collection[int]) -> None:
        if not self.keeps_links:
            self._sockets.need(self.rank, peers)
            self.frame_route.acknowledge_apart(peers)

    def show_alive(self) -> None:
        key = self.mailbox.last_exchange
        if key is None:
            return
        for peer in sorted(self._sockets.concerned(self.rank)):
            self._sockets.send_control(wire.Kind.WAITING, self.rank, peer, key)

    def note_lost(self) -> None:
        self._sockets.propose_within(PROPOSAL_INTERVAL)

    def skip_to(self, round: int) -> None:
        for rank in sorted(self.peers.skip_to(round, self._sockets.concerned(self.rank))):
            self._sockets.send_control(wire.Kind.SKIP, self.rank, rank, (round, 0, 0))

    def offer(self, vector: Tensor, may_have: Callable[[int], bool]) -> None:
        self._offered = vector, may_have
        self.give_model()

    def give_model(self) -> None:
        if self._offered is None:
            return
        vector, may_have = self._offered
        for peer in self.peers.take_wanting():
            if not may_have(peer):
                # A model is sent only to neighbors, and only if no stage of the chain protects it.
                self.mailbox.refuse("fetch")
                continue
            # A copy: the node trains on while the frame is sent.
            body = as_bytes(vector.detach().to("cpu", copy=True)).numpy().data
            header = self._sockets.header(wire.Kind.MODEL, self.rank, peer, length=len(body), body=body)
            self._sockets.dispatch([(self._sockets.directory.home[peer], header.pack(), body)])

    def request_resend(self, peer: int, key: Key) -> None:
        detector = self._io_thread.failure_detector
        self._sockets.post(lambda: detector.request_resend(self.peers, peer, key))

    def check_soon(self) -> None:
        self._sockets.post(self._io_thread.check_soon)

    def leave(self, failed: bool = False) -> None:
        # This node no longer reads its doorbell, so the socket thread must.
        self._sockets.post(self._io_thread.serve_doorbell)
        super().leave(failed)

    def attend(self, handle: ExchangeHandle, timeout: float) -> bool:
        waiter = self.waiter
        return handle.sleep(timeout) if waiter is None else waiter.attend(handle, timeout)
