"""The metrics of an evaluation, by name; the first of a run is its headline metric."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, isfinite

import msgspec

from decentnode.core.registry import guess
from decentnode.core.text import decimal, percent, quoted
from decentnode.errors import BadInput

Values = Mapping[str, float | None]
"""A number for each metric; None where it is not finite, because JSON has no such numbers."""

VALIDATION = "validation_"
"""The prefix of the names of metrics on validation samples."""
LOCAL = "local_"
"""The prefix of the names of metrics on each node's own test samples."""
POOLED = LOCAL + "pooled_"
"""The prefix of the names of metrics on the nodes' own test samples together."""


class Metric(msgspec.Struct, frozen=True):
    """One number that an evaluation gives for a model."""

    name: str
    higher_is_better: bool
    is_fraction: bool = False
    """Whether it is a number from 0 to 1 that people read in percent."""

    @property
    def of_validation(self) -> "Metric":
        """Returns this metric on validation samples."""
        return msgspec.structs.replace(self, name=VALIDATION + self.name)

    @property
    def is_of_validation(self) -> bool:
        """Whether it is measured on validation samples."""
        return self.name.startswith(VALIDATION)

    @property
    def of_local(self) -> "Metric":
        """Returns this metric on each node's own test samples."""
        return msgspec.structs.replace(self, name=LOCAL + self.name)

    @property
    def is_of_local(self) -> bool:
        """Whether it is measured on each node's own test samples."""
        return self.name.startswith(LOCAL)

    @property
    def of_pooled(self) -> "Metric":
        """Returns this metric on the test samples of all nodes together, each judged by its own node."""
        return msgspec.structs.replace(self, name=POOLED + self.name)

    @property
    def is_of_pooled(self) -> bool:
        """Whether it is one number for all nodes together, which each of them has in a row."""
        return self.name.startswith(POOLED)

    @property
    def is_of_class(self) -> bool:
        """Whether it is the number of one class, label or output, such as `accuracy_of_3`."""
        return re.search(r"_of_\d+$", self.name) is not None

    @property
    def words(self) -> str:
        """The name as people read it: `validation loss`, `local loss`."""
        return self.name.replace("_", " ", 1) if self.is_of_validation or self.is_of_local else self.name

    @property
    def title(self) -> str:
        """The name with the samples that it is measured on: `test loss`, `validation loss`, `local loss`."""
        if self == TRAIN_LOSS:
            return "training loss"
        return self.words if self.is_of_validation or self.is_of_local else f"test {self.name}"

    @property
    def scale(self) -> float:
        """The factor from the files to what people read."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def unit(self) -> str:
        """The unit after the number: ` %`, or nothing."""
        return " %" if self.is_fraction else ""

    def number(self, value: float | None) -> str:
        """The value without its unit; a dash if unknown."""
        return percent(value) if self.is_fraction else decimal(value)

    def text(self, value: float | None) -> str:
        """The value with its unit; a dash if unknown."""
        return self.number(value) + ("" if value is None else self.unit)

    def best(self, values: Sequence[float]) -> float:
        """The best of these values; there is at least one."""
        return max(values) if self.higher_is_better else min(values)

    def worst(self, values: Sequence[float]) -> float:
        """The worst of these values; there is at least one."""
        return min(values) if self.higher_is_better else max(values)

    def easier(self, value: float) -> float:
        """The value, rounded to a target that is not harder to reach, as people read both."""
        if not isfinite(value):
            return value
        parts = 10 if self.is_fraction else 10_000
        return (floor(parts * value) if self.higher_is_better else ceil(parts * value)) / parts

    def reaches(self, value: float, target: float) -> bool:
        """Whether the value is as good as the target."""
        return value >= target if self.higher_is_better else value <= target


ACCURACY = Metric("accuracy", higher_is_better=True, is_fraction=True)
LOSS = Metric("loss", higher_is_better=False)
CLASSIFICATION = (ACCURACY, LOSS)
TRAIN_LOSS = Metric("train_loss", higher_is_better=False)
"""The training loss of a round, which every evaluation has in addition to the metrics of the run."""
DISTANCE = "consensus_distance"
"""The name by which plots know the consensus distance, which is no metric of a model."""


def logged_metrics(names: Iterable[str]) -> tuple[Metric, ...]:
    """Returns the metrics that a script has logged under these names; those of classification without any.

    Of a name that is not known, only its words tell which direction is better.
    """
    known = {metric.name: metric for metric in CLASSIFICATION}
    lower = ("loss", "error", "perplexity", "mse", "mae", "distance")
    found = (known.get(n) or Metric(n, not any(word in n.lower() for word in lower)) for n in names)
    return tuple(found) or CLASSIFICATION


def chosen_metric(metrics: Sequence[Metric], name: str | None) -> Metric | None:
    """The metric of that name, the headline metric by default; None for the consensus distance.

    Raises BadInput for a name that no evaluation has.
    """
    known = {metric.name: metric for metric in (TRAIN_LOSS, *metrics)}
    if name == DISTANCE:
        return None
    if name is not None and name not in known:
        names = [*(metric.name for metric in metrics), TRAIN_LOSS.name, DISTANCE]
        instead = guess(name, names) or f" (known: {', '.join(names)})"
        raise BadInput(f"unknown metric {quoted(name)}{instead}")
    return known[name] if name is not None else metrics[0]
