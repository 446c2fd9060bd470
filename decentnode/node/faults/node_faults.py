"""Faults of a node: it dies, is suspended, or is slow."""

import os
import signal
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt

from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.core.polling import ready
from decentnode.core.registry import FAULTS
from decentnode.core.timeouts import Timeouts
from decentnode.errors import STOPPED_BY, BadInput
from decentnode.node.faults.base import NodeFault
from decentnode.options import PositiveFloat
from decentnode.simulation.outages import Interval, interval

MARK_INTERVAL = 0.05
"""Seconds between two heartbeats of a slow node."""


@FAULTS.register("crash", "kill")
@dataclass(kw_only=True)
class Crash(NodeFault):
    """The process dies, as by kill -9 (Kingsbury's Jepsen, 2013: the nemesis that kills).

    What it has sent by then leaves first, so the same crash leads to the same models. A node crashes at most
    once per round, even if it repeats the round after a restart. In virtual time it is offline for ever.
    """

    acts_in_virtual_time = True
    real_options = (*NodeFault.real_options, "activity")

    def outages_of(self, rank: int, draw: np.random.Generator) -> Iterable[Interval]:
        return [interval(self.seconds_of("at") or 0.0, None)]

    def inject(self) -> None:
        time.sleep(Timeouts.crash)
        os.kill(os.getpid(), signal.SIGKILL)


@FAULTS.register("stop", "suspend", "pause")
@dataclass(kw_only=True)
class Stop(NodeFault):
    """The whole process is suspended for a while, as by kill -STOP (Kingsbury's Jepsen, 2013)."""

    seconds: PositiveFloat = 5.0

    def inject(self) -> None:
        own_process = os.pidfd_open(os.getpid())
        try:
            with warnings.catch_warnings():
                # Newer interpreters warn about a fork with threads; the child uses none of their locks.
                warnings.simplefilter("ignore", DeprecationWarning)
                # A child, because a suspended process cannot continue itself.
                child = os.fork()
            if child == 0:
                stop_and_continue(own_process, self.seconds)
            os.waitpid(child, 0)
        finally:
            os.close(own_process)


def stop_and_continue(pidfd: int, seconds: float) -> None:
    """Suspends another process for a while, then ends this one; also ends when the other does."""
    try:
        for signum in STOPPED_BY:
            # A Ctrl-C reaches the whole group; without this child the other stays suspended.
            signal.signal(signum, signal.SIG_IGN)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        # A pidfd is readable when its process has ended.
        ready([pidfd], seconds=seconds)
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    finally:
        # The child of a fork must not run the clean-up of its parent.
        os._exit(0)


@FAULTS.register("slow", "straggler")
@dataclass(kw_only=True)
class Slow(NodeFault):
    """The activity takes several times as long (stragglers, as in Dean and Barroso, 2013)."""

    factor: Annotated[float, Gt(1)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activity == "receive" and (self.ranks == "all" or len(list(self.named_ranks())) > 1):
            raise BadInput.at(
                "activity",
                "'receive' is for one rank, named in `ranks`: several nodes that take long to wait "
                "for each other wait ever longer",
            )

    def inject(self) -> None:
        """Does nothing: the duration is known at the end of the activity."""

    def lift(self, seconds: float, heartbeat: HeartbeatSlot) -> None:
        limit = time.monotonic() + (self.factor - 1.0) * seconds
        while (left := limit - time.monotonic()) > 0:
            time.sleep(min(left, MARK_INTERVAL))
            # A slow node makes progress, so the watchdog must not count it as stuck.
            heartbeat.beat()
