"""The base of all faults: where and when they act."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from decentnode.communication.base import Communication
from decentnode.communication.interceptor import Received
from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.core.registry import name_of, refuse_old_hooks
from decentnode.errors import BadInput, Defect
from decentnode.mapping.base import Mapping
from decentnode.options import NonNegative, Probability

ActivityName = Literal["begin", "train", "send", "receive", "mix", "evaluate", "checkpoint"]
"""The activities of a round, named as in `communication.launcher_link.heartbeats.Activity`."""


class Hold(Protocol):
    """Delays a message until a time of `time.monotonic`; later messages of its link wait behind it."""

    def __call__(self, message: Received, until: float, /, overtaken: bool = False) -> None:
        """`overtaken`: the next message of its link passes first, and releases it."""


@dataclass(kw_only=True)
class Fault:
    """One injected fault: where and when it strikes."""

    ranks: Literal["all"] | NonNegative | tuple[NonNegative, ...] = "all"
    """The ranks of the nodes that it strikes."""
    machine: NonNegative | None = None
    """The machine whose nodes alone are affected."""
    rounds: NonNegative | tuple[NonNegative, NonNegative] | None = None
    """The round, or the first and the last, counted from 0; null: all."""
    probability: Probability = 1.0
    """The probability that it strikes, at each opportunity."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_old_hooks(cls, {"strike": "inject", "relent": "lift", "strikes_in": "injects_in"})

    def __post_init__(self) -> None:
        if isinstance(self.rounds, tuple) and self.rounds[0] > self.rounds[1]:
            first, last = self.rounds
            raise BadInput.at("rounds", f"must be the first and the last, not {first} and then {last}")

    @property
    def span(self) -> tuple[int, float]:
        """The first and the last round in which it may strike."""
        if self.rounds is None:
            return 0, math.inf
        return self.rounds if isinstance(self.rounds, tuple) else (self.rounds, self.rounds)

    def injects_in(self, round: int) -> bool:
        """Whether this is one of its rounds; the time before the first round is in none."""
        first, last = self.span
        return first <= round <= last

    def named_ranks(self) -> Iterator[int]:
        """All ranks that its options name."""
        yield from named(self.ranks)

    def defects(
        self, communication: Communication, mapping: Mapping, nodes: int, rounds: int
    ) -> Iterator[Defect]:
        """Yields the reasons why it would never strike in such a run."""
        machines = len(mapping.machines)
        unknown_ranks = sorted(rank for rank in self.named_ranks() if rank >= nodes)
        if unknown_ranks:
            yield Defect(
                (), f"rank {unknown_ranks[0]} does not exist; the graph has the ranks 0..{nodes - 1}"
            )
        if self.machine is not None and self.machine >= machines:
            defect = f"must be the index of a machine, 0..{machines - 1}, not {self.machine}"
            yield Defect(("machine",), defect)
        if self.span[0] >= rounds:
            defect = f"never comes: the rounds are 0..{rounds - 1}, and it begins in {self.span[0]}"
            yield Defect(("rounds",), defect)


@dataclass(kw_only=True)
class NodeFault(Fault, ABC):
    """Strikes in a node itself, once in each of its rounds."""

    activity: ActivityName = "train"
    """The activity at whose start it strikes."""

    @abstractmethod
    def inject(self) -> None:
        """Strikes, in the thread of the node, at the start of the activity."""

    def lift(self, seconds: float, heartbeat: HeartbeatSlot) -> None:
        """Is called when the activity ends, after so many seconds; faults that last as long end here."""


@dataclass(kw_only=True)
class MessageFault(Fault, ABC):
    """Strikes messages between two processes where they arrive; `ranks` are the receivers."""

    activity: ActivityName | None = None
    """Strikes only during this activity of the receiving node; null: always."""
    peers: Literal["all"] | NonNegative | tuple[NonNegative, ...] = "all"
    """Strikes only messages of these ranks."""

    @abstractmethod
    def inject(self, message: Received, draw: np.random.Generator, now: float, hold: Hold) -> list[Received]:
        """The messages to deliver instead: none, itself, or several; `hold` delivers one later."""

    def separates(self, sender: int, receiver: int) -> bool:
        """Whether it may strike a message from one to the other, both among its ranks."""
        return True

    def pursue(self, round: int, now: float) -> bool:
        """Whether it is active at that time, in that round."""
        return self.injects_in(round)

    def named_ranks(self) -> Iterator[int]:
        yield from named(self.ranks)
        yield from named(self.peers)

    def defects(
        self, communication: Communication, mapping: Mapping, nodes: int, rounds: int
    ) -> Iterator[Defect]:
        yield from super().defects(communication, mapping, nodes, rounds=rounds)
        fullest = max(communication.plan.nodes_in_one_process(machine.nodes) for machine in mapping.machines)
        if communication.plan.has_group:
            yield Defect(
                (), f"{name_of(self)} acts on ZeroMQ messages, and a process group has none; use zeromq"
            )
        elif communication.plan.one_process or fullest > 1:
            limit = f"{name_of(self)} acts on messages between processes; give each node a process of its own"
            yield Defect((), f"{limit} (zeromq with nodes_per_process: 1)")


def named(ranks: Literal["all"] | int | tuple[int, ...]) -> Iterator[int]:
    """The ranks that an option lists."""
    if isinstance(ranks, int):
        yield ranks
    elif isinstance(ranks, tuple):
        yield from ranks


def includes(ranks: Literal["all"] | int | tuple[int, ...], rank: int) -> bool:
    """Whether an option includes this rank."""
    return ranks == "all" or rank in named(ranks)
