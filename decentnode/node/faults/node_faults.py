"""What goes wrong in a node: it dies, stands still, or is slow."""

import os
import signal
import time
import warnings
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.core.polling import ready
from decentnode.core.registry import FAULTS
from decentnode.errors import STOPPED_BY, BadInput
from decentnode.node.faults.base import NodeFault
from decentnode.options import PositiveFloat

NAP = 0.05
"""Seconds between two signs of life of a node that is slow."""
LAST_WORDS = 0.2
"""Seconds that a node which is to crash stands still before, while its I/O thread sends what is queued."""


@FAULTS.register("crash")
@dataclass(kw_only=True)
class Crash(NodeFault):
    """The process dies, as by kill -9 (Kingsbury's Jepsen, 2013: the nemesis that kills).

    What it has sent by then leaves first, so that the same crash leaves the same models.
    A node strikes itself once in a round, also when it was started again and comes through it once more.
    """

    def strike(self) -> None:
        time.sleep(LAST_WORDS)
        os.kill(os.getpid(), signal.SIGKILL)


@FAULTS.register("stop")
@dataclass(kw_only=True)
class Stop(NodeFault):
    """The whole process stands still for a while, as by kill -STOP (Kingsbury's Jepsen, 2013)."""

    seconds: PositiveFloat = 5.0

    def strike(self) -> None:
        own = os.pidfd_open(os.getpid())
        try:
            with warnings.catch_warnings():
                # Newer interpreters warn of other threads; the child needs none of what they may hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                stop_and_continue(own, self.seconds)
            os.waitpid(child, 0)
        finally:
            os.close(own)


def stop_and_continue(pidfd: int, seconds: float) -> None:
    """Ends this process after it has stopped another one for a while; it ends with the other, too."""
    try:
        for signum in STOPPED_BY:
            signal.signal(signum, signal.SIG_IGN)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        # A pidfd is readable when its process has ended.
        ready([pidfd], seconds=seconds)
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    finally:
        os._exit(0)


@FAULTS.register("slow")
@dataclass(kw_only=True)
class Slow(NodeFault):
    """The activity takes several times as long (stragglers, as in Dean and Barroso, 2013)."""

    factor: Annotated[float, Gt(1)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activity == "receive" and (self.ranks == "all" or len(list(self.named_ranks())) > 1):
            raise BadInput(
                "activity: 'receive' is for one rank, named in `ranks`: several nodes that take long to wait "
                "for each other wait ever longer"
            )

    def strike(self) -> None:
        """Nothing yet: how long it takes is known afterwards."""

    def relent(self, seconds: float, heartbeat: HeartbeatSlot) -> None:
        limit = time.monotonic() + (self.factor - 1.0) * seconds
        while (left := limit - time.monotonic()) > 0:
            time.sleep(min(left, NAP))
            heartbeat.beat()
