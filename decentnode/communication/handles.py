"""An exchange in flight, and what it is made of."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from decentnode.errors import PeerError, RunFailed
from decentnode.payload import Layout, Payload

if TYPE_CHECKING:
    from decentnode.communication.mailbox import Mailbox

Key = tuple[int, int, int]
"""(round, phase, part): which exchange a message belongs to, ordered."""
FIRST_ASK, LAST_ASK = 0.1, 1.0
"""Seconds after which a node asks for what is missing, and the longest pause until it asks again."""


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


class Handle:
    """One exchange in flight. `await` it in the node's loop or `wait` for it in any other thread."""

    def __init__(
        self, mailbox: "Mailbox", key: Key, seq: int, sources: Iterable[int], timeout: float
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
            pause = FIRST_ASK
            while not self.wait(pause):
                pause = self._ask(pause)
        elif not self.done:
            self._begin_to_wait()
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            if self._mailbox.ask is not None:
                loop.call_later(FIRST_ASK, self._keep_asking, loop, FIRST_ASK)
            self.call_when_done(lambda: loop.call_soon_threadsafe(_resolve, future))
            yield from future
        self._check()
        return self

    def finish_within(self, seconds: float) -> bool:
        """As awaiting it, for a thread that runs no event loop; false when it took longer."""
        pause, limit = FIRST_ASK, time.monotonic() + seconds
        while not self.done and not self.wait(max(0.0, min(pause, limit - time.monotonic()))):
            if time.monotonic() >= limit:
                return False
            pause = self._ask(pause)
        self._check()
        return True

    def wait(self, timeout: float) -> bool:
        """Blocks a thread that runs no event loop; false when it took longer than `timeout` seconds."""
        self._begin_to_wait()
        attend = self._mailbox.attend
        return self.sleep(timeout) if attend is None else attend(self, timeout)

    def sleep(self, timeout: float) -> bool:
        """Waits for other threads to take in what comes; false when it took longer."""
        finished = threading.Lock()
        finished.acquire()
        self.call_when_done(finished.release)
        return finished.acquire(timeout=timeout)

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

    def _begin_to_wait(self) -> None:
        if self.opened == math.inf:
            self.opened = time.monotonic()

    def _check(self) -> None:
        if self._mailbox.failure is not None:
            raise RunFailed(f"the transport broke: {self._mailbox.failure}") from self._mailbox.failure

    def _ask(self, pause: float) -> float:
        """Asks for what is missing; returns how long to wait until the next time."""
        if self._mailbox.ask is not None:
            self._mailbox.ask()
        return min(2 * pause, LAST_ASK)

    def _keep_asking(self, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        if not self.done:
            pause = self._ask(pause)
            loop.call_later(pause, self._keep_asking, loop, pause)

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
