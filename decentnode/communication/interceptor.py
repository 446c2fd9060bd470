"""What received messages may go through before they are taken in: the place for injected faults."""

from abc import ABC, abstractmethod

import zmq

Received = tuple[list[zmq.Frame], bool]
"""The frames of one message without its routing id, and whether they came through the guarded socket."""


class MessageInterceptor(ABC):
    """Lets messages through: once, several times, later, changed, or never; one thread alone asks it."""

    next_release: float
    """When a message that is held back is due, as `time.monotonic` counts; infinity when none is."""

    @abstractmethod
    def sift(self, message: Received, now: float) -> list[Received]:
        """What is to be taken in now that this message has arrived."""

    @abstractmethod
    def released(self, now: float) -> list[Received]:
        """Messages that were held back until now."""
