"""The base of all faults: where and when they act."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Protocol

import numpy as np

from decentnode.communication.base import Communication
from decentnode.communication.interceptor import Received
from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.core.registry import name_of
from decentnode.errors import BadInput, Defect
from decentnode.mapping.base import Mapping
from decentnode.options import NonNegative, NonNegativeFloat, Probability
from decentnode.simulation.outages import Interval
from decentnode.simulation.quantities import TIMES, in_unit

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
    """The probability that it strikes, at each opportunity; in virtual time once for each rank."""
    at: NonNegativeFloat | str | None = None
    """In virtual time, when it begins: seconds, or a text such as `2 min`; it replaces `rounds`."""

    acts_in_virtual_time: ClassVar[bool] = False
    real_options: ClassVar[tuple[str, ...]] = ("rounds", "machine")
    """Options without effect in virtual time."""

    def __post_init__(self) -> None:
        self.seconds_of("at")
        if isinstance(self.rounds, tuple) and self.rounds[0] > self.rounds[1]:
            first, last = self.rounds
            raise BadInput.at("rounds", f"must be the first and the last, not {first} and then {last}")

    def seconds_of(self, option: str) -> float | None:
        """Returns an option in seconds, of which only `at` may be 0; raises BadInput."""
        value = getattr(self, option)
        if value is None:
            return None
        try:
            seconds = in_unit(value, TIMES)
        except ValueError as error:
            raise BadInput.at(option, str(error)) from None
        if not (0 < seconds < math.inf or (seconds == 0 and option == "at")):
            what = ">= 0" if option == "at" else "> 0"
            raise BadInput.at(option, f"must be {what} and finite, not {value}")
        return seconds

    @property
    def is_virtual(self) -> bool:
        """Whether it acts at virtual times."""
        return self.at is not None

    def outages_of(self, rank: int, draw: np.random.Generator) -> Iterable[Interval]:
        """Returns the intervals in which it takes a node offline, in virtual time; `draw`: of the rank."""
        return ()

    def cut(self) -> tuple[Interval, Callable[[int, int], bool]] | None:
        """Returns when it cuts links in virtual time, and which, asked with two ranks; None: none."""
        return None

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
        machines, is_simulation = len(mapping.machines), communication.plan.has_virtual_time
        if self.is_virtual and not is_simulation:
            yield Defect((), f"{name_of(self)} acts at virtual times, which communication: simulated has")
        if is_simulation and not self.acts_in_virtual_time:
            known = "crash, partition, offline, link_down, churn, availability"
            yield Defect((), f"{name_of(self)} acts on real processes; in virtual time use {known}")
        elif is_simulation and not self.is_virtual:
            yield Defect((), f"{name_of(self)} needs `at` in virtual time, the second at which it begins")
        for option in fields(self) if self.is_virtual else ():
            if option.name in self.real_options and getattr(self, option.name) != option.default:
                instead = "`at` says when it begins" if option.name == "rounds" else "leave it out"
                yield Defect((option.name,), f"has no effect in virtual time; {instead}")
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
        if communication.plan.has_virtual_time:
            return
        fullest = max(communication.plan.nodes_in_one_process(machine.nodes) for machine in mapping.machines)
        if communication.plan.has_group:
            yield Defect(
                (), f"{name_of(self)} acts on ZeroMQ messages, and a process group has none; use zeromq"
            )
        elif communication.plan.one_machine or fullest > 1:
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
