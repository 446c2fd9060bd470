"""An exchange in flight, and the protocols that it needs.

Threads: the node's thread starts an exchange and waits for it. The thread that brings what is missing
finishes it, with the lock of the mailbox held, and wakes the node. A wait that lasts hands its timer to the
socket thread, which then requests what is missing.
"""

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from decentnode.core.clock import Clock
from decentnode.core.payload import Layout, Payload, PayloadError
from decentnode.core.timeouts import Timeouts
from decentnode.errors import PeerError, PeerLost, ProtocolError, RunFailed

Key = tuple[int, int, int]
"""(round, phase, part): the exchange that a message belongs to; keys are ordered."""
Read = tuple[Payload | None, PeerError | None]
"""A payload, or why it cannot be used."""
FORGETTING = 0.8
"""Factor on the usual wait after a shorter exchange."""
MARGIN = 1.5
"""Multiple of the usual wait before the first request: most waits are not much longer than usual."""


@dataclass(slots=True, eq=False)
class Message(ABC):
    """One received message that has not been read."""

    source: int
    seq: int
    """The sender's number of the exchange it belongs to."""
    layout: int
    """The hash of the sender's layout."""
    received: float = field(default=0.0, init=False)
    """When it reached the mailbox, on the clock of the node."""

    @property
    def is_invalidated(self) -> bool:
        """Whether its memory is invalidated: the sender timed out on this node and may have written there."""
        return False

    def read(self, layout: Layout) -> Read:
        """The payload, or the reason why it cannot be used."""
        # Also checked after the mix (`release`): the sender may invalidate the memory while it is read.
        if self.is_invalidated:
            return None, PeerLost(self.source, "timed out on this node while it was suspended")
        if self.layout != layout.hash:
            return None, ProtocolError(self.source, "sent another payload layout", "layout")
        try:
            return self._parse(layout), None
        except PayloadError as error:
            return None, ProtocolError(self.source, str(error))

    @abstractmethod
    def _parse(self, layout: Layout) -> Payload:
        """The payload; raises PayloadError."""


class Transport:
    """What a mailbox and its exchanges ask of the endpoint that carries them.

    The defaults fit a transport that loses no message.
    """

    times_waits = True
    """Whether a long wait is shown to the launcher, and requests what may be lost."""

    def acknowledge(self, source: int, message: Message) -> None:
        """Tells a source that the memory of its message is free again."""

    def resend(self, peer: int, key: Key) -> bool:
        """Resends a payload to a peer; False when nothing was sent to it in that exchange."""
        return False

    def request_resend(self, peer: int, key: Key) -> None:
        """Requests a peer's lost payload of an exchange."""

    def check_soon(self) -> None:
        """Makes another thread do what is due while the node waits."""

    def waits_for(self, peers: Collection[int]) -> None:
        """Shows the launcher for whom the node waits."""

    def attend(self, handle: "ExchangeHandle", timeout: float) -> bool:
        """Waits for an exchange; returns False after `timeout` seconds."""
        return handle.sleep(timeout)


class Waiter(Protocol):
    """Receives in the thread that waits for an exchange."""

    def attend(self, handle: "ExchangeHandle", timeout: float) -> bool:
        """Waits for an exchange; returns False after `timeout` seconds."""


class UsualWait:
    """After which wait a node requests what may have been lost: a retransmission timer (RFC 6298).

    What is missing is mostly only late. So the first request comes somewhat after the longest recent wait,
    and each further one after twice the pause. This keeps requests from loading a slow machine. As in Karn
    and Partridge (1987) only an unambiguous answer adjusts the estimate: a peer that reports that it is
    behind, or a requested payload that arrives twice, because a slow link had not lost it (RFC 3708).
    """

    def __init__(self) -> None:
        self.seconds = Timeouts.first_request
        self.was_needless = False
        """Whether a request in this exchange has turned out to be needless."""
        self._last = 0.0
        """Seconds that the last exchange took."""

    def learn(self, waited: float) -> None:
        """Adjusts it after an exchange that took `waited` seconds."""
        # A wait ended by a resend proves nothing about the usual time, so it may only lower the estimate.
        if self.was_needless:
            self.seconds = max(self.seconds, MARGIN * waited)
        else:
            self.seconds = max(
                Timeouts.first_request, FORGETTING * self.seconds, min(MARGIN * waited, self.seconds)
            )
        self.was_needless, self._last = False, waited

    def note_repeated(self) -> None:
        """Adjusts it when a requested payload has arrived a second time, mostly after its exchange."""
        self.was_needless = True
        self.seconds = max(self.seconds, MARGIN * self._last)


@dataclass(eq=False)
class ExchangeOwner:
    """What an exchange needs from its mailbox."""

    transport: Transport
    alone: bool = False
    """Whether no other node shares the event loop, so `await` may block the thread, which is faster."""
    clock: Clock = field(default_factory=Clock)
    """The clock of the node."""
    failure: BaseException | None = None
    """The error that broke the transport."""
    refused: Counter[str] = field(default_factory=Counter)
    """Messages that cannot be used, by reason."""
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    """Held while an exchange changes."""
    usual: UsualWait = field(default_factory=UsualWait)
    """After which wait a node requests what is missing."""

    def show_awaited(self, handle: "ExchangeHandle") -> None:
        """Tells the transport for whom the node waits in this exchange."""
        with self.lock:
            self.transport.waits_for(handle.awaited | handle.unreleased)

    def refuse(self, reason: str) -> None:
        """Counts a message that cannot be used."""
        with self.lock:
            self.refused[reason] += 1


class ExchangeHandle:
    """One exchange in flight: `await` it in the node's event loop, or call `finish_within` elsewhere.

    It ends because peers that are silent time out: `Peer.times_out_at` says when, `FailureDetector.check` in
    the socket thread applies it, and `Timeouts.exchange_deadline` is the deadline of a node's rounds. `await`
    has no limit of its own. With `inproc` nobody times out, and nothing is requested.
    """

    def __init__(
        self, owner: ExchangeOwner, key: Key, seq: int, sources: Iterable[int], deadline: float
    ) -> None:
        """`deadline`: how long a peer may be silent, in seconds."""
        self.key = key
        self.seq = seq
        self.messages: dict[int, Message] = {}
        self.missing: dict[int, PeerError] = {}
        self.awaited = set(sources)
        self.unreleased: set[int] = set()
        """Readers that still use an earlier payload of this part: the exchange waits for them, too."""
        self.targets: frozenset[int] = frozenset()
        """The ranks that the payload is sent to, without peers that are lost or leaving."""
        self.deadline = deadline
        self.opened = math.inf
        """When a thread first waited for it: the deadline does not run while the node computes."""
        self.due = math.inf
        """When to request what is missing; only while a thread waits."""
        self.is_long = False
        """Whether the wait has exceeded its first pause: then another thread has the timer."""
        self.done = False
        self._pause = 0.0
        self._owner = owner
        self._wake: list[Callable[[], Any]] = []

    def __repr__(self) -> str:
        # Copies, because other threads may change the sets.
        awaited, unreleased = sorted(tuple(self.awaited)), sorted(tuple(self.unreleased))
        waits = "done" if self.done else f"awaits payloads of {awaited}, acknowledgements of {unreleased}"
        counts = f"{len(self.messages)} arrived, {len(self.missing)} missing"
        return f"<ExchangeHandle {self.key}: {waits}; {counts}>"

    def __await__(self) -> Any:
        if not self.done and not self._owner.alone:
            pause, loop = self.start_waiting(), asyncio.get_running_loop()
            future, thread = loop.create_future(), threading.get_ident()
            timer = loop.call_later(pause, self._hand_over) if self._owner.transport.times_waits else None

            def wake() -> None:
                if threading.get_ident() == thread:
                    _resolve(future)
                else:
                    loop.call_soon_threadsafe(_resolve, future)

            self.call_when_done(wake)
            yield from future
            if timer is not None:
                timer.cancel()
        self.finish_within(math.inf)
        return self

    def finish_within(self, seconds: float) -> bool:
        """Like `await`, for a thread without an event loop; returns False after `seconds` seconds.

        Raises RunFailed if the transport broke.
        """
        if not self.done:
            now = self._owner.clock.now
            pause, limit = self.start_waiting(), now() + seconds
            attend = self._owner.transport.attend
            if not attend(self, min(pause, seconds)):
                self._hand_over()
            while not self.done and (left := limit - now()) > 0:
                attend(self, left)
            if not self.done:
                # A node that computes requests nothing.
                self.due, self.is_long = math.inf, False
        if (failure := self._owner.failure) is not None:
            if isinstance(failure, RunFailed):
                raise failure
            raise RunFailed(f"the transport broke: {failure}") from failure
        return self.done

    def sleep(self, timeout: float) -> bool:
        """Waits while other threads receive; returns False after `timeout` seconds."""
        # A bare lock costs less than a threading.Event, which makes a new lock for each wait.
        finished = threading.Lock()
        finished.acquire()
        self.call_when_done(finished.release)
        return finished.acquire(timeout=-1 if timeout == math.inf else timeout)

    def release(self) -> bool:
        """Acknowledges the messages of this exchange, once: their senders may write that memory again.

        Returns whether none was invalidated while it was read.
        """
        arrived, self.messages = self.messages, {}
        is_valid = True
        for source, message in arrived.items():
            # Before the acknowledgement, after which the sender writes.
            is_valid = is_valid and not message.is_invalidated
            self._owner.transport.acknowledge(source, message)
        return is_valid

    def refuse(self, reason: str) -> None:
        """Counts one of its messages as unusable."""
        self._owner.refuse(reason)

    def finish(self) -> None:
        """Wakes the waiting threads; the mailbox calls it with its lock held."""
        self.done = True
        for wake in self._wake:
            wake()

    def start_waiting(self) -> float:
        """Starts deadline and timer; returns the seconds until the first request."""
        now = self._owner.clock.now()
        self.opened = min(self.opened, now)
        self._pause = min(self._owner.usual.seconds, Timeouts.first_pause(self.deadline))
        self.due, self.is_long = now + self._pause, False
        # Where waits are usually short, only one that lasts is worth the time.
        if self._pause > Timeouts.first_request:
            self._owner.show_awaited(self)
        return self._pause

    def lengthen_pause(self, now: float) -> None:
        """Restarts the timer with a longer pause after a request, if a thread waits."""
        if self.due == math.inf:
            return
        self._pause = max(self._pause, min(2 * self._pause, Timeouts.longest_pause(self.deadline)))
        self.due, self.is_long = now + self._pause, True

    def _hand_over(self) -> None:
        """Shows the wait, which is long now; from here on another thread has the timer."""
        self.is_long = True
        self._owner.show_awaited(self)
        self._owner.transport.check_soon()

    def call_when_done(self, wake: Callable[[], Any]) -> None:
        """Calls `wake` in the thread that finishes the exchange, or at once if it is done."""
        with self._owner.lock:
            if not self.done:
                self._wake.append(wake)
                return
        wake()


def _resolve(future: "asyncio.Future[None]") -> None:
    # The node may have been cancelled meanwhile.
    if not future.done():
        future.set_result(None)
