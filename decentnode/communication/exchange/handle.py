"""An exchange in flight, and what it is made of."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from decentnode.communication.exchange.retransmission import RetransmissionTimer
from decentnode.core.payload import Layout, Payload
from decentnode.errors import PeerError, RunFailed

Key = tuple[int, int, int]
"""(round, phase, part): which exchange a message belongs to, ordered."""


class Message(Protocol):
    """One received message, still unread."""

    @property
    def seq(self) -> int:
        """The sender's number of the exchange it belongs to."""

    @property
    def is_void(self) -> bool:
        """Whether its memory may have been written again, because the sender gave this node up."""

    def read(self, layout: Layout) -> tuple[Payload | None, PeerError | None]:
        """The payload, or why it cannot be used."""


class ExchangeOwner(Protocol):
    """What an exchange needs of the mailbox that it belongs to."""

    @property
    def alone(self) -> bool:
        """Whether the node shares its event loop with no other."""

    @property
    def failure(self) -> BaseException | None:
        """What broke the transport."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Is held while an exchange changes."""

    @property
    def timer(self) -> RetransmissionTimer:
        """Says when to ask for what is missing."""

    @property
    def look(self) -> Callable[[], None] | None:
        """Has another thread do what is due while the node waits; None where nothing is ever lost."""

    @property
    def attend(self) -> Callable[["ExchangeHandle", float], bool] | None:
        """Waits for an exchange so many seconds and takes in what comes; None: other threads take it in."""

    def release(self, handle: "ExchangeHandle") -> None:
        """Acknowledges every message of a finished exchange."""

    def refuse(self, reason: str) -> None:
        """Counts a message that cannot be used."""


class ExchangeHandle:
    """One exchange in flight. `await` it in the node's loop or `wait` for it in any other thread."""

    def __init__(
        self, mailbox: ExchangeOwner, key: Key, seq: int, sources: Iterable[int], timeout: float
    ) -> None:
        self.key = key
        self.seq = seq
        self.arrived: dict[int, Message] = {}
        self.missing: dict[int, PeerError] = {}
        self.awaited = set(sources)
        self.timeout = timeout
        self.opened = time.monotonic()
        self.done = False
        self._mailbox = mailbox
        self._wake: list[Callable[[], Any]] = []

    def __await__(self) -> Any:
        if not self.done and self._mailbox.alone:
            self.finish_within(math.inf)
        elif not self.done:
            pause, loop = self._begin_to_wait(), asyncio.get_running_loop()
            future = loop.create_future()
            timer = loop.call_later(pause, self._mailbox.look) if self._mailbox.look is not None else None
            self.call_when_done(lambda: loop.call_soon_threadsafe(_resolve, future))
            yield from future
            if timer is not None:
                timer.cancel()
            self._mailbox.timer.stop()
        self._check()
        return self

    def finish_within(self, seconds: float) -> bool:
        """As awaiting it, for a thread that runs no event loop; false when it took longer."""
        if not self.done:
            pause, limit = self._begin_to_wait(), time.monotonic() + seconds
            if not self.wait(min(pause, seconds)) and self._mailbox.look is not None:
                self._mailbox.look()  # from here on another thread knows what is due
            while not self.done and (left := limit - time.monotonic()) > 0:
                self.wait(left)
            self._mailbox.timer.stop()
        self._check()
        return self.done

    def wait(self, timeout: float) -> bool:
        """Blocks a thread that runs no event loop; false when it took longer than `timeout` seconds."""
        if self.opened == math.inf:
            self.opened = time.monotonic()
        attend = self._mailbox.attend
        return self.sleep(timeout) if attend is None else attend(self, timeout)

    def sleep(self, timeout: float) -> bool:
        """Waits for other threads to take in what comes; false when it took longer."""
        finished = threading.Lock()
        finished.acquire()
        self.call_when_done(finished.release)
        return finished.acquire(timeout=-1 if timeout == math.inf else timeout)

    def hold(self) -> None:
        """Has no deadline run until somebody waits: the node does something else in the meantime."""
        self.opened = math.inf

    def is_sound(self) -> bool:
        """Whether everything that arrived can still be read."""
        return not any(message.is_void for message in self.arrived.values())

    def release(self) -> None:
        """Tells the senders of this exchange that their memory is free again."""
        self._mailbox.release(self)

    def refuse(self, reason: str) -> None:
        """Counts one of its messages that cannot be used."""
        self._mailbox.refuse(reason)

    def finish(self) -> None:
        """Wakes whoever waits; the mailbox calls it with its lock held."""
        self.done = True
        for wake in self._wake:
            wake()

    def _begin_to_wait(self) -> float:
        """Returns for how many seconds nothing is to be done about it."""
        now = time.monotonic()
        self.opened = min(self.opened, now)
        return self._mailbox.timer.start(self.timeout, now)

    def _check(self) -> None:
        if self._mailbox.failure is not None:
            raise RunFailed(f"the transport broke: {self._mailbox.failure}") from self._mailbox.failure

    def call_when_done(self, wake: Callable[[], Any]) -> None:
        """Has `wake` called in the thread that finishes the exchange; at once where that was done."""
        with self._mailbox.lock:
            if not self.done:
                self._wake.append(wake)
                return
        wake()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
