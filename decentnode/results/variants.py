"""Runs that differ in nothing but the seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decentnode.formats.run import FINISHED
from decentnode.results.curves import MIXED_TIMES
from decentnode.results.run import Run
from decentnode.results.statistics import Interval, interval

Measure = Callable[[Run], float]
"""A function for one number of a run; nan where it has none."""


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but the seed."""

    name: str
    axes: dict[str, str]
    """The differences from the other variants: labels by axis, or values by key."""
    runs: list[Run]
    """The runs by seed. Only those that finished count in tables."""

    @property
    def finished(self) -> list[Run]:
        """The runs that finished and were evaluated."""
        return [run for run in self.runs if run.state == FINISHED and run.rows]

    @property
    def had_the_machine_alone(self) -> bool:
        """Whether seconds of its runs compare: they are virtual, or no other run ran meanwhile."""
        return all(run.entry is None or run.entry.alone or run.is_simulated for run in self.finished)

    @property
    def is_simulated(self) -> bool:
        """Whether the seconds of its runs are virtual."""
        return all(run.is_simulated for run in self.runs)

    @property
    def graph_varies(self) -> bool:
        """Whether its runs draw their graph from the seed; otherwise all have the same."""
        return graph_varies(self.runs[0].settings.get("graph"))

    @property
    def tests_vary(self) -> bool:
        """Whether its runs were tested on different samples, by the hashes that they recorded."""
        return len({run.tests_hash for run in self.finished} - {""}) > 1

    def over_seeds(self, measure: Measure) -> Interval:
        """Returns mean and interval of a number over the finished runs."""
        return interval([measure(run) for run in self.finished])


def are_simulated(variants: Sequence[Variant]) -> bool:
    """Whether the seconds of all their runs are virtual."""
    return all(variant.is_simulated for variant in variants)


def time_doubt(variants: Sequence[Variant]) -> str:
    """Returns why the seconds of their runs do not compare; empty where they do."""
    if len({variant.is_simulated for variant in variants}) > 1:
        return MIXED_TIMES
    alone = all(variant.had_the_machine_alone for variant in variants if variant.finished)
    return "" if alone else "runs shared the machine: do not compare"


def graph_varies(section: Any) -> bool:
    """Whether a section `graph`, as a run saves it, is drawn from the run's seed: it has none of its own."""
    if not isinstance(section, dict):
        return False
    return section.get("seed", 0) is None or any(map(graph_varies, section.values()))
