"""A filter for received messages: the hook for injected faults.

Threads: the socket thread alone.
"""

from abc import ABC, abstractmethod

import zmq

Received = tuple[list[zmq.Frame], bool]
"""The frames of one message without its routing id, and whether an authenticated socket received it."""


class MessageInterceptor(ABC):
    """Delivers a message once, several times, later, changed, or never; called by one thread only."""

    next_release: float
    """When a delayed message is due, on the clock of `time.monotonic`; infinity: none is delayed."""

    @abstractmethod
    def filter_messages(self, message: Received, now: float) -> list[Received]:
        """The messages to deliver now that this one has arrived."""

    @abstractmethod
    def released(self, now: float) -> list[Received]:
        """Delayed messages that are due."""
