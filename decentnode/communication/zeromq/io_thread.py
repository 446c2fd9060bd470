"""The sockets of a host process, and the thread that serves them while nodes compute.

One ROUTER receives from all peers. Only this thread uses it, opens and closes links, and runs timers. Links
send behind a lock, so a node's own thread may send over an existing link. Waking this thread costs more than
such a send (libzmq allows a socket to change threads behind a full fence).
"""

import errno
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from itertools import product

import msgspec
import zmq
from torch import Tensor

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.exchange.handle import Key, Waiter
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.interceptor import Received
from decentnode.communication.peers.edges import EdgeProtocol
from decentnode.communication.peers.failure_detector import FailureDetector
from decentnode.communication.peers.rejoin import RejoinProtocol
from decentnode.communication.security.curve import ZapAuthenticator
from decentnode.communication.shared_memory.doorbell import OwnPipes, pipe_path
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq.hello_barrier import HelloBarrier
from decentnode.communication.zeromq.links import NEVER, PeerLinks
from decentnode.communication.zeromq.receiver import GroupListener, Receiver
from decentnode.communication.zmq_poll import Commands, Poller, has_input
from decentnode.core.clock import AwakeClock
from decentnode.core.process_setup import close_connections_in_children
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost, StartError

PROPOSAL_INTERVAL = 1.0
"""Seconds between two proposals to lost peers."""
POLL_INTERVAL = 0.005
BACKLOG = 1024
RANKS_PER_HELLO = 32
"""A hello must fit into a record of a doorbell."""
OF_EXCHANGES = (wire.NOTICE, wire.ACKNOWLEDGE)
Hello = tuple[wire.Header, bytes]
CLOSING_SOCKETS = 4096
"""Room for closed links: libzmq counts a socket until what it holds has left."""


class IoThread(threading.Thread):
    """Sends and receives, detects lost peers, and checks deadlines against what has really arrived."""

    def __init__(
        self, directory: ProcessDirectory, endpoint_of: Callable[[int], str], most_bytes: int
    ) -> None:
        """`endpoint_of`: the address of a peer process; `most_bytes`: the largest frame accepted."""
        super().__init__(name="decentnode-sockets", daemon=True)
        self.directory = directory
        self.mailboxes: dict[int, Mailbox] = {}
        self.hello = wire.Hello([], [])
        self._interceptor = directory.interceptor
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, 3 * len(directory.processes) + CLOSING_SOCKETS)
        self._routers = [self._make_router(most_bytes)]
        self._authenticator: ZapAuthenticator | None = None
        if directory.credentials is not None:
            # Authentication is per socket: TCP needs a ROUTER of its own beside the one for ipc.
            self._routers.append(self._make_router(most_bytes))
            self._authenticator = ZapAuthenticator(
                self._routers[-1], directory.credentials, lambda why: self._receiver.refuse(why)
            )
        self._links = PeerLinks(
            self._context, directory, endpoint_of, self._hello_messages, self, self._pipe_of
        )
        self._hello_barrier = HelloBarrier(directory, self._links)
        self._edges = EdgeProtocol(self.mailboxes, self.send_control, self._is_reachable, self.is_linked)
        self.rejoining = RejoinProtocol(self.mailboxes, self.send_control) if directory.incarnation else None
        self._edges.rejoining = self.rejoining
        self.failure_detector = FailureDetector(self.mailboxes, self.send_control, self._edges)
        self._receiver = Receiver(
            directory, self.mailboxes, self._edges, self.send_control, self._note_hello, self._restarted
        )
        self.incarnations = self._receiver.incarnations
        """By process its incarnation as far as this one knows, where that is not 0."""
        self._pipes: OwnPipes | None = None
        self._commands = Commands()
        self._poller = Poller()
        for router in self._routers:
            self._poller.add(router, partial(self._receive, router))
        if self._authenticator is not None:
            for known in (self._authenticator.questions, self._authenticator.monitor):
                self._poller.add(known, self._authenticator.serve)
        self._poller.add(self._commands.fd, self._commands.run_commands)
        self._poller.add(self._links.fileno(), self._links.watch)
        self._foreseen: dict[int, frozenset[int]] = {}
        """By local rank the peers of its coming rounds, on a graph that changes."""
        self._next_check = self._next_proposal = NEVER
        self._linger, self._stopping = 0.0, False

    def _make_router(self, most_bytes: int) -> "zmq.Socket[bytes]":
        """A socket that receives from all peers frames of at most `most_bytes` bytes."""
        router = self._context.socket(zmq.ROUTER)
        router.set(zmq.MAXMSGSIZE, max(most_bytes, wire.MOST_CONTROL_BYTES))
        router.set(zmq.BACKLOG, BACKLOG)
        router.set(zmq.IPV6, 1)
        router.set(zmq.LINGER, 0)
        return router

    # Called by other threads.

    def bind(self, endpoint: str) -> None:
        """Listens on this address, too; before the thread starts. Raises StartError."""
        router = self._routers[-1] if endpoint.startswith("tcp") else self._routers[0]
        try:
            router.bind(endpoint)
            # A worker that a node forks must not keep the connections of a dead process open.
            close_connections_in_children(endpoint)
        except zmq.ZMQError as error:
            busy = "is in use by another program" if error.errno == errno.EADDRINUSE else str(error)
            raise StartError(f"{endpoint} {busy} (key communication.base_port)") from error

    def open_doorbells(self) -> None:
        """Opens the doorbells between processes of this machine; before `add_node`. Raises StartError."""
        if any(
            self.directory.co_located(p)
            for p in range(len(self.directory.processes))
            if p != self.directory.own
        ):
            self._pipes = OwnPipes(self.directory, self._take_record, self._receiver.refuse)
            self._poller.add(self._pipes.fileno(), self._pipes.receive)

    def add_node(
        self, mailbox: Mailbox, segment: wire.SharedSegment | None, peers: frozenset[int] | None,
        waiter: Waiter | None = None,
    ) -> Waiter | None:  # fmt: skip
        """Adds a local node and its shared memory to the HELLO; before the thread starts.

        `peers`: ranks that may send to it; None: all. `waiter`: what receives while it waits. Returns that,
        or the doorbell if the node can read it itself; None: other threads receive.
        """
        self.mailboxes[mailbox.rank] = mailbox
        self._links.parts = max(self._links.parts, mailbox.parts)
        if peers is not None:
            self._receiver.peers[mailbox.rank] = peers
        segments = [*self.hello.segments, segment] if segment else self.hello.segments
        self.hello = wire.Hello([*self.hello.ranks, mailbox.rank], segments)
        # A node alone in its process reads the doorbell itself while it waits: no other thread wakes up.
        if waiter is None and mailbox.alone and self._interceptor is None and self._pipes is not None:
            return self._pipes.doorbell
        self.serve_doorbell()
        return waiter

    def serve_doorbell(self) -> None:
        """Makes this thread read the doorbell, because no node does so while it waits."""
        if self._pipes is not None:
            self._poller.add(self._pipes.doorbell.fileno(), self._pipes.doorbell.receive)

    def listen(self, listener: GroupListener) -> None:
        """Passes messages about a process group to `listener`; before the thread starts."""
        self._receiver.listener = listener
        # A node that waits for a group may be unable to start a check.
        self.failure_detector.most_pause, self._next_check = PROPOSAL_INTERVAL, 0.0

    def is_linked(self, rank: int) -> bool:
        """True for a local rank, or when there is a link to the process of another."""
        process = self.directory.home[rank]
        return process == self.directory.own or self._links.holds(process)

    def linked(self, only_needed: bool = False) -> list[int]:
        """The ranks of all processes with a link, or of those that the coming rounds need, where known."""
        needs = self._links.budget.needs
        linked = [p for p in self._links.processes if not only_needed or needs(p)]
        return [rank for process in linked for rank in self.directory.processes[process].ranks]

    def concerned(self, rank: int, only_needed: bool = False) -> set[int]:
        """The ranks that may wait for a local one, in its process and behind links.

        They are its peers of all rounds, or, on a graph that changes, those of the coming rounds and, without
        `only_needed`, all that it has met. Not all nodes behind its links: processes with many nodes would
        exchange a message for each pair of nodes.
        """
        peers = self._foreseen.get(rank) if only_needed else None
        peers = self._peers_of(rank) if peers is None else peers
        others = {*self.linked(only_needed), *self.mailboxes} - {rank}
        return others if peers is None else others & peers

    def _peers_of(self, rank: int) -> frozenset[int] | None:
        """Returns the peers of a local rank in any round, as far as they are known; None: all may be."""
        peers = self._receiver.peers.get(rank)
        if peers is None and (foreseen := self._foreseen.get(rank)) is not None:
            return foreseen.union(list(self.mailboxes[rank].peers))
        return peers

    def need(self, rank: int, peers: Iterable[int]) -> None:
        """Opens links to the peers of the coming rounds of a local rank, and keeps them open."""
        self._foreseen[rank] = frozenset(peers)
        processes = {self.directory.home[peer] for peer in peers} - {self.directory.own}
        self._links.budget.need(rank, processes)
        # The attachments and pipes used last are kept.
        self._receiver.segments.most = self._links.budget.most
        needing = processes
        if self._pipes is not None and not self.directory.incarnation:
            # A pipe is opened in no time by the first message for it; but a lost peer is sent none.
            lost = {self.directory.home[p.rank] for p in self.mailboxes[rank].peers.unsettled() if p.error}
            needing = (processes - self.directory.neighbors) | lost
        lacking = [p for p in needing & processes if not self._links.holds(p)]
        if lacking or self._links.has_surplus:
            self.post(lambda: self._connect(lacking))

    def header(
        self, kind: Kind, sender: int, receiver: int, key: Key = (0, 0, 0), seq: int = 0, length: int = 0,
        layout: int = 0, body: wire.Body = b"",
    ) -> wire.Header:  # fmt: skip
        """The header of a message from a local node; `body` is what its digest covers."""
        place, knows = self.directory, self.incarnations.get(self.directory.home[receiver], 0)
        return wire.Header(
            kind, self._receiver.run_id, sender, receiver, *key, layout, seq, 0, length,
            place.incarnation, knows, wire.digest(body),
        )  # fmt: skip

    def check_soon(self) -> None:
        """Makes this thread, which runs this command, check what is due for its nodes."""
        self._next_check = 0.0

    def post(self, command: Callable[[], object]) -> None:
        """Makes this thread run a command soon, in the order of the posts."""
        self._commands.post(command)

    def dispatch(self, messages: list[wire.Outgoing]) -> None:
        """Sends at once, without waking this thread unless it has to open a link first."""
        if left := self._links.send(messages, opens=False):
            self.post(lambda: self._links.send(left))

    def send_control(self, kind: Kind, sender: int, peer: int, key: Key, seq: int = 0) -> None:
        """Sends a control message of a local node, or passes it to another one of this process."""
        sibling = self.mailboxes.get(peer)
        header = self.header(kind, sender, peer, key, seq=seq)
        if sibling is None:
            self.dispatch([(self.directory.home[peer], header.pack(), b"")])
        else:
            self._receiver.receive(sibling, header)

    def meet(self, processes: set[int], run_id: int, timeout: float) -> None:
        """Starts the thread, connects, and waits for HELLO from every process.

        Raises StartError naming silent ranks. A process that has died by then is lost as in any round.
        """
        # Before the thread starts: it refuses messages of any other run.
        self._receiver.run_id = run_id
        self.start()
        for process in sorted(processes):
            self.post(partial(self._links.make, process))
        self._hello_barrier.wait(
            processes, timeout, lambda silent: self.post(partial(self._links.resend_hello, silent))
        )

    def rejoin(self, peers: Mapping[int, Iterable[int]], timeout: float, enough: int | None = None) -> int:
        """The round in which local ranks rejoin, or with `enough` the position of their `peers` (`seek`)."""
        assert self.rejoining is not None, "only a process that was restarted can rejoin"
        home, own_process, clock = self.directory.home, self.directory.own, AwakeClock(Timeouts.rejoin_answer)
        limit = clock.now() + timeout
        pairs = [(rank, peer) for rank in peers for peer in peers[rank] if home[peer] != own_process]
        round: int | None = None
        while round is None and (left := limit - clock.now()) > 0.0 and self._any_lives(pairs):
            round = self.rejoining.seek(pairs, time.monotonic() + left, self.post, enough)
        if round is None:
            raise StartError(f"rank {self.hello.ranks[0]}: no neighbor agreed on a round to rejoin in")
        return round

    def _any_lives(self, pairs: list[tuple[int, int]]) -> bool:
        return any(self.directory.home[peer] not in self._links.lost for _, peer in pairs)

    def fetch(self, rank: int, peer: int, timeout: float) -> Tensor | None:
        """The bytes of the model of a peer, or of one requested before; None on timeout."""
        clock, pair = AwakeClock(POLL_INTERVAL), (rank, peer)
        limit = clock.now() + timeout
        # Before the request: a model without an entry here is refused.
        self._receiver.models.setdefault(pair, None)
        self.post(lambda: self.send_control(Kind.MODEL_REQUEST, rank, peer, (0, 0, 0)))
        model = None
        while model is None and clock.now() < limit and self._any_lives([pair]):
            time.sleep(POLL_INTERVAL)
            model = self._receiver.take_model_for(rank)
        return model

    def stop(self, linger: float) -> None:
        """Ends the thread after the posted commands; undelivered messages have `linger` seconds."""
        self._linger = linger
        if self.ident is None:
            self._close()
        else:
            self.post(self._end)
            self.join(linger + 1.0)
        # A thread that outlives the join still reads its commands.
        if not self.is_alive():
            self._commands.close()

    # Everything below runs in this thread.

    def run(self) -> None:
        """Serves sockets and timers until stopped; an error in here ends every exchange with it."""
        try:
            while not self._stopping:
                self._serve()
            self._wait_for_readers(time.monotonic() + self._linger)
        except BaseException as error:
            # Nodes wait on handles, not on this thread: without this they would wait for their deadline.
            for mailbox in self.mailboxes.values():
                mailbox.fail(error)
            self._hello_barrier.end()
            raise
        finally:
            self._close()

    def _serve(self) -> None:
        if self._next_proposal == NEVER and self._edges.has_lost():
            self._next_proposal = time.monotonic() + PROPOSAL_INTERVAL
        self._poller.serve(self._due)
        if (now := time.monotonic()) >= self._due:
            self._check_due(now)

    @property
    def _due(self) -> float:
        """The time of the next action if nothing arrives."""
        held = self._interceptor.next_release if self._interceptor else NEVER
        silent = self._authenticator.next_due if self._authenticator else NEVER
        return min(self._next_check, self._next_proposal, self._links.next_verdict, held, silent)

    def _check_due(self, now: float) -> None:
        # Everything that arrived counts before deadlines are checked, however late this check is.
        self._receive_all()
        if self._interceptor:
            self._receiver.take(self._interceptor.released(now))
        # Broken links before deadlines: a lost connection is the better reason for a missing payload.
        for process in self._links.lose_broken(now):
            self._lose_process(process)
        if self._authenticator is not None and now >= self._authenticator.next_due:
            self._authenticator.serve()
        if now >= self._next_check:
            self._next_check = self.failure_detector.check(now, partial(self.concerned, only_needed=True))
        if now >= self._next_proposal:
            self._edges.propose()
            self._next_proposal = NEVER

    def _pipe_of(self, process: int, is_doorbell: bool) -> str | None:
        """The doorbell or the pipe of a process that reads this one's memory; None: it has none."""
        has_one = self._pipes is not None and process in self.directory.neighbors
        return pipe_path(self.directory, process, is_doorbell) if has_one else None

    def _receive_from_pipes(self) -> None:
        if self._pipes is not None:
            self._pipes.receive()

    def _hello_messages(self, process: int, is_doorbell: bool) -> list[wire.Outgoing]:
        """The HELLOs for a process."""
        receiver = self.directory.processes[process].ranks[0]
        hellos = self._hellos[self.directory.co_located(process)]
        return [(process, head._replace(seq=is_doorbell).pack(receiver), body) for head, body in hellos]

    @cached_property
    def _hellos(self) -> tuple[list[Hello], list[Hello]]:
        """For processes elsewhere with local ranks, and for those of this machine also with their memory."""
        # Made once: in a random graph a node opens links in each round.
        hellos: tuple[list[Hello], list[Hello]] = ([], [])
        for at in range(0, len(self.hello.ranks), RANKS_PER_HELLO):
            some = slice(at, at + RANKS_PER_HELLO)
            ranks = self.hello.ranks[some]
            for target, segments in zip(hellos, ([], self.hello.segments[some]), strict=True):
                body = msgspec.msgpack.encode(wire.Hello(ranks, segments))
                head = self.header(Kind.HELLO, ranks[0], ranks[0], length=len(body), body=body)
                target.append((head, body))
        return hellos

    def _receive_all(self) -> None:
        for router in self._routers:
            limit = time.monotonic() + Timeouts.message_burst
            while has_input(router) and time.monotonic() < limit:
                self._receive(router)
        self._receive_from_pipes()

    def _receive(self, router: "zmq.Socket[bytes]") -> None:
        """Receives one message: routing id, header, body; further frames are counted and dropped."""
        self._receive_from_pipes()
        router.recv(zmq.NOBLOCK)
        frames = [router.recv(copy=False)]
        # At most three frames are kept, however many a message has: enough to refuse it.
        while frames[-1].more:
            frame = router.recv(copy=False)
            frames = [*frames[:2], frame]
        self._take((frames, router is not self._routers[0]))

    def _take_record(self, head: bytes, body: bytes) -> None:
        """Processes a record of the doorbell, or leaves it to this thread."""
        at_once = head[wire.KIND_AT] in OF_EXCHANGES or self._receiver.is_usual_hello(head)
        if self._interceptor is not None:
            self._take(([zmq.Frame(head), zmq.Frame(body)], False))
        elif at_once or threading.get_ident() == self.ident:
            self._receiver.take_one(head, body)
        else:
            self.post(partial(self._receiver.take_one, head, body))

    def _take(self, message: Received) -> None:
        """Processes a message, unless the interceptor takes it."""
        taken = (
            self._interceptor.filter_messages(message, time.monotonic()) if self._interceptor else [message]
        )
        self._receiver.take(taken)

    def _connect(self, processes: Iterable[int]) -> None:
        for process in processes:
            self._links.need(process)
        self._links.close_surplus()

    # What links report (`LinkOwner`).

    def book_unsent(self, header: bytes) -> None:
        """Counts, for its sender, a message that its receiver was too slow to accept."""
        self.mailboxes[wire.Header.unpack(header).sender].refuse("receiver full")

    def note_link(self, process: int) -> None:
        """Records an open link, and proposes soon to nodes there that are lost to nodes here."""
        for mailbox, rank in product(self.mailboxes.values(), self.directory.processes[process].ranks):
            mailbox.link(rank)
        # Soon, because no coming round needs the link for long.
        self._next_proposal = min(self._next_proposal, time.monotonic() if self._edges.has_lost() else NEVER)

    def may_close(self, process: int) -> bool:
        """Whether nothing that a node here or there waits for needs the link."""
        pairs = product(self.mailboxes.values(), self.directory.processes[process].ranks)
        return not self._edges.is_seeking and all(mailbox.may_unlink(rank) for mailbox, rank in pairs)

    def note_closed(self, process: int) -> None:
        """Records that the link to a live process was closed: a state of its nodes, not a loss."""
        for mailbox, rank in product(self.mailboxes.values(), self.directory.processes[process].ranks):
            mailbox.unlink(rank)

    def _note_hello(self, process: int) -> None:
        # A link sends only one way, so the answer needs one of our own.
        self._links.need(process)
        if self._hello_barrier.note(process):
            self._links.resend_hello(process)  # it may have missed the answer to its first HELLO

    def _restarted(self, process: int) -> None:
        """Replaces a process that may not have been detected as lost by its successor."""
        for mailbox, rank in product(self.mailboxes.values(), self.directory.processes[process].ranks):
            mailbox.replace(rank, PeerLost(rank, "connection lost"))
        self._lose_process(process)
        self._links.reconnect(process)

    def _lose_process(self, process: int) -> None:
        self._receiver.forget(process)
        for mailbox, rank in product(self.mailboxes.values(), self.directory.processes[process].ranks):
            mailbox.lose(rank, PeerLost(rank, "connection lost"))
        # Last: the thread at the barrier then finds the loss in all mailboxes.
        self._hello_barrier.note_lost(process)

    def _is_reachable(self, rank: int) -> bool:
        """Whether a message may arrive; a missing link is opened for it."""
        return self.directory.home[rank] not in self._links.lost

    def _end(self) -> None:
        self._stopping = True

    def _wait_for_readers(self, limit: float) -> None:
        """Serves until every live reader has released its payloads and other peers had time to leave."""
        self._serve_until(limit, lambda: all(mailbox.is_read() for mailbox in self.mailboxes.values()))
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
        ranks = frozenset(self.directory.processes[process].ranks)
        for rank, mailbox in self.mailboxes.items():
            peers = self._peers_of(rank)
            if any(mailbox.peers.error(j) is None for j in (ranks if peers is None else ranks & peers)):
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
