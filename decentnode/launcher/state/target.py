"""The target of a run (`evaluation.target`), and the evaluation that reached it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean

from decentnode.formats.metrics import Metric
from decentnode.formats.reader import EvaluationRow


@dataclass
class Target:
    """A value of one metric, which the mean over nodes is to reach."""

    metric: Metric
    value: float
    reached: int | None = field(default=None, init=False)
    """The first round whose evaluation has reached it, as far as this machine knows; None: none has."""
    means: dict[int, float] = field(default_factory=dict, init=False)
    """The means over nodes that were looked at, by round; finite ones alone."""
    seconds: dict[int, float] = field(default_factory=dict, init=False)
    """The seconds of these evaluations, virtual ones in a simulation."""

    def take(self, rows: Iterable[EvaluationRow]) -> bool:
        """Looks at evaluations; returns whether the first that reaches the target is among them."""
        for row in rows:
            values = [float("nan") if value is None else value for value in row.values(self.metric.name)]
            if values and isfinite(mean := fmean(values)):
                self.means[row.round] = mean
                self.seconds[row.round] = row.seconds
        if self.reached is None:
            meets = (round for round in sorted(self.means) if self._is_reached(round))
            self.reached = next(meets, None)
            return self.reached is not None
        return False

    def _is_reached(self, round: int) -> bool:
        return self.metric.reaches(self.means[round], self.value)

    def described(self, last_round: int | None) -> dict[str, object]:
        """Returns it for `summary.json`; `last_round`: the one after which the nodes ended."""
        best = self.metric.best([*self.means.values()]) if self.means else None
        return {
            "metric": self.metric.name,
            "value": self.value,
            "reached_round": self.reached,
            "reached_value": None if self.reached is None else self.means.get(self.reached),
            "reached_seconds": None if self.reached is None else self.seconds.get(self.reached),
            "best": best,
            "last_round": last_round,
        }
