"""A number for each sample, such as a user's rating of an item."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from decentnode.core.registry import TASKS
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput
from decentnode.training.metrics.base import MetricSpec
from decentnode.training.tasks.base import LOSS, Task


@TASKS.register("rating")
@dataclass(kw_only=True)
class Rating(Task):
    """RMSE and MAE of predicted numbers (Koren et al., 2009, "Matrix factorization techniques", Computer 42).

    Outputs: numbers of shape (batch, 1). Labels: numbers of shape (batch,). `hits` is the fraction of
    predictions that are the label after rounding to whole or half stars, as the labels are.
    """

    default_loss: ClassVar[str] = "MSELoss"
    labels_are_classes: ClassVar[bool] = False
    losses: ClassVar[tuple[type[nn.Module], ...]] = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)

    step: float = 0.5
    """The distance of two neighboring ratings, for `hits`."""

    def __post_init__(self) -> None:
        if self.step <= 0:
            raise BadInput.at("step", f"must be above 0, not {self.step:g}")

    def metrics(self, num_classes: int) -> tuple[MetricSpec, ...]:
        errors = (MetricSpec(name, higher_is_better=False) for name in ("rmse", "mae"))
        return (*errors, MetricSpec("hits", True, True), LOSS)

    def loss(self, outputs: Tensor, labels: Tensor, loss: nn.Module) -> Tensor:
        return super().loss(outputs.squeeze(1), labels.to(outputs.dtype), loss)

    def sums(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        guesses, labels = outputs.squeeze(1).double(), labels.double()
        errors = guesses - labels
        return {
            "squares": errors.square().sum(),
            "distances": errors.abs().sum(),
            "hits": ((guesses / self.step).round() == (labels / self.step).round()).sum(),
        }

    def values(self, sums: Mapping[str, float], count: float) -> dict[str, float]:
        return {
            "rmse": math.sqrt(sums["squares"] / count),
            "mae": sums["distances"] / count,
            "hits": sums["hits"] / count,
            "loss": sums["loss"] / count,
        }

    def check(self, dataset: LoadedDataset, loss: object) -> None:
        super().check(dataset, loss)
        if dataset.train.labels.dim() != 1:
            shape = tuple(dataset.train.labels.shape[1:])
            raise BadInput.at(
                "task", f"rating needs one label for each sample, not labels of shape {shape}; use regression"
            )
