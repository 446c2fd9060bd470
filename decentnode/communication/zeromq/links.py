"""The outgoing links of a host process: the doorbell of a process that shares memory, else a DEALER.

A message that fits goes into a pipe of the other process, in one write: those of exchanges into its
doorbell, all others into the pipe that its socket thread reads. Opening a pipe costs some microseconds, a
DEALER and its monitor a thousand. A larger message, or one that a full pipe does not take, needs one, too.
"""

import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq.link_budget import LinkBudget
from decentnode.communication.zmq_poll import has_input
from decentnode.core.timeouts import Timeouts

HEARTBEAT_INTERVAL = 2.0
"""Seconds between heartbeats of a link to another machine."""
GREETING_INTERVAL = 0.5
"""Seconds between two HELLOs to one process."""
MOST_UNREAD = 4
"""Bodies queued for a peer, per edge and part: two rounds, one resend, and one model."""
RUNG = frozenset({Kind.NOTICE, Kind.ACKNOWLEDGE, Kind.LEAVE})
"""The kinds that the node itself reads while it waits."""
MOST_PIPED = select.PIPE_BUF - wire.HEADER_BYTES
"""Bytes of a body that the kernel writes together with its header."""
NEVER = float("inf")
WRITING = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
_MORE_FOLLOWS = zmq.SNDMORE | zmq.NOBLOCK
_LINK_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class LinkOwner(Protocol):
    """What links report, in the socket thread; only `book_unsent` may come from any thread."""

    def book_unsent(self, header: bytes) -> None:
        """Counts a message that a peer did not read in time."""

    def note_link(self, process: int) -> None:
        """Records that the link to a process is open, or holds again."""

    def may_close(self, process: int) -> bool:
        """Whether nothing that this process or that one waits for needs their link."""

    def note_closed(self, process: int) -> None:
        """Records that the link to a live process was closed."""


class PeerLinks:
    """Links are opened and closed by the socket thread; any thread may send, behind a lock."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        place: ProcessDirectory,
        endpoint_of: Callable[[int], str],
        greeting: Callable[[int, bool], list[wire.Outgoing]],
        owner: "LinkOwner",
        pipe_of: Callable[[int, bool], str | None] = lambda process, rings: None,
    ) -> None:
        """`endpoint_of`: address of a process; `greeting`: the first messages for it; `pipe_of`: its
        pipe, or its doorbell, where it has them.
        """
        self.gone: set[int] = set()
        self.next_verdict = NEVER
        """When the next broken link counts as lost, on the clock of `time.monotonic`."""
        self.parts = 1
        """The largest number of parts of a local node's vector."""
        self._context = context
        self._place = place
        self._endpoint_of = endpoint_of
        self._greeting = greeting
        self._pipe_of = pipe_of
        self._owner = owner
        self._sending = threading.RLock()
        self.budget = LinkBudget()
        self._unsent: list[bytes] = []
        self._opened: list[int] = []
        """Links that were opened and not reported yet."""
        self._pipes: dict[int, int] = {}
        """By process the descriptor of its pipe; -1: it could not be opened."""
        self._bells: dict[int, int] = {}
        """By process the descriptor of its doorbell."""
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._monitors: dict[int, zmq.Socket[bytes]] = {}
        self._watched: dict[int, int] = {}
        self._suspects: dict[int, float] = {}
        self._greeted: dict[int, float] = {}
        self._unread: dict[int, deque[weakref.ref[memoryview]]] = {}
        """By process the large bodies that libzmq may still hold, oldest first; it drops the reference after
        the send.
        """
        self._epoll = select.epoll()

    @property
    def processes(self) -> list[int]:
        """Processes with a working link; for any thread."""
        return [process for process in self._open() if process not in self.gone]

    def _open(self) -> list[int]:
        return [*dict.fromkeys((*tuple(self._bells), *tuple(self._pipes), *tuple(self._dealers)))]

    @property
    def has_surplus(self) -> bool:
        """Whether there are many more links than the coming rounds need; for any thread."""
        # A quarter more than the bound: then one wake-up of the socket thread closes several.
        return 4 * len(self._open()) > 5 * self.budget.most

    def _is_open(self, process: int) -> bool:
        return process in self._bells or process in self._pipes or process in self._dealers

    def holds(self, process: int) -> bool:
        """Whether the link to a process works; for any thread, as it only reads containers."""
        return self._is_open(process) and process not in self.gone

    def fileno(self) -> int:
        """Readable when the state of some link has changed: time for `watch`."""
        return self._epoll.fileno()

    def send(self, messages: Collection[wire.Outgoing], opens: bool = True) -> list[wire.Outgoing]:
        """Sends (process, header, body) triples, and skips lost processes.

        Any thread opens doorbells. Only the socket thread `opens` other links; for any other thread this
        returns the messages that need one.
        """
        left: list[wire.Outgoing] = []
        with self._sending:
            for message in messages:
                process, header, body = message
                if self._write(process, header, body) or process in self.gone:
                    continue
                if opens or process in self._dealers:
                    self._make(process)
                    self._send(process, header, body)
                else:
                    left.append(message)
        if self._unsent:
            self._book()
        if self._opened:
            self._report_opened()
            if opens:
                self.close_surplus()
        return left

    def _write(self, process: int, header: bytes, body: wire.Body) -> bool:
        """Writes a message into a pipe of a process, which it opens; False: it must go another way."""
        rings = header[wire.KIND_AT] in RUNG
        pipe = (self._bells if rings else self._pipes).get(process)
        if pipe is None and process not in self.gone:
            pipe = self._open_pipe(process, rings)
        if pipe is None or len(body) > MOST_PIPED:
            return False
        try:
            os.write(pipe, header + body)
        except BlockingIOError:
            return False
        except OSError:
            # Without a reader: the process has died, which the event of its pipe shows.
            return True
        return True

    def _send(self, process: int, header: bytes, body: wire.Body) -> None:
        if self._write(process, header, body):
            return
        dealer = self._dealers.get(process) or self._open_dealer(process)
        # Only libzmq keeps this view, so its weak reference shows the end of the send. A tracker of libzmq
        # costs 0.1 ms.
        body = body[:]
        is_bulk = isinstance(body, memoryview)
        try:
            if is_bulk and not self._takes_bulk(process):
                raise zmq.Again
            dealer.send(header, _MORE_FOLLOWS)
            dealer.send(body, zmq.NOBLOCK, copy=not is_bulk)
        except zmq.Again:
            self._unsent.append(header)
            return
        if isinstance(body, memoryview):
            self._unread.setdefault(process, deque()).append(weakref.ref(body))

    def _takes_bulk(self, process: int) -> bool:
        """Whether a process reads what it is sent; otherwise models of many rounds would queue here."""
        unread = self._unread.get(process, deque())
        while unread and unread[0]() is None:
            unread.popleft()
        edges = len(self._place.process.ranks) * len(self._place.processes[process].ranks)
        return len(unread) < MOST_UNREAD * self.parts * edges

    def _book(self) -> None:
        """Reports unsent messages without the lock: this takes the lock of a mailbox, which other threads
        hold while they send.
        """
        while self._unsent:
            with self._sending:
                unsent, self._unsent = self._unsent, []
            for header in unsent:
                self._owner.book_unsent(header)

    def _report_opened(self) -> None:
        """Reports opened links without the lock, as `_book`."""
        while self._opened:
            self._owner.note_link(self._opened.pop())

    def make(self, process: int) -> None:
        """Connects to a process and sends HELLO, unless that was done or it is lost."""
        self._make(process)
        self._book()
        self._report_opened()
        self.close_surplus()

    def need(self, process: int) -> None:
        """Opens the link to a process that a coming round needs; to a lost one only over TCP.

        Such a link holds again once the process there answers, as in `give_up_broken`.
        """
        if not self._is_open(process) and self._may_revive(process):
            self._connect(process)
            self._book()
            self._report_opened()

    def _may_revive(self, process: int) -> bool:
        return process not in self.gone or self._endpoint_of(process).startswith("tcp")

    def close_surplus(self) -> None:
        """Closes links that no coming round needs, while there are more than the budget allows."""
        for process in self.budget.surplus(self._open()) if self.has_surplus else ():
            if len(self._open()) <= self.budget.most:
                return
            # What libzmq still holds for a peer forbids closing, as what the peer has not acknowledged does.
            if self._is_flushed(process) and self._owner.may_close(process):
                # To a process that does not answer nothing can be delivered.
                answers = process not in self.gone and process not in self._suspects
                self.end(process, linger=round(1000 * Timeouts.link_linger) if answers else 0)
                self.budget.forget(process)
                self._owner.note_closed(process)

    def _is_flushed(self, process: int) -> bool:
        return all(body() is None for body in self._unread.get(process, ()))

    def _make(self, process: int) -> None:
        if not self._is_open(process) and process not in self.gone:
            self._connect(process)

    def _open_pipe(self, process: int, rings: bool) -> int | None:
        """Opens the doorbell or the pipe of a process, and greets it there; with the lock held."""
        if (path := self._pipe_of(process, rings)) is None:
            return None
        pipe = -1
        try:
            pipe = os.open(path, WRITING)
            # HELLO must be the first message, also of a doorbell.
            for _, header, body in self._greeting(process, rings):
                os.write(pipe, header + body)
        except OSError:
            # A process that has died, or one that has not read its pipe for long.
            if pipe >= 0:
                os.close(pipe)
            return None
        # A pipe without a reader is an error, the only event here; it is reported once.
        self._epoll.register(pipe, select.EPOLLET)
        self._watched[pipe] = process
        (self._bells if rings else self._pipes)[process] = pipe
        self._note_greeting(process)
        return pipe

    def _connect(self, process: int) -> None:
        with self._sending:
            if self._pipe_of(process, False) is None:
                self._watch_dealer(process, self._dealer_to(process))
                self._greet(process)
            elif process not in self._pipes and self._open_pipe(process, False) is None:
                # All processes listened before the start: this one died, or is being restarted.
                self._pipes[process] = -1
                self._suspect(process, Timeouts.unmade_link)

    def _open_dealer(self, process: int) -> "zmq.Socket[bytes]":
        """A second way to a process with a pipe, which alone shows whether the link holds."""
        dealer = self._dealers[process] = self._dealer_to(process)
        dealer.connect(self._endpoint_of(process))
        return dealer

    def _dealer_to(self, process: int) -> "zmq.Socket[bytes]":
        endpoint = self._endpoint_of(process)
        dealer = self._context.socket(zmq.DEALER)
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.IPV6, 1)
        dealer.set(zmq.RECONNECT_IVL_MAX, 5000)
        if not self._place.co_located(process):
            # On one machine the kernel closes the links of a dead process; a suspended one has the deadline.
            dealer.set(zmq.HEARTBEAT_IVL, round(1000 * HEARTBEAT_INTERVAL))
            dealer.set(zmq.HEARTBEAT_TIMEOUT, round(1000 * Timeouts.link_heartbeat))
            # Where packets are dropped, the kernel retries for two minutes without a report.
            dealer.set(zmq.CONNECT_TIMEOUT, round(1000 * Timeouts.connect))
        if endpoint.startswith("tcp") and self._place.credentials is not None:
            self._place.credentials.guard_client(dealer, self._place.processes[process].machine)
        return dealer

    def _watch_dealer(self, process: int, dealer: "zmq.Socket[bytes]") -> None:
        monitor = self._monitors[process] = dealer.get_monitor_socket(_LINK_EVENTS)
        self._watched[monitor.fileno()] = process
        self._epoll.register(monitor, select.EPOLLIN)
        # Edge-triggered: a ZeroMQ descriptor becomes readable only after a read that found nothing.
        self._watch(process)
        dealer.connect(self._endpoint_of(process))
        self._dealers[process] = dealer

    def _greet(self, process: int) -> None:
        # Under one lock with the opening: HELLO must be the first message.
        with self._sending:
            for _, header, body in self._greeting(process, False):
                self._send(process, header, body)
            self._note_greeting(process)

    def _note_greeting(self, process: int) -> None:
        if process not in self._greeted:
            self._opened.append(process)
        self._greeted[process] = time.monotonic()
        self.budget.use(process)

    def greet_again(self, process: int) -> None:
        """Resends HELLO, but not often: two processes may answer each other."""
        if self.holds(process) and time.monotonic() - self._greeted.get(process, 0.0) > GREETING_INTERVAL:
            self._revive(process)

    def watch(self) -> None:
        """Processes the events of the monitors."""
        for fd, _ in self._epoll.poll(0):
            process = self._watched.get(fd)
            if process in self._monitors:
                self._watch(process)
            elif process is not None:
                self._suspect(process, Timeouts.local_link)

    def _suspect(self, process: int, grace: float) -> None:
        """Gives a process whose link broke some time; later breaks do not extend it."""
        if process not in self.gone:
            self._suspects.setdefault(process, time.monotonic() + grace)
        self.next_verdict = min(self._suspects.values(), default=NEVER)

    def _watch(self, process: int) -> None:
        monitor = self._monitors[process]
        local = self._place.co_located(process)
        while has_input(monitor):
            event = recv_monitor_message(monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                # HELLO may have been lost with the connection.
                if self._suspects.pop(process, None) is not None or process in self.gone:
                    self._revive(process)
                    self._owner.note_link(process)
                continue
            # All processes listened before the start: a refused connection means that the process died.
            at_once = Timeouts.local_link if event == zmq.EVENT_DISCONNECTED else Timeouts.unmade_link
            self._suspect(process, at_once if local else self._place.grace)
        self.next_verdict = min(self._suspects.values(), default=NEVER)

    def give_up_broken(self, now: float) -> list[int]:
        """Marks processes whose links were broken for too long as lost, and returns them.

        A link over TCP is kept: if it reconnects, the process there receives HELLO again.
        """
        broken = [process for process, verdict in self._suspects.items() if verdict <= now]
        for process in broken:
            self.gone.add(process)
            del self._suspects[process]
            if not self._endpoint_of(process).startswith("tcp"):
                self.end(process, linger=0)
        self.next_verdict = min(self._suspects.values(), default=NEVER)
        return broken

    def _revive(self, process: int) -> None:
        self.gone.discard(process)
        if self._pipes.get(process) == -1:
            # Another attempt, which does not extend the time until the process is lost.
            del self._pipes[process]
            self._connect(process)
            if self._pipes[process] >= 0:
                self._suspects.pop(process, None)
        else:
            self._greet(process)
        self._book()

    def renew(self, process: int) -> None:
        """Drops what is on the way to a process that was replaced by a new one, and connects to that."""
        if self._is_open(process):
            # A new socket: the queue of the old one may hold messages of rounds that the new process skips.
            self.end(process, linger=0)
        self.gone.discard(process)
        self.make(process)

    def end(self, process: int, linger: int) -> None:
        """Closes a link; what it still holds has `linger` milliseconds, at most `Timeouts.link_linger`."""
        monitor = self._monitors.pop(process, None)
        with self._sending:
            self._suspects.pop(process, None)
            dealer = self._dealers.pop(process, None)
            self._unread.pop(process, None)
            self._greeted.pop(process, None)
            pipes = [self._bells.pop(process, -1), self._pipes.pop(process, -1)]
            for pipe in (fd for fd in pipes if fd >= 0):
                self._epoll.unregister(pipe)
                del self._watched[pipe]
                os.close(pipe)
        if dealer is not None and monitor is not None:
            self._epoll.unregister(monitor)
            del self._watched[monitor.fileno()]
            dealer.disable_monitor()
            monitor.close(0)
        if dealer is not None:
            dealer.close(min(linger, round(1000 * Timeouts.link_linger)))

    def close(self, linger_of: Callable[[int], int]) -> None:
        """Closes all links, also broken ones that may reconnect, each with its time as in `end`."""
        for process in self._open():
            self.end(process, linger_of(process))
        self._epoll.close()
