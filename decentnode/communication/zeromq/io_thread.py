"""The thread that serves the sockets of a host process while nodes compute.

Threads: only the socket thread runs what stands here, with two exceptions. The thread that opens the
transport calls the constructor and what binds and adds before it starts this thread, and `stop` after the
last round. What other threads may ask meanwhile is in `sockets.py`.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

import zmq

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.exchange.handle import Waiter
from decentnode.communication.interceptor import Received
from decentnode.communication.peers.edges import PROPOSAL_INTERVAL, EdgeProtocol
from decentnode.communication.peers.failure_detector import FailureDetector
from decentnode.communication.peers.peer import PeerState
from decentnode.communication.peers.peers import Peers
from decentnode.communication.peers.rejoin import RejoinProtocol
from decentnode.communication.security.curve import ZapAuthenticator
from decentnode.communication.shared_memory.doorbell import OwnPipes
from decentnode.communication.zeromq.hello_barrier import HelloBarrier
from decentnode.communication.zeromq.links import NEVER
from decentnode.communication.zeromq.receiver import GroupListener, Receiver
from decentnode.communication.zeromq.sockets import Sockets
from decentnode.communication.zeromq.stripes import CHUNK_FRAMES, Connections
from decentnode.communication.zmq_poll import Poller, has_input
from decentnode.core.process_setup import close_connections_in_children
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, PeerLost, StartError

BACKLOG = 1024
OF_EXCHANGES = (wire.NOTICE, wire.ACKNOWLEDGE)
CLOSING_SOCKETS = 4096
"""Room for closed links: libzmq counts a socket until what it holds has left."""


class IoThread(threading.Thread):
    """Sends and receives, detects lost peers, and checks deadlines against what has really arrived."""

    def __init__(
        self, directory: ProcessDirectory, endpoint_of: Callable[[int], str], most_bytes: int,
        connections: Connections = 1,
    ) -> None:  # fmt: skip
        """`endpoint_of`: the address of a peer process; `most_bytes`: the largest frame accepted;
        `connections`: of each link over TCP.
        """
        super().__init__(name="decentnode-sockets", daemon=True)
        self._directory = directory
        self._interceptor = directory.interceptor
        self._context = zmq.Context(io_threads=1)
        # Links with connections that `auto` adds are few.
        usual = connections if isinstance(connections, int) else 1
        self._context.set(zmq.MAX_SOCKETS, (2 + usual) * len(directory.processes) + CLOSING_SOCKETS)
        self._routers = [self._make_router(most_bytes)]
        self.sockets = Sockets(
            directory, self._context, endpoint_of, link_owner=self,
            receive_from_sibling=self._receive_from_sibling, connections=connections, most_bytes=most_bytes,
        )  # fmt: skip
        self._links, self._peers_by_rank = self.sockets.links, self.sockets.peers_by_rank
        self.hello_barrier = HelloBarrier(directory, self._links)
        send_control = self.sockets.send_control
        self._edges = EdgeProtocol(
            self._peers_by_rank, send_control, self._is_reachable, is_linked=self.sockets.is_linked
        )
        self.rejoining: RejoinProtocol | None = None
        if directory.incarnation:
            self.rejoining = RejoinProtocol(self._peers_by_rank, send_control, directory.clock)
        self._edges.rejoining = self.rejoining
        self.failure_detector = FailureDetector(self._peers_by_rank, send_control, self._edges)
        self.receiver = Receiver(
            self.sockets, self._edges, self._note_hello, restarted=self._restarted, most_bytes=most_bytes
        )
        self._pipes: OwnPipes | None = None
        self._poller = Poller()
        self._authenticator: ZapAuthenticator | None = None
        if directory.credentials is not None:
            # Authentication is per socket: TCP needs a ROUTER of its own beside the one for ipc.
            self._routers.append(guarded := self._make_router(most_bytes))
            self._authenticator = ZapAuthenticator(guarded, directory.credentials, self.receiver.refuse)
            for known in (self._authenticator.questions, self._authenticator.monitor):
                self._poller.add(known, self._authenticator.serve)
        for router in self._routers:
            self._poller.add(router, partial(self._receive, router))
        self._poller.add(self.sockets.commands.fd, self.sockets.commands.run_commands)
        self._poller.add(self._links.fileno(), self._links.watch)
        self._next_check = NEVER
        self._linger, self._stopping = 0.0, False

    def _make_router(self, most_bytes: int) -> "zmq.Socket[bytes]":
        """A socket that receives from all peers frames of at most `most_bytes` bytes."""
        router = self._context.socket(zmq.ROUTER)
        router.set(zmq.MAXMSGSIZE, max(most_bytes, wire.MOST_CONTROL_BYTES))
        router.set(zmq.BACKLOG, BACKLOG)
        router.set(zmq.IPV6, 1)
        router.set(zmq.LINGER, 0)
        return router

    # Called before the thread starts.

    def bind(self, endpoint: str) -> None:
        """Listens on this address, too; before the thread starts.

        Raises BadInput for a port that another program has taken since the check of ports, and StartError.
        """
        router = self._routers[-1] if endpoint.startswith("tcp") else self._routers[0]
        try:
            router.bind(endpoint)
            # A worker that a node forks must not keep the connections of a dead process open.
            close_connections_in_children(endpoint)
        except zmq.ZMQError as error:
            key = "(key communication.base_port)"
            if error.errno == errno.EADDRINUSE:
                raise BadInput(f"{endpoint} is in use by another program {key}") from error
            raise StartError(f"{endpoint} {error} {key}") from error

    def open_doorbells(self) -> None:
        """Opens the doorbells between processes of this machine; before `add_node`. Raises StartError."""
        if any(
            self._directory.co_located(p)
            for p in range(len(self._directory.processes))
            if p != self._directory.own
        ):
            self._pipes = OwnPipes(self._directory, self._take_record, self.receiver.refuse)
            self.sockets.has_pipes = True
            self._poller.add(self._pipes.fileno(), self._pipes.receive)

    def add_node(
        self, peers: Peers, segment: wire.SharedSegment | None, senders: frozenset[int] | None,
        waiter: Waiter | None = None,
    ) -> Waiter | None:  # fmt: skip
        """Adds a local node and its shared memory to the HELLO; before the thread starts.

        `senders`: ranks that may send to it; None: all. `waiter`: what receives while it waits. Returns
        that, or the doorbell if the node can read it itself; None: other threads receive.
        """
        self._peers_by_rank[peers.rank] = peers
        self._links.parts = max(self._links.parts, peers.mailbox.parts)
        if senders is not None:
            self.sockets.senders[peers.rank] = senders
        hello = self.sockets.hello
        segments = [*hello.segments, segment] if segment else hello.segments
        self.sockets.hello = wire.Hello([*hello.ranks, peers.rank], segments)
        # A node alone in its process reads the doorbell itself while it waits: no other thread wakes up.
        if waiter is None and peers.mailbox.alone and self._interceptor is None and self._pipes is not None:
            return self._pipes.doorbell
        self.serve_doorbell()
        return waiter

    def listen(self, listener: GroupListener) -> None:
        """Passes messages about a process group to `listener`; before the thread starts."""
        self.receiver.listener = listener
        # A node that waits for a group may be unable to start a check.
        self.failure_detector.most_pause, self._next_check = PROPOSAL_INTERVAL, 0.0

    # Everything below runs in this thread.

    def run(self) -> None:
        """Serves sockets and timers until stopped; an error in here ends every exchange with it."""
        try:
            while not self._stopping:
                self._serve()
            self._wait_for_readers(time.monotonic() + self._linger)
        except BaseException as error:
            # Nodes wait on handles, not on this thread: without this they would wait for their deadline.
            for peers in self._peers_by_rank.values():
                peers.mailbox.fail(error)
            self.hello_barrier.end()
            raise
        finally:
            self._close()

    def _serve(self) -> None:
        self._poller.serve(self._due)
        if (now := time.monotonic()) >= self._due:
            self._check_due(now)

    @property
    def _due(self) -> float:
        """The time of the next action if nothing arrives."""
        held = self._interceptor.next_release if self._interceptor else NEVER
        silent = self._authenticator.next_due if self._authenticator else NEVER
        proposal = self.sockets.next_proposal
        return min(self._next_check, proposal, self._links.next_verdict, held, silent)

    def _check_due(self, now: float) -> None:
        # Everything that arrived counts before deadlines are checked, however late this check is.
        self._receive_all()
        if self._interceptor:
            self.receiver.take(self._interceptor.released(now))
        # Broken links before deadlines: a lost connection is the better reason for a missing payload.
        for process in self._links.lose_broken(now):
            self._lose_process(process)
        if self._authenticator is not None and now >= self._authenticator.next_due:
            self._authenticator.serve()
        if now >= self._next_check:
            self._next_check = self.failure_detector.check(
                now, partial(self.sockets.concerned, only_needed=True)
            )
        if now >= self.sockets.next_proposal:
            self.sockets.next_proposal = NEVER
            if self._edges.propose():
                self.sockets.propose_within(PROPOSAL_INTERVAL)

    def _receive_from_pipes(self) -> None:
        if self._pipes is not None:
            self._pipes.receive()

    def _receive_all(self) -> None:
        for router in self._routers:
            limit = time.monotonic() + Timeouts.message_burst
            while has_input(router) and time.monotonic() < limit:
                self._receive(router)
        self._receive_from_pipes()

    def _receive(self, router: "zmq.Socket[bytes]") -> None:
        """Receives one message or chunk: routing id, then its two or three frames."""
        self._receive_from_pipes()
        router.recv(zmq.NOBLOCK)
        frames = [router.recv(copy=False)]
        # At most four frames are kept, however many a message has: enough to refuse it.
        while frames[-1].more:
            frame = router.recv(copy=False)
            frames = [*frames[:3], frame]
        guarded = router is not self._routers[0]
        is_chunk = len(frames) == CHUNK_FRAMES
        message = self.receiver.add_chunk(frames, guarded) if is_chunk else (frames, guarded)
        if message is not None:
            self._take(message)

    # A node that waits reads its doorbell itself, and so runs `_take_record`: messages of exchanges take
    # effect there and then, behind the lock of the mailbox. All else changes what only this thread may touch
    # (links, edges, attached memory), and is posted to it. With an interceptor no node reads its doorbell.

    def _take_record(self, head: bytes, body: bytes) -> None:
        """Processes a record of the doorbell, or leaves it to this thread."""
        at_once = head[wire.KIND_AT] in OF_EXCHANGES or self.receiver.is_usual_hello(head)
        if self._interceptor is not None:
            self._take(([zmq.Frame(head), zmq.Frame(body)], False))
        elif at_once or threading.get_ident() == self.ident:
            self.receiver.take_one(head, body)
        else:
            self.sockets.post(partial(self.receiver.take_one, head, body))

    def _take(self, message: Received) -> None:
        """Processes a message, unless the interceptor takes it."""
        taken = (
            self._interceptor.filter_messages(message, time.monotonic()) if self._interceptor else [message]
        )
        self.receiver.take(taken)

    # What other threads post.

    def check_soon(self) -> None:
        """Makes this thread, which runs this command, check what is due for its nodes."""
        self._next_check = 0.0

    def serve_doorbell(self) -> None:
        """Makes this thread read the doorbell, because no node does so while it waits."""
        if self._pipes is not None:
            self._poller.add(self._pipes.doorbell.fileno(), self._pipes.doorbell.receive)

    # What may run in the thread of a node, because it sends: a link is opened by its first message, and a
    # control message to a node of the same process is processed at once. It changes mailboxes, behind their
    # lock, and the time of the next proposal; a time that is lost between two threads costs one interval.

    def _receive_from_sibling(self, peers: Peers, header: wire.Header) -> None:
        self.receiver.receive(peers, header)

    def book_unsent(self, header: bytes) -> None:
        """Counts, for its sender, a message that its receiver was too slow to accept."""
        self._peers_by_rank[wire.Header.unpack(header).sender].mailbox.refuse("receiver full")

    def note_link(self, process: int) -> None:
        """Records an open link, and proposes soon to nodes there that are lost to nodes here."""
        for peers, rank in self._pairs(process):
            peers.link(rank)
            if peers[rank].state is PeerState.LOST:
                # Soon, because no coming round needs the link for long.
                self.sockets.propose_within(0.0)

    # What links and the receiver report, in this thread.

    def has_met(self, process: int) -> bool:
        """Whether a process has sent HELLO."""
        return process in self.hello_barrier.seen

    def may_close(self, process: int) -> bool:
        """Whether nothing that a node here or there waits for needs the link."""
        pairs = self._pairs(process)
        return not self._edges.is_seeking and all(peers.may_unlink(rank) for peers, rank in pairs)

    def note_closed(self, process: int) -> None:
        """Records that the link to a live process was closed: a state of its nodes, not a loss."""
        for peers, rank in self._pairs(process):
            peers.unlink(rank)

    def _note_hello(self, process: int) -> None:
        # A link sends only one way, so the answer needs one of our own.
        self._links.need(process)
        if self.hello_barrier.note(process):
            self._links.resend_hello(process)  # it may have missed the answer to its first HELLO

    def _restarted(self, process: int) -> None:
        """Replaces a process that may not have been detected as lost by its successor."""
        for peers, rank in self._pairs(process):
            peers.replace(rank, PeerLost(rank, "connection lost"))
        self._lose_process(process)
        self._links.reconnect(process)

    def lose_silent(self, process: int) -> None:
        """Loses a process that has sent no HELLO in time."""
        if not self.has_met(process):
            self._links.lose(process)
            self._lose_process(process)

    def _lose_process(self, process: int) -> None:
        self.receiver.forget(process)
        for peers, rank in self._pairs(process):
            peers.lose(rank, self._links.error(process, rank))
        # Last: the thread at the barrier then finds the loss in all mailboxes.
        self.hello_barrier.note_lost(process)

    def _pairs(self, process: int) -> Iterable[tuple[Peers, int]]:
        """The peers of each node here, with each rank of that process that the node has a record of."""
        ranks = self._directory.processes[process].ranks
        return ((peers, rank) for peers in self._peers_by_rank.values() for rank in peers.known(ranks))

    def _is_reachable(self, rank: int) -> bool:
        """Whether a message may arrive; a missing link is opened for it."""
        return self._directory.home[rank] not in self._links.lost

    def _end(self) -> None:
        self._stopping = True

    def _wait_for_readers(self, limit: float) -> None:
        """Serves until every live reader has released its payloads and other peers had time to leave."""
        self._serve_until(
            limit, lambda: all(peers.mailbox.is_read() for peers in self._peers_by_rank.values())
        )
        # Peers that are leaving have sent LEAVE by then; messages for them need not be kept.
        grace = min(limit, time.monotonic() + Timeouts.local_link)
        self._serve_until(grace, lambda: all(map(self._has_left, self._links.processes)))
        self._linger = max(0.0, limit - time.monotonic())

    def _serve_until(self, limit: float, is_done: Callable[[], bool]) -> None:
        while not is_done() and time.monotonic() < limit:
            self._next_check = min(self._next_check, limit)
            self._serve()

    def _has_left(self, process: int) -> bool:
        """Whether no node of that process needs anything more from here."""
        if process in self._links.lost:
            return True
        ranks = frozenset(self._directory.processes[process].ranks)
        for rank, peers in self._peers_by_rank.items():
            known = self.sockets.peers_of(rank)
            if any(peers.error(j) is None for j in (ranks if known is None else ranks & known)):
                return False
        return True

    def _close(self) -> None:
        linger = int(self._linger * 1000)
        self._links.close(lambda process: 0 if self._has_left(process) else linger)
        if self._authenticator is not None:
            self._authenticator.close()
        for router in self._routers:
            router.close(0)
        if self._pipes is not None:
            self._pipes.close()
        self._context.term()

    # Called by the thread that closes the transport.

    def stop(self, linger: float) -> None:
        """Ends the thread after the posted commands; undelivered messages have `linger` seconds."""
        self._linger = linger
        if self.ident is None:
            self._close()
        else:
            self.sockets.post(self._end)
            self.join(linger + 1.0)
        # A thread that outlives the join still reads its commands.
        if not self.is_alive():
            self.sockets.commands.close()
