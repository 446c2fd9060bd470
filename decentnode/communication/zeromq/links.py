"""The outgoing links of a host process: one DEALER per peer process, and what its monitor says of it."""

import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable

import zmq
from zmq.utils.monitor import recv_monitor_message

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.zmq_poll import descriptor, has_input

LOCAL_GRACE = 0.1
"""Seconds between a link's end on one machine and the verdict: its last messages may still be on the way."""
RETRY_GRACE = 1.0
"""The same for a link that never came about: time for a few more attempts."""
HEARTBEAT, HEARTBEAT_TIMEOUT = 2.0, 6.0
"""Seconds between heartbeats of a link to another machine, and without an answer until it is broken."""
CONNECT_TIMEOUT = 6.0
"""Seconds after which a connection to another machine that does not come about counts as refused."""
LEAST_PAUSE = 0.5
"""Seconds between two greetings of one process."""
LONGEST_LINGER = 5000
"""Milliseconds for what a closed link still holds; a peer that takes messages in takes them at once."""
MOST_UNREAD = 4
"""Bodies that may wait for a peer, by edge and part: of two rounds, one once more, and a whole model."""
NEVER = float("inf")
_MORE_FOLLOWS = zmq.SNDMORE | zmq.NOBLOCK
_LINK_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class PeerLinks:
    """Made and ended by the thread that serves the sockets; sending is for any thread, behind a lock."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        place: ProcessDirectory,
        endpoint_of: Callable[[int], str],
        greeting: Callable[[int], wire.Outgoing],
        book_unsent: Callable[[bytes], None],
    ) -> None:
        """`endpoint_of` says where a process is reached; `greeting` gives the first message for it;
        `book_unsent` gets the header of each message that a peer did not read in time."""
        self.gone: set[int] = set()
        self.next_verdict = NEVER
        """When a broken link is to be judged, as `time.monotonic` counts."""
        self.parts = 1
        """In how many parts a node's vector travels at most."""
        self._context = context
        self._place = place
        self._endpoint_of = endpoint_of
        self._greeting = greeting
        self._book_unsent = book_unsent
        self._sending = threading.RLock()
        self._unsent: list[bytes] = []
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._monitors: dict[int, zmq.Socket[bytes]] = {}
        self._watched: dict[int, int] = {}
        self._suspects: dict[int, float] = {}
        self._greeted: dict[int, float] = {}
        self._unread: dict[int, deque[weakref.ref[memoryview]]] = {}
        """By process the large bodies that libzmq may hold for it, oldest first; what it lets go of dies."""
        self._epoll = select.epoll()

    @property
    def processes(self) -> list[int]:
        """Whom there is a link to that holds."""
        return [process for process in self._dealers if process not in self.gone]

    @property
    def ranks(self) -> set[int]:
        """The nodes of those."""
        return {rank for process in self.processes for rank in self._place.processes[process].ranks}

    @property
    def every(self) -> list[int]:
        """Whom there is a link to, broken ones that may come back included."""
        return list(self._dealers)

    def holds(self, process: int) -> bool:
        """Whether there is a link to a process that holds; for any thread, as it looks at nothing else."""
        return process in self._dealers and process not in self.gone

    def fileno(self) -> int:
        """Readable when some link's state has changed: time for `watch`."""
        return self._epoll.fileno()

    def send_over_existing(self, messages: list[wire.Outgoing]) -> bool:
        """Sends if no link has to be made for it; else sends nothing and returns False."""
        with self._sending:
            if not all(process in self._dealers or process in self.gone for process, _, _ in messages):
                return False
            self._send_all(messages)
        self._book()
        return True

    def send(self, messages: Iterable[wire.Outgoing]) -> None:
        """Sends (process, header, body) triples, making links as needed; who is gone is skipped."""
        with self._sending:
            self._send_all(messages)
        self._book()

    def _send_all(self, messages: Iterable[wire.Outgoing]) -> None:
        for process, header, body in messages:
            self._make(process)
            if self.holds(process):
                self._send(process, self._dealers[process], header, body)

    def _send(self, process: int, dealer: "zmq.Socket[bytes]", header: bytes, body: wire.Body) -> None:
        # A view that nobody but libzmq keeps; its trackers cost 0.1 ms of a processor each.
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
        """Whether a process reads what it is sent: else models of many rounds would wait here for it."""
        unread = self._unread.get(process, deque())
        while unread and unread[0]() is None:
            unread.popleft()
        edges = len(self._place.process.ranks) * len(self._place.processes[process].ranks)
        return len(unread) < MOST_UNREAD * self.parts * edges

    def _book(self) -> None:
        """Without the lock, because booking takes that of a mailbox, which others hold while they send."""
        while self._unsent:
            with self._sending:
                unsent, self._unsent = self._unsent, []
            for header in unsent:
                self._book_unsent(header)

    def make(self, process: int) -> None:
        """Connects to a process and greets it, unless that was done or it is gone."""
        self._make(process)
        self._book()

    def _make(self, process: int) -> None:
        if process in self._dealers or process in self.gone:
            return
        endpoint = self._endpoint_of(process)
        dealer = self._context.socket(zmq.DEALER)
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.IPV6, 1)
        dealer.set(zmq.RECONNECT_IVL_MAX, 5000)
        if not self._place.co_located(process):
            # On one machine the kernel ends the links of who dies; who only stands still has the deadline.
            dealer.set(zmq.HEARTBEAT_IVL, round(1000 * HEARTBEAT))
            dealer.set(zmq.HEARTBEAT_TIMEOUT, round(1000 * HEARTBEAT_TIMEOUT))
            # Where packets are dropped the kernel tries for two minutes, and nobody is told.
            dealer.set(zmq.CONNECT_TIMEOUT, round(1000 * CONNECT_TIMEOUT))
        if endpoint.startswith("tcp") and self._place.credentials is not None:
            self._place.credentials.guard_client(dealer, self._place.processes[process].machine)
        monitor = self._monitors[process] = dealer.get_monitor_socket(_LINK_EVENTS)
        self._watched[descriptor(monitor)] = process
        self._epoll.register(descriptor(monitor), select.EPOLLIN)
        # A ZeroMQ descriptor becomes readable only for what comes after a read that found nothing.
        self._watch(process)
        dealer.connect(endpoint)
        self._greet(process, dealer)

    def _greet(self, process: int, dealer: "zmq.Socket[bytes]") -> None:
        with self._sending:
            _, header, body = self._greeting(process)
            self._send(process, dealer, header, body)
            self._dealers[process] = dealer
        self._greeted[process] = time.monotonic()

    def greet_again(self, process: int) -> None:
        """Greets a process that may not have heard it, but seldom: two may answer each other."""
        if self.holds(process) and time.monotonic() - self._greeted[process] > LEAST_PAUSE:
            self._revive(process)

    def watch(self) -> None:
        """Takes in what the monitors say."""
        for fd, _ in self._epoll.poll(0):
            self._watch(self._watched[fd])

    def _watch(self, process: int) -> None:
        monitor = self._monitors[process]
        local = self._place.co_located(process)
        while has_input(monitor):
            event = recv_monitor_message(monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                # The greeting may have been lost with the connection.
                if self._suspects.pop(process, None) is not None or process in self.gone:
                    self._revive(process)
                continue
            # Everybody listened before the start: who can no longer be connected to has died.
            at_once = LOCAL_GRACE if event == zmq.EVENT_DISCONNECTED else RETRY_GRACE
            grace = at_once if local else self._place.grace
            if process not in self.gone:
                self._suspects.setdefault(process, time.monotonic() + grace)
        self.next_verdict = min(self._suspects.values(), default=NEVER)

    def give_up_broken(self, now: float) -> list[int]:
        """Counts those as gone whose links have been broken for too long, and returns them.

        A link over TCP is kept: should it hold again, whoever is there is greeted anew.
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
        """Forgets what was under way to a process, because another one has taken its place."""
        if process in self._dealers:
            self.end(process, linger=0)
        self.gone.discard(process)
        self.make(process)

    def end(self, process: int, linger: int) -> None:
        """Closes a link; what it still holds is given `linger` milliseconds, within reason."""
        monitor = self._monitors.pop(process)
        self._suspects.pop(process, None)
        self._epoll.unregister(descriptor(monitor))
        del self._watched[descriptor(monitor)]
        with self._sending:
            dealer = self._dealers.pop(process)
            self._unread.pop(process, None)
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(min(linger, LONGEST_LINGER))

    def close(self) -> None:
        """Frees the watching; all links have been ended."""
        self._epoll.close()
