"""How fast nodes make local steps: stragglers on equal machines.

A step that is faster than its pace is followed by sleep, so a slow node takes no processor from the others.
A pace can only slow down. It acts in both time models, so that these can be compared. In virtual time it is
all that a step takes: nothing is measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt, Le

from decentnode.core.clock import Clock
from decentnode.core.registry import SLOWDOWNS, guess, name_of
from decentnode.core.rng import generator
from decentnode.core.text import counted, quoted
from decentnode.errors import BadInput, Defect, refuse
from decentnode.options import Fraction, PositiveFloat
from decentnode.simulation.quantities import TIMES, in_unit
from decentnode.training.device_classes import (
    TOLERANCE,
    DeviceClass,
    dealt,
    positive_number,
    read_classes,
)

MOST_SECONDS = 3600.0
"""Seconds of a step, at most, however slow the node is: every run ends."""
BEAT_INTERVAL = 0.25
"""Seconds between two heartbeats of a node that sleeps."""
KEY = "training.pace"


Drawn = Literal["step", "rank"]
"""Whether each step has a factor of its own, or each rank one for all steps."""


class Slowdown(ABC):
    """Draws the factors of steps by the seed. Its fields are its options."""

    @abstractmethod
    def of(self, seed: int, rank: int, nodes: int, *step: int) -> float:
        """Returns the factor of a rank in one step; `step`: the round, and the step in it."""


@SLOWDOWNS.register("lognormal")
@dataclass(frozen=True)
class LognormalSlowdown(Slowdown):
    """Factors exp(sigma N(0, 1)) (Johnson, Kotz and Balakrishnan, vol. 1, 1994, Ch. 14)."""

    sigma: Annotated[float, Gt(0), Le(3)] = 0.5
    drawn: Drawn = "step"

    def of(self, seed: int, rank: int, nodes: int, *step: int) -> float:
        return float(_random(seed, rank, step, self.drawn).lognormal(0, self.sigma))


@SLOWDOWNS.register("exponential")
@dataclass(frozen=True)
class ExponentialSlowdown(Slowdown):
    """Exponential factors of mean 1 (Johnson, Kotz and Balakrishnan, vol. 1, 1994, Ch. 19)."""

    drawn: Drawn = "step"

    def of(self, seed: int, rank: int, nodes: int, *step: int) -> float:
        return float(_random(seed, rank, step, self.drawn).exponential())


@SLOWDOWNS.register("stragglers")
@dataclass(frozen=True)
class Stragglers(Slowdown):
    """One factor for a share of the ranks, and 1 for the others (Dean and Barroso, CACM 2013)."""

    share: Fraction = 0.25
    factor: PositiveFloat = 4.0

    def of(self, seed: int, rank: int, nodes: int, *step: int) -> float:
        slow = generator(seed, "stragglers").permutation(nodes)[: round(self.share * nodes)]
        return self.factor if rank in slow else 1.0


def _random(seed: int, rank: int, step: tuple[int, ...], drawn: Drawn) -> np.random.Generator:
    return generator(seed, "slowdown", rank, *(step if drawn == "step" else ()))


@dataclass(frozen=True)
class PaceSettings:
    """The least seconds of a local step: step_seconds, times factors of rank, device and round."""

    step_seconds: PositiveFloat | str
    """Seconds, or a text with a unit such as `50 ms`."""
    slowdown: PositiveFloat | tuple[PositiveFloat, ...] | Slowdown = 1.0
    """A factor for all ranks, one for each rank or machine, or a distribution."""
    device_classes: Path | None = None
    """A CSV file of devices with the header `class,factor` or `class,factor,share`. A factor says how many
    times longer a step takes than on a device of factor 1, where it takes step_seconds.
    """
    device: str | tuple[str, ...] | Mapping[str, Fraction] | None = None
    """The class of all ranks, one for each rank or machine, or the share of each class, drawn by the seed;
    null: the shares in the file.
    """
    trace_path: str | None = None
    """A file of further factors: one line per rank with numbers, apart by commas or spaces, used round by
    round.
    """
    trace_repeats: bool = True
    """Whether a trace begins again after its end; false: it must have a number for each round."""

    def __str__(self) -> str:
        slowdown, device = self.slowdown, self.device
        if isinstance(slowdown, Slowdown):
            how = f", slowdown {name_of(slowdown)}"
        else:
            how = ", slowdown by rank" if isinstance(slowdown, tuple) else f" x {slowdown:g}"
        how = "" if how == " x 1" else how
        if self.device_classes is not None:
            devices = device if isinstance(device, str) else f"devices of {self.device_classes.name}"
            how += f", {devices}"
        return f"steps of {self.seconds:g} s{how}{', by trace' if self.trace_path else ''}"

    @cached_property
    def seconds(self) -> float:
        """The step_seconds as a number."""
        return in_unit(self.step_seconds, TIMES)

    @cached_property
    def classes(self) -> dict[str, DeviceClass]:
        """The classes of devices by name; empty without a file. Raises BadInput."""
        return {} if self.device_classes is None else read_classes(self.device_classes)

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of each class where classes are drawn, otherwise empty."""
        if self.device_classes is None or isinstance(self.device, str | tuple):
            return {}
        if self.device is not None:
            return dict(self.device)
        return {name: one.share for name, one in self.classes.items() if one.share is not None}

    @cached_property
    def trace(self) -> list[tuple[int, list[float]]]:
        """By rank the number of its line in the file, and its factors; empty without a file.

        Raises BadInput.
        """
        if self.trace_path is None:
            return []
        key = f"{KEY}.trace_path"
        try:
            lines = Path(self.trace_path).read_text("utf-8-sig").splitlines()
        except OSError as error:
            raise BadInput.at(key, f"{self.trace_path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadInput.at(
                key, f"{self.trace_path}: must be text with one line of numbers per rank"
            ) from None
        words = [(number, line.replace(",", " ").split()) for number, line in enumerate(lines, 1)]
        return [
            (number, [positive_number(word, f"{self.trace_path}:{number}: a factor", key) for word in row])
            for number, row in words
            if row
        ]

    def of_rank(self, rank: int, nodes: int, seed: int, clock: Clock) -> "Pace":
        """The pace of one node."""
        return Pace(self, rank, nodes, seed=seed, clock=clock)

    def device_of(self, rank: int, nodes: int, seed: int) -> str:
        """The class of a rank's device."""
        if isinstance(self.device, str):
            return self.device
        return self.device[rank] if isinstance(self.device, tuple) else dealt(self.shares, nodes, seed)[rank]

    def check(self, nodes: int, rounds: int) -> None:
        """Raises BadInput for all that does not fit a run of so many nodes and rounds, or the files."""
        defects: list[Defect] = []
        for check in (
            self._check_seconds,
            self._check_devices,
            lambda: self._check_trace(nodes, rounds),
        ):
            try:
                check()
            except BadInput as error:
                defects += error.defects
        refuse(defects)

    def _check_seconds(self) -> None:
        try:
            seconds = self.seconds
        except ValueError as error:
            raise BadInput.at(f"{KEY}.step_seconds", str(error)) from None
        if not 0 < seconds < inf:
            raise BadInput.at(f"{KEY}.step_seconds", f"must be > 0 and finite, not {self.step_seconds}")

    def _check_devices(self) -> None:
        if self.device_classes is None:
            if self.device is not None:
                what = "needs device_classes, a CSV file with the header class,factor"
                raise BadInput.at(f"{KEY}.device", what)
            return
        device = self.device
        for name in [device] if isinstance(device, str) else device or ():
            if name not in self.classes:
                known = guess(name, self.classes) or f" (known: {', '.join(self.classes)})"
                raise BadInput.at(f"{KEY}.device", f"no class {quoted(name)} in {self.device_classes}{known}")
        if isinstance(device, str | tuple):
            return
        place, key = f"{self.device_classes}: ", f"{KEY}.device_classes"
        if device is not None:
            place, key = "", f"{KEY}.device"
        elif not self.shares:
            what = "missing: the file has no shares; name a class, one for each rank, or a share of each"
            raise BadInput.at(f"{KEY}.device", what)
        total = sum(self.shares.values())
        if abs(total - 1) > TOLERANCE:
            raise BadInput.at(key, f"{place}the shares add up to {total:g}; they must be 1")

    def _check_trace(self, nodes: int, rounds: int) -> None:
        if self.trace_path is None:
            if not self.trace_repeats:
                raise BadInput.at(f"{KEY}.trace_repeats", "needs trace_path; leave it out")
            return
        if len(self.trace) != nodes:
            what = f"has {len(self.trace)} lines; it must have one for each of the {nodes} ranks"
            raise BadInput.at(f"{KEY}.trace_path", f"{self.trace_path} {what}")
        for number, factors in self.trace:
            if not self.trace_repeats and len(factors) < rounds:
                what = f"ends after {counted(len(factors), 'round')}, and the run has {rounds}"
                raise BadInput.at(
                    f"{KEY}.trace_path",
                    f"{self.trace_path}:{number}: {what}; add numbers, or let it begin again "
                    "(trace_repeats: true)",
                )


@dataclass(frozen=True)
class Pace:
    """The pace of one node."""

    settings: PaceSettings
    rank: int
    nodes: int
    seed: int
    clock: Clock

    @cached_property
    def device_factor(self) -> float:
        """The factor of the class of its device; 1 without classes."""
        settings = self.settings
        if settings.device_classes is None:
            return 1.0
        return settings.classes[settings.device_of(self.rank, self.nodes, self.seed)].factor

    def seconds(self, round: int, step: int) -> float:
        """The least duration of a step."""
        slowdown, trace = self.settings.slowdown, self.settings.trace
        if isinstance(slowdown, Slowdown):
            factor = slowdown.of(self.seed, self.rank, self.nodes, round, step)
        else:
            factor = slowdown[self.rank] if isinstance(slowdown, tuple) else slowdown
        if trace:
            _, factors = trace[self.rank]
            factor *= factors[round % len(factors)]
        return min(self.settings.seconds * self.device_factor * factor, MOST_SECONDS)

    async def keep(self, began: float, round: int, step: int, beat: Callable[[], None]) -> None:
        """Sleeps until a step that began at that time has taken its least duration."""
        due = began + self.seconds(round, step)
        if self.clock.is_virtual:
            await self.clock.sleep(due - self.clock.now())
            beat()
            return
        while (left := due - self.clock.now()) > 0:
            await self.clock.sleep(min(left, BEAT_INTERVAL))
            # The launcher must not take a slow node for one that hangs.
            beat()
