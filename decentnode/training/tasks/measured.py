"""What tasks share whose numbers are metrics of predictions, beside the loss."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from decentnode.training.metrics.base import MetricSpec
from decentnode.training.tasks.base import LOSS, Task, share


@dataclass(kw_only=True)
class Measured(Task):
    """A task with `measures`; of sums it has the loss alone."""

    def metrics(self, num_classes: int) -> tuple[MetricSpec, ...]:
        return (LOSS,)

    def sums(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {}

    def values(self, sums: Mapping[str, float], count: float) -> dict[str, float]:
        return {"loss": share(sums["loss"], count)}
