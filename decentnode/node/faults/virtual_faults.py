"""Faults of virtual time: nodes that are offline for a while, and links that are cut."""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf
from pathlib import Path

import numpy as np

from decentnode.communication.base import Communication
from decentnode.core.registry import FAULTS
from decentnode.errors import BadInput, Defect
from decentnode.mapping.base import Mapping
from decentnode.node.faults.base import Fault
from decentnode.options import NonNegative, PositiveFloat
from decentnode.simulation.clock import SECOND
from decentnode.simulation.outages import NEVER, Interval, interval
from decentnode.simulation.quantities import TIMES, in_unit


@dataclass(kw_only=True)
class VirtualFault(Fault):
    """A fault that virtual time alone has."""

    acts_in_virtual_time = True

    @property
    def is_virtual(self) -> bool:
        return True


@FAULTS.register("offline")
@dataclass(kw_only=True)
class Offline(VirtualFault):
    """The node is offline for a while, and returns with its state (Bonawitz et al., MLSys 2019, 2.1).

    It makes no step meanwhile, and its links are down; they break after `failures.grace`.
    """

    seconds: PositiveFloat | str
    """How long: seconds, or a text such as `2 min`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seconds_of("seconds")

    def outages_of(self, rank: int, draw: np.random.Generator) -> Iterable[Interval]:
        return [interval(self.seconds_of("at") or 0.0, self.seconds_of("seconds"))]


@FAULTS.register("churn")
@dataclass(kw_only=True)
class NodeChurn(VirtualFault):
    """Nodes come and go: exponential times online and offline in turn (Leonard et al., SIGMETRICS 2005).

    All are online at first, from `at` on for an exponential time.
    """

    online: PositiveFloat | str
    """The mean time online: seconds, or a text such as `10 min`."""
    offline: PositiveFloat | str
    """The mean time offline."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("online", "offline"):
            self.seconds_of(option)

    def outages_of(self, rank: int, draw: np.random.Generator) -> Iterator[Interval]:
        now = round((self.seconds_of("at") or 0.0) * SECOND)
        while True:
            # At least a nanosecond, between two outages that would be one.
            begin = now + max(1, round(draw.exponential(self.seconds_of("online") or 0.0) * SECOND))
            now = begin + 1 + round(draw.exponential(self.seconds_of("offline") or 0.0) * SECOND)
            yield begin, now


@FAULTS.register("availability")
@dataclass(kw_only=True)
class NodeAvailability(VirtualFault):
    """Nodes are online as in a trace (FedScale, Lai et al., ICML 2022, 3.2; FLASH, Yang et al., WWW 2021)."""

    real_options = (*VirtualFault.real_options, "at")

    path: str
    """A CSV with the header `rank,from,to`: each line an interval in which that rank is online, in seconds
    or with units; the end may be `inf`. Ranks without a line always are.
    """

    @cached_property
    def online(self) -> dict[int, list[Interval]]:
        """The intervals of each rank in nanoseconds, in order; raises BadInput."""
        online: dict[int, list[Interval]] = {}
        try:
            with Path(self.path).open(encoding="utf-8-sig", newline="") as file:
                rows = csv.reader(file)
                if (header := [word.strip() for word in next(rows, [])]) != ["rank", "from", "to"]:
                    raise ValueError(f"line 1: must be rank,from,to, not {','.join(header) or 'empty'}")
                for row in filter(None, rows):
                    line = f"line {rows.line_num}: "
                    if len(row) != 3 or not row[0].strip().isdecimal():
                        raise ValueError(f"{line}must be a rank and two times, not {','.join(row)}")
                    try:
                        begin, end = (_seconds(word.strip()) for word in row[1:])
                    except ValueError as error:
                        raise ValueError(f"{line}{error}") from None
                    before = online.setdefault(int(row[0]), [])
                    last = before[-1][1] / SECOND if before else 0.0
                    if not last <= begin < end:
                        raise ValueError(
                            f"{line}begins at {begin:g} s and ends at {end:g} s, after {last:g} s"
                        )
                    before.append(interval(begin, None if end == inf else end - begin))
        except OSError as error:
            raise BadInput.at("path", f"{self.path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadInput.at("path", f"{self.path}: must be text") from None
        except (ValueError, csv.Error) as error:
            raise BadInput.at("path", f"{self.path}: {error}") from None
        return online

    def outages_of(self, rank: int, draw: np.random.Generator) -> Iterator[Interval]:
        end_of_last = 0
        for begin, end in self.online.get(rank, ()):
            if begin > end_of_last:
                yield end_of_last, begin
            end_of_last = end
        if 0 < end_of_last < NEVER:
            yield end_of_last, NEVER

    def named_ranks(self) -> Iterator[int]:
        yield from chain(super().named_ranks(), self.online)

    def defects(
        self, communication: Communication, mapping: Mapping, nodes: int, rounds: int
    ) -> Iterator[Defect]:
        try:
            yield from super().defects(communication, mapping, nodes, rounds=rounds)
        except BadInput as error:
            yield from error.defects


def _seconds(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return in_unit(word, TIMES)


@FAULTS.register("link_down")
@dataclass(kw_only=True)
class LinkDown(VirtualFault):
    """Links carry nothing for a while, in both directions (Kingsbury's Jepsen, 2013: the nemesis that cuts).

    They break after `failures.grace`.
    """

    real_options = (*VirtualFault.real_options, "ranks", "probability")

    links: tuple[tuple[NonNegative, NonNegative], ...]
    """The pairs of ranks."""
    seconds: PositiveFloat | str | None = None
    """How long: seconds, or a text such as `2 min`; null: for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seconds_of("seconds")
        if not self.links or any(rank == peer for rank, peer in self.links):
            raise BadInput.at("links", "must be pairs of two ranks, such as [[0, 1], [2, 5]]")

    def cut(self) -> tuple[Interval, Callable[[int, int], bool]]:
        pairs = {frozenset(link) for link in self.links}
        when = interval(self.seconds_of("at") or 0.0, self.seconds_of("seconds"))
        return when, lambda rank, peer: frozenset((rank, peer)) in pairs

    def named_ranks(self) -> Iterator[int]:
        yield from chain(super().named_ranks(), *self.links)
