"""Faults that only the tests of this package need; named from YAML as `more_faults:Class`."""

import resource
import time
from dataclasses import dataclass

import numpy as np

from decentnode.communication.interceptor import Received
from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.node.faults.base import ActivityName, Hold, MessageFault, NodeFault
from decentnode.options import Positive, PositiveFloat


@dataclass(kw_only=True)
class Hang(NodeFault):
    """The node's thread gets no further while the one for its sockets answers (gray failure, Huang, 2017)."""

    seconds: PositiveFloat | None = None
    """null: for ever."""

    def inject(self) -> None:
        time.sleep(self.seconds if self.seconds is not None else 1e9)


@dataclass(kw_only=True)
class Raise(NodeFault):
    """The node ends with an exception, and says goodbye (the injected errors of torchft, 2024)."""

    def inject(self) -> None:
        raise RuntimeError("an injected fault")


@dataclass(kw_only=True)
class FullDisk(NodeFault):
    """No file of the process can grow during the activity, as on a full disk (Jepsen's nemeses, 2013).

    It is done by a limit on the size of files, so the error is EFBIG and not ENOSPC. A round's record is
    written at the end of `evaluate`.
    """

    activity: ActivityName = "evaluate"

    def inject(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))

    def lift(self, seconds: float, heartbeat: HeartbeatSlot) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@dataclass(kw_only=True)
class Duplicate(MessageFault):
    """The message comes twice (netem's duplicate, Hemminger, 2005)."""

    def inject(self, message: Received, draw: np.random.Generator, now: float, hold: Hold) -> list[Received]:
        return [message, message]


@dataclass(kw_only=True)
class Reorder(MessageFault):
    """The message comes after the next one of its sender (netem's reorder, Hemminger, 2005)."""

    seconds: PositiveFloat = 1.0
    """How long it is held back at most where no other one comes."""

    def inject(self, message: Received, draw: np.random.Generator, now: float, hold: Hold) -> list[Received]:
        hold(message, now + self.seconds, overtaken=True)
        return []


@dataclass(kw_only=True)
class Corrupt(MessageFault):
    """Bits of the message are flipped, in its header or in its body (netem's corrupt, Hemminger, 2005)."""

    bits: Positive = 1

    def inject(self, message: Received, draw: np.random.Generator, now: float, hold: Hold) -> list[Received]:
        buffers = [memoryview(frame.buffer).cast("B") for frame in message[0] if len(frame)]
        ends = np.cumsum([len(buffer) for buffer in buffers])
        for place in draw.integers(int(ends[-1]) if len(ends) else 0, size=self.bits if len(ends) else 0):
            which = int(np.searchsorted(ends, place, side="right"))
            offset = int(place) - (int(ends[which - 1]) if which else 0)
            # In place: a new frame would not know whose key it came with.
            buffers[which][offset] ^= 1 << int(draw.integers(8))
        return [message]
