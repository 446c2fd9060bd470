"""Faults of messages between processes, injected where they arrive."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from decentnode.communication.interceptor import Received
from decentnode.core.registry import FAULTS
from decentnode.errors import BadInput
from decentnode.node.faults.base import Hold, MessageFault
from decentnode.options import NonNegative, PositiveFloat
from decentnode.simulation.outages import Interval, interval


@FAULTS.register("drop", "loss", "packet_loss", "message_loss")
@dataclass(kw_only=True)
class Drop(MessageFault):
    """The message is lost (netem's loss, Hemminger, 2005)."""

    def inject(self, message: Received, draw: np.random.Generator, now: float, hold: Hold) -> list[Received]:
        return []


@FAULTS.register("delay", "latency")
@dataclass(kw_only=True)
class MessageDelay(MessageFault):
    """The message arrives later, and so do later messages of its sender (netem's delay, Hemminger, 2005)."""

    seconds: PositiveFloat = 0.5

    def inject(self, message: Received, draw: np.random.Generator, now: float, hold: Hold) -> list[Received]:
        hold(message, now + self.seconds)
        return []


@FAULTS.register("partition", "network_partition")
@dataclass(kw_only=True)
class NetworkPartition(MessageFault):
    """No message passes from one group to another until it heals (Kingsbury's Jepsen, 2013).

    Links stay up, so a dead process is detected all the same. Ranks in no group receive from all. In virtual
    time the links between the groups are cut, and break after `failures.grace`.
    """

    acts_in_virtual_time = True
    real_options = (*MessageFault.real_options, "ranks", "probability", "activity", "peers")

    groups: tuple[tuple[NonNegative, ...], ...]
    seconds: PositiveFloat | None = None
    """Seconds after its beginning at which it heals; null: after its last round, in virtual time never."""

    _group: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _heals: float = field(default=math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.groups) < 2 or not all(self.groups):
            raise BadInput.at("groups", "must be two lists of ranks or more, none of them empty")
        counts = Counter(chain(*self.groups))
        twice = sorted(rank for rank, count in counts.items() if count > 1)
        if twice:
            raise BadInput.at("groups", f"rank {twice[0]} is named {counts[twice[0]]} times; once is right")
        self._group = {rank: i for i, ranks in enumerate(self.groups) for rank in ranks}

    def inject(self, message: Received, draw: np.random.Generator, now: float, hold: Hold) -> list[Received]:
        return []

    def separates(self, sender: int, receiver: int) -> bool:
        groups = {self._group.get(sender), self._group.get(receiver)}
        return len(groups) == 2 and None not in groups

    def cut(self) -> tuple[Interval, Callable[[int, int], bool]] | None:
        return interval(self.seconds_of("at") or 0.0, self.seconds), self.separates

    def pursue(self, round: int, now: float) -> bool:
        if self.seconds is None:
            return self.injects_in(round)
        # The clock starts at the first message of one of its rounds.
        if math.isinf(self._heals) and self.injects_in(round):
            self._heals = now + self.seconds
        return math.isfinite(self._heals) and now < self._heals

    def named_ranks(self) -> Iterator[int]:
        yield from super().named_ranks()
        yield from chain(*self.groups)
