"""The outgoing links of a host process: one DEALER per peer process, and its monitor."""

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
from decentnode.communication.zeromq.link_budget import LinkBudget
from decentnode.communication.zmq_poll import has_input
from decentnode.core.timeouts import Timeouts

HEARTBEAT_INTERVAL = 2.0
"""Seconds between heartbeats of a link to another machine."""
GREETING_INTERVAL = 0.5
"""Seconds between two HELLOs to one process."""
MOST_UNREAD = 4
"""Bodies queued for a peer, per edge and part: two rounds, one resend, and one model."""
NEVER = float("inf")
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
        greeting: Callable[[int], wire.Outgoing],
        owner: "LinkOwner",
    ) -> None:
        """`endpoint_of`: address of a process; `greeting`: the first message for it."""
        self.gone: set[int] = set()
        self.next_verdict = NEVER
        """When the next broken link counts as lost, on the clock of `time.monotonic`."""
        self.parts = 1
        """The largest number of parts of a local node's vector."""
        self._context = context
        self._place = place
        self._endpoint_of = endpoint_of
        self._greeting = greeting
        self._owner = owner
        self._sending = threading.RLock()
        self.budget = LinkBudget()
        self._unsent: list[bytes] = []
        self._opened: list[int] = []
        """Links that were opened and not reported yet."""
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
        return [process for process in tuple(self._dealers) if process not in self.gone]

    @property
    def has_surplus(self) -> bool:
        """Whether there are more links than the coming rounds need; for any thread."""
        return len(self._dealers) > self.budget.most

    def holds(self, process: int) -> bool:
        """Whether the link to a process works; for any thread, as it only reads two containers."""
        return process in self._dealers and process not in self.gone

    def fileno(self) -> int:
        """Readable when the state of some link has changed: time for `watch`."""
        return self._epoll.fileno()

    def send(self, messages: Collection[wire.Outgoing], opens: bool = True) -> bool:
        """Sends (process, header, body) triples, and skips lost processes.

        Only the socket thread `opens` missing links; otherwise this sends nothing and returns False.
        """
        with self._sending:
            if not opens and any(p not in self._dealers and p not in self.gone for p, _, _ in messages):
                return False
            for process, header, body in messages:
                self._make(process)
                if self.holds(process):
                    self._send(process, self._dealers[process], header, body)
        self._book()
        if opens:
            self._report_opened()
        return True

    def _send(self, process: int, dealer: "zmq.Socket[bytes]", header: bytes, body: wire.Body) -> None:
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
        """Reports opened links without the lock, as `_book`, and closes others if there are too many now."""
        while self._opened:
            self._owner.note_link(self._opened.pop())
        self.close_surplus()

    def make(self, process: int) -> None:
        """Connects to a process and sends HELLO, unless that was done or it is lost."""
        self._make(process)
        self._book()
        self._report_opened()

    def need(self, process: int) -> None:
        """Opens the link to a process that a coming round needs; to a lost one only over TCP.

        Such a link holds again once the process there answers, as in `give_up_broken`.
        """
        if process not in self._dealers and self._may_revive(process):
            self._connect(process)
            self._book()
            self._report_opened()

    def _may_revive(self, process: int) -> bool:
        return process not in self.gone or self._endpoint_of(process).startswith("tcp")

    def close_surplus(self) -> None:
        """Closes links that no coming round needs, while there are more than the budget allows."""
        for process in self.budget.surplus(self._dealers):
            if not self.has_surplus:
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
        if process not in self._dealers and process not in self.gone:
            self._connect(process)

    def _connect(self, process: int) -> None:
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
        monitor = self._monitors[process] = dealer.get_monitor_socket(_LINK_EVENTS)
        self._watched[monitor.fileno()] = process
        self._epoll.register(monitor, select.EPOLLIN)
        # Edge-triggered: a ZeroMQ descriptor becomes readable only after a read that found nothing.
        self._watch(process)
        dealer.connect(endpoint)
        self._greet(process, dealer)

    def _greet(self, process: int, dealer: "zmq.Socket[bytes]") -> None:
        with self._sending:
            _, header, body = self._greeting(process)
            self._send(process, dealer, header, body)
            if process not in self._dealers:
                self._opened.append(process)
            # Only now may other threads use the link: HELLO must be its first message.
            self._dealers[process] = dealer
        self._greeted[process] = time.monotonic()
        self.budget.use(process)

    def greet_again(self, process: int) -> None:
        """Resends HELLO, but not often: two processes may answer each other."""
        if self.holds(process) and time.monotonic() - self._greeted[process] > GREETING_INTERVAL:
            self._revive(process)

    def watch(self) -> None:
        """Processes the events of the monitors."""
        for fd, _ in self._epoll.poll(0):
            self._watch(self._watched[fd])

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
            grace = at_once if local else self._place.grace
            if process not in self.gone:
                # Only the first event sets the limit: failed retries must not extend it.
                self._suspects.setdefault(process, time.monotonic() + grace)
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
        self._greet(process, self._dealers[process])
        self._book()

    def renew(self, process: int) -> None:
        """Drops what is on the way to a process that was replaced by a new one, and connects to that."""
        if process in self._dealers:
            # A new socket: the queue of the old one may hold messages of rounds that the new process skips.
            self.end(process, linger=0)
        self.gone.discard(process)
        self.make(process)

    def end(self, process: int, linger: int) -> None:
        """Closes a link; what it still holds has `linger` milliseconds, at most `Timeouts.link_linger`."""
        monitor = self._monitors.pop(process)
        self._suspects.pop(process, None)
        self._epoll.unregister(monitor)
        del self._watched[monitor.fileno()]
        with self._sending:
            dealer = self._dealers.pop(process)
            self._unread.pop(process, None)
        self._greeted.pop(process, None)
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(min(linger, round(1000 * Timeouts.link_linger)))

    def close(self, linger_of: Callable[[int], int]) -> None:
        """Closes all links, also broken ones that may reconnect, each with its time as in `end`."""
        for process in list(self._dealers):
            self.end(process, linger_of(process))
        self._epoll.close()
