"""How fast nodes make local steps: stragglers on equal machines.

A step that is faster than its pace is followed by sleep, so a slow node takes no processor from the others.
A pace can only slow down. It acts in both time models, so that these can be compared. In virtual time it is
all that a step takes: nothing is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt, Le

from decentnode.core.clock import Clock
from decentnode.core.rng import generator
from decentnode.errors import BadInput
from decentnode.options import Fraction, PositiveFloat

MOST_SECONDS = 3600.0
"""Seconds of a step, at most, however slow the node is: every run ends."""
BEAT_INTERVAL = 0.25
"""Seconds between two heartbeats of a node that sleeps."""


@dataclass(frozen=True)
class RandomSlowdown:
    """Factors that are drawn by the seed."""

    distribution: Literal["lognormal", "exponential", "stragglers"]
    """lognormal: exp(sigma N(0, 1)). exponential: of mean 1. stragglers: `factor` for that share of the
    ranks, 1 for the others.
    """
    sigma: Annotated[float, Gt(0), Le(3)] = 0.5
    share: Fraction = 0.25
    factor: PositiveFloat = 4.0
    drawn: Literal["step", "rank"] = "step"
    """Whether each step has a factor of its own, or each rank one for all steps."""

    def __post_init__(self) -> None:
        read = {"lognormal": ("sigma", "drawn"), "exponential": ("drawn",), "stragglers": ("share", "factor")}
        known = ("distribution", *read[self.distribution])
        for field in fields(self):
            if field.name not in known and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"{field.name} is no option of {self.distribution} (known: {', '.join(known[1:])})"
                )

    def of(self, seed: int, rank: int, nodes: int, *step: int) -> float:
        """The factor of a rank in one step."""
        if self.distribution == "stragglers":
            slow = generator(seed, "stragglers").permutation(nodes)[: round(self.share * nodes)]
            return self.factor if rank in slow else 1.0
        draw = generator(seed, "slowdown", rank, *(step if self.drawn == "step" else ()))
        factor = draw.exponential() if self.distribution == "exponential" else draw.lognormal(0, self.sigma)
        return float(factor)


@dataclass(frozen=True)
class PaceSettings:
    """The least seconds of a local step: step_seconds times the slowdown of the rank."""

    step_seconds: PositiveFloat
    slowdown: PositiveFloat | tuple[PositiveFloat, ...] | RandomSlowdown = 1.0
    """A factor for all ranks, one for each rank or machine, or a distribution."""
    trace_path: str | None = None
    """A file of further factors: one line per rank with numbers, apart by commas or spaces, used round by
    round and then again.
    """

    def __str__(self) -> str:
        slowdown = self.slowdown
        if isinstance(slowdown, RandomSlowdown):
            how = f", slowdown {slowdown.distribution}"
        else:
            how = ", slowdown by rank" if isinstance(slowdown, tuple) else f" x {slowdown:g}"
        how = "" if how == " x 1" else how
        return f"steps of {self.step_seconds:g} s{how}{', by trace' if self.trace_path else ''}"

    @cached_property
    def trace(self) -> list[list[float]]:
        """The factors in the file by rank; one line of 1 where there is none. Raises BadInput."""
        if self.trace_path is None:
            return []
        key = "training.pace.trace_path"
        try:
            lines = Path(self.trace_path).read_text("utf-8").splitlines()
            factors = [
                [float(word) for word in line.replace(",", " ").split()] for line in lines if line.strip(" ,")
            ]
        except OSError as error:
            raise BadInput.at(key, f"{self.trace_path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadInput.at(
                key, f"{self.trace_path}: must be text with one line of numbers per rank"
            ) from None
        except ValueError as error:
            raise BadInput.at(key, f"{self.trace_path}: {error}") from None
        if not all(0 < number < inf for line in factors for number in line):
            raise BadInput.at(key, f"{self.trace_path}: factors must be finite and > 0")
        return factors

    def of_rank(self, rank: int, nodes: int, seed: int, clock: Clock) -> "Pace":
        """The pace of one node."""
        return Pace(self, rank, nodes, seed=seed, clock=clock)

    def check(self, nodes: int) -> None:
        """Raises BadInput where the file does not fit that number of nodes."""
        if self.trace_path is not None and len(self.trace) != nodes:
            raise BadInput.at(
                "training.pace.trace_path",
                f"{self.trace_path} has {len(self.trace)} lines; it must have one "
                f"for each of the {nodes} ranks",
            )


@dataclass(frozen=True)
class Pace:
    """The pace of one node."""

    settings: PaceSettings
    rank: int
    nodes: int
    seed: int
    clock: Clock

    def seconds(self, round: int, step: int) -> float:
        """The least duration of a step."""
        slowdown, trace = self.settings.slowdown, self.settings.trace
        if isinstance(slowdown, RandomSlowdown):
            factor = slowdown.of(self.seed, self.rank, self.nodes, round, step)
        else:
            factor = slowdown[self.rank] if isinstance(slowdown, tuple) else slowdown
        if trace:
            factor *= trace[self.rank][round % len(trace[self.rank])]
        return min(self.settings.step_seconds * factor, MOST_SECONDS)

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
