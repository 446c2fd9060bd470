"""The outgoing links of a host process: the doorbell of a process that shares memory, else a DEALER.

A message that fits goes into a pipe of the other process, in one write. A larger message, or one that a full
pipe does not take, needs a DEALER, too.

Threads: the socket thread opens and closes links, and judges broken ones. Any thread sends, behind a lock,
and opens a pipe by its first message.
"""

import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

import zmq

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.shared_memory.pipes import PeerPipes
from decentnode.communication.zeromq.dealers import Dealers
from decentnode.communication.zeromq.link_budget import LinkBudget
from decentnode.communication.zeromq.stripes import Striping
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerLost, PeerUnmet

HELLO_INTERVAL = 0.5
"""Seconds between two HELLOs to one process."""
PIPE_INTERVAL = 0.02
"""Seconds between two attempts to open the pipe of a process that counts as broken."""
MOST_QUEUED_BODIES = 4
"""Bodies queued for a peer, per edge and part: two rounds, one resend, and one model."""
NEVER = float("inf")


class LinkOwner(Protocol):
    """What links report, in the socket thread; `book_unsent` and `note_link` in any that sends."""

    def book_unsent(self, header: bytes) -> None:
        """Counts a message that a peer did not read in time."""

    def note_link(self, process: int) -> None:
        """Records that the link to a process is open, or holds again."""

    def has_met(self, process: int) -> bool:
        """Whether the process has sent HELLO."""

    def may_close(self, process: int) -> bool:
        """Whether nothing that this process or that one waits for needs their link."""

    def note_closed(self, process: int) -> None:
        """Records that the link to a live process was closed."""


class PeerLinks:
    """Links are opened and closed by the socket thread; any thread may send, behind a lock."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        directory: ProcessDirectory,
        endpoint_of: Callable[[int], str],
        hello_messages: Callable[[int, bool], list[wire.Outgoing]],
        owner: "LinkOwner",
        pipe_of: Callable[[int, bool], str | None] = lambda process, is_doorbell: None,
        striping: Striping | None = None,
    ) -> None:
        """`endpoint_of`: address of a process; `hello_messages`: the first messages for it; `pipe_of`: its
        pipe, or its doorbell, where it has them; `striping`: None where each link has one connection.
        """
        self.lost: set[int] = set()
        self._made: set[int] = set()
        """Processes to which a link over ZeroMQ was ever made."""
        self.next_verdict = NEVER
        """When a broken link counts as lost, or is tried again, on the clock of `time.monotonic`."""
        self.parts = 1
        """The largest number of parts of a local node's vector."""
        self._directory = directory
        self._endpoint_of = endpoint_of
        self._hello_messages = hello_messages
        self._owner = owner
        self._sending = threading.RLock()
        self.budget = LinkBudget()
        self._unsent: list[bytes] = []
        self._opened: list[int] = []
        """Links that were opened and not reported yet."""
        self._epoll = select.epoll()
        self._pipes = PeerPipes(pipe_of, hello_messages, self._record_hello, self._epoll)
        self._dealers = Dealers(context, directory, endpoint_of, self._epoll, self._sending, striping)
        self._suspects: dict[int, float] = {}
        self._hello_sent: dict[int, float] = {}

    @property
    def processes(self) -> list[int]:
        """Processes with a working link; for any thread."""
        return [process for process in self._open() if process not in self.lost]

    def _open(self) -> list[int]:
        return [*dict.fromkeys((*self._pipes.processes, *self._dealers.processes))]

    @property
    def has_surplus(self) -> bool:
        """Whether there are many more links than the coming rounds need; for any thread."""
        # A quarter more than the bound: then one wake-up of the socket thread closes several.
        return 4 * len(self._open()) > 5 * self.budget.most

    def _is_open(self, process: int) -> bool:
        return process in self._pipes or process in self._dealers

    def holds(self, process: int) -> bool:
        """Whether the link to a process works; for any thread, as it only reads containers."""
        return self._is_open(process) and process not in self.lost

    def fileno(self) -> int:
        """Readable when the state of some link has changed: time for `watch`."""
        return self._epoll.fileno()

    # Sending. The lock orders messages to one process, keeps HELLO first, and lets a ZeroMQ socket change
    # threads. A thread that holds it takes no other lock: what was opened or not sent is collected, and
    # reported when the lock is free (`_report`), because a report takes the lock of a mailbox, with which
    # other threads send.

    def send(self, messages: Collection[wire.Outgoing], opens: bool = True) -> list[wire.Outgoing]:
        """Sends (process, header, body) triples, and skips lost processes.

        Any thread opens doorbells. Only the socket thread `opens` other links; for any other thread this
        returns the messages that need one.
        """
        left: list[wire.Outgoing] = []
        with self._sending:
            for message in messages:
                process, header, body = message
                is_lost = process in self.lost
                if self._pipes.write(process, header, body, opens=not is_lost) or is_lost:
                    continue
                if opens or process in self._dealers:
                    self._make(process)
                    self._send(process, header, body)
                else:
                    left.append(message)
        if (has_opened := bool(self._opened)) or self._unsent:
            self._report()
        if has_opened and opens:
            self.close_surplus()
        return left

    def _send(self, process: int, header: bytes, body: wire.Body) -> None:
        if self._pipes.write(process, header, body, opens=process not in self.lost):
            return
        edges = len(self._directory.process.ranks) * len(self._directory.processes[process].ranks)
        if not self._dealers.send(process, header, body, MOST_QUEUED_BODIES * self.parts * edges):
            self._unsent.append(header)

    def connections(self, process: int) -> int:
        """How many connections share the large bodies for a process."""
        return self._dealers.connections(process)

    def flushed_at(self, process: int) -> float:
        """When all large bodies for a process had left; infinity: some are on the way. For any thread."""
        with self._sending:
            return self._dealers.flushed_at(process)

    def _report(self) -> None:
        """Reports unsent messages and opened links, without the lock."""
        while self._unsent or self._opened:
            with self._sending:
                unsent, self._unsent = self._unsent, []
                opened, self._opened = self._opened, []
            for header in unsent:
                self._owner.book_unsent(header)
            for process in opened:
                self._owner.note_link(process)

    def make(self, process: int) -> None:
        """Connects to a process and sends HELLO, unless that was done or it is lost."""
        self._make(process)
        self._report()
        self.close_surplus()

    def need(self, process: int) -> None:
        """Opens the link to a process that a coming round needs; to a lost one only over TCP.

        Such a link holds again once the process there answers, as in `lose_broken`.
        """
        may_revive = process not in self.lost or self._endpoint_of(process).startswith("tcp")
        if not self._is_open(process) and may_revive:
            self._connect(process)
            self._report()

    def close_surplus(self) -> None:
        """Closes links that no coming round needs, while there are more than the budget allows."""
        for process in self.budget.surplus(self._open()) if self.has_surplus else ():
            if len(self._open()) <= self.budget.most:
                return
            # What libzmq still holds for a peer forbids closing, as what the peer has not acknowledged does.
            if self._dealers.is_flushed(process) and self._owner.may_close(process):
                # To a process that does not answer nothing can be delivered.
                answers = process not in self.lost and process not in self._suspects
                self.end(process, linger=round(1000 * Timeouts.link_linger) if answers else 0)
                self.budget.forget(process)
                self._owner.note_closed(process)

    def _make(self, process: int) -> None:
        if not self._is_open(process) and process not in self.lost:
            self._connect(process)

    def _connect(self, process: int) -> None:
        with self._sending:
            if not self._pipes.reaches(process):
                self._dealers.open(process)
                self._send_hello(process)
            elif self._pipes.connect(process):
                return
            elif self._pipes.is_full(process):
                # It has a reader, so the process lives: the hellos of many nodes do not fit in at once.
                self._suspects[process] = NEVER
                self._set_next_verdict()
            else:
                # All processes listened before the start: this one died, or is being restarted.
                self._suspect(process, Timeouts.unmade_link)

    def _send_hello(self, process: int) -> None:
        # Under one lock with the opening: HELLO must be the first message.
        with self._sending:
            for _, header, body in self._hello_messages(process, False):
                self._send(process, header, body)
            self._record_hello(process)

    def _record_hello(self, process: int) -> None:
        if process not in self._hello_sent:
            self._opened.append(process)
        self._hello_sent[process] = time.monotonic()
        self.budget.use(process)

    def resend_hello(self, process: int) -> None:
        """Resends HELLO, but not often: two processes may answer each other."""
        if self.holds(process) and time.monotonic() - self._hello_sent.get(process, 0.0) > HELLO_INTERVAL:
            self._revive(process)

    def watch(self) -> None:
        """Processes the events of monitors, and of pipes that have lost their reader."""
        for fd, _ in self._epoll.poll(0):
            if (reader := self._pipes.reader_of(fd)) is not None:
                self._suspect(reader, Timeouts.local_link)
            elif (events := self._dealers.events_of(fd)) is not None:
                self._judge(*events)

    def _suspect(self, process: int, grace: float) -> None:
        """Gives a process whose link broke some time; later breaks do not extend it."""
        if process not in self.lost:
            self._suspects[process] = min(self._suspects.get(process, NEVER), time.monotonic() + grace)
        self._set_next_verdict()

    def _set_next_verdict(self) -> None:
        verdicts = [*self._suspects.values()]
        if any(map(self._pipes.has_failed, self._suspects)):
            verdicts.append(time.monotonic() + PIPE_INTERVAL)
        self.next_verdict = min(verdicts, default=NEVER)

    def _judge(self, process: int, events: list[int]) -> None:
        local = self._directory.co_located(process)
        for event in events:
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._made.add(process)
                with self._sending:
                    self._dealers.widen(process)
                # HELLO may have been lost with the connection.
                if self._suspects.pop(process, None) is not None or process in self.lost:
                    self._revive(process)
                    self._owner.note_link(process)
                continue
            if event == zmq.EVENT_DISCONNECTED and not self._owner.has_met(process):
                # It may not have got to its first message yet. If it died, the next attempt is refused.
                continue
            # All processes listened before the start: a refused connection means that the process died.
            at_once = Timeouts.local_link if event == zmq.EVENT_DISCONNECTED else Timeouts.unmade_link
            self._suspect(process, at_once if local else self._directory.grace)
        self._set_next_verdict()

    def lose_broken(self, now: float) -> list[int]:
        """Marks processes whose links were broken for too long as lost, and returns them.

        A link over TCP is kept: if it reconnects, the process there receives HELLO again.
        """
        if now - self.next_verdict > Timeouts.standstill:
            # This process was suspended: links may be whole again without its having seen it.
            self._suspects = {p: verdict + now - self.next_verdict for p, verdict in self._suspects.items()}
        # Its process may only have begun to listen a little later.
        for process in filter(self._pipes.has_failed, tuple(self._suspects)):
            self._revive(process)
        broken = [process for process, verdict in self._suspects.items() if verdict <= now]
        for process in broken:
            self.lost.add(process)
            del self._suspects[process]
            if not self._endpoint_of(process).startswith("tcp"):
                self.end(process, linger=0)
        self._set_next_verdict()
        return broken

    def lose(self, process: int) -> None:
        """Marks a process as lost that a link holds to; the first message from there opens a new one."""
        self.lost.add(process)
        self.end(process, linger=0)

    def error(self, process: int, rank: int) -> PeerLost:
        """Returns why a rank of a lost process is lost: its link has broken, or there never was one."""
        if not self._directory.co_located(process):
            where = self._endpoint_of(process).removeprefix("tcp://")
            if process not in self._made:
                return PeerUnmet(rank, f"never connected to {where}")
            if not self._owner.has_met(process):
                return PeerUnmet(rank, f"connected to {where}, but nothing ever arrived from there")
        return PeerLost(rank, "connection lost")

    def _revive(self, process: int) -> None:
        self.lost.discard(process)
        if self._pipes.has_failed(process):
            # Another attempt, which does not extend the time until the process is lost.
            self._connect(process)
            if not self._pipes.has_failed(process):
                self._suspects.pop(process, None)
        else:
            self._send_hello(process)
        self._report()

    def reconnect(self, process: int) -> None:
        """Drops what is on the way to a process that was replaced by a new one, and connects to that."""
        if self._is_open(process):
            # A new socket: the queue of the old one may hold messages of rounds that the new process skips.
            self.end(process, linger=0)
        self.lost.discard(process)
        self.make(process)

    def end(self, process: int, linger: int) -> None:
        """Closes a link; what it still holds has `linger` milliseconds, at most `Timeouts.link_linger`."""
        with self._sending:
            self._suspects.pop(process, None)
            self._hello_sent.pop(process, None)
            self._pipes.end(process)
            self._dealers.end(process, min(linger, round(1000 * Timeouts.link_linger)))

    def close(self, linger_of: Callable[[int], int]) -> None:
        """Closes all links, also broken ones that may reconnect, each with its time as in `end`."""
        for process in self._open():
            self.end(process, linger_of(process))
        self._epoll.close()
