"""Single messages that have arrived for one node: those of asynchronous schemes, outside of any exchange.

Any thread may put a message; the node takes all of them in the order of arrival. A sender waits for nobody
here. So the queue is bounded: the oldest message of a sender makes room for its newest one, and is counted.

Threads: any thread puts, the node's thread takes, behind the lock of the mailbox.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from decentnode.communication.exchange.handle import ExchangeOwner, Message
from decentnode.core.clock import Clock
from decentnode.errors import RunFailed

MOST_QUEUED = 4
"""Messages of one sender that wait, as many as payloads of later exchanges (mailbox.MOST_EARLY)."""


class Queued(NamedTuple):
    """A message that has not been read."""

    tag: int
    """What it is for the scheme, which has one layout for each tag."""
    message: Message
    """`message.seq` is the number that the scheme gave it."""


class MessageQueue:
    """The single messages of one node."""

    def __init__(self, owner: ExchangeOwner) -> None:
        self.most = MOST_QUEUED
        """Messages of one sender that may wait."""
        self._owner = owner
        self._queued: list[Queued] = []
        self._waiting: Counter[int] = Counter()
        self._wake: Callable[[], object] | None = None
        self._is_woken = False
        """Whether `wake` was called since the node's last wait ended."""

    def put(self, tag: int, message: Message) -> None:
        """Adds a message, and wakes the node."""
        source = message.source
        message.received = self._owner.clock.now()
        with self._owner.lock:
            if self._waiting[source] >= self.most:
                # The newest is kept: an older model is worth less, and a lost request is repeated.
                index = next(i for i, queued in enumerate(self._queued) if queued.message.source == source)
                del self._queued[index]
                self._waiting[source] -= 1
                self._owner.refuse("queue full")
            self._queued.append(Queued(tag, message))
            self._waiting[source] += 1
            wake = self._wake
        if wake is not None:
            wake()

    def wake(self) -> None:
        """Ends the node's wait, or its next one: what has happened is no message, such as a loss."""
        with self._owner.lock:
            self._is_woken, wake = True, self._wake
        if wake is not None:
            wake()

    def take(self) -> list[Queued]:
        """All messages in the order of their arrival; raises RunFailed when the transport is broken."""
        if isinstance(self._owner.failure, RunFailed):
            raise self._owner.failure
        if self._owner.failure is not None:
            raise RunFailed(f"the transport broke: {self._owner.failure}") from self._owner.failure
        with self._owner.lock:
            taken, self._queued = self._queued, []
            self._waiting.clear()
        return taken

    async def wait(self, clock: Clock, seconds: float) -> None:
        """Waits until there is a message or `wake` is called, at most so many seconds."""
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._owner.lock:
            if self._queued or self._is_woken:
                self._is_woken = False
                return
            # The message may come from another thread.
            self._wake = lambda: loop.call_soon_threadsafe(arrived.set)
        try:
            await clock.wait(arrived, seconds)
        finally:
            with self._owner.lock:
                self._wake, self._is_woken = None, False
