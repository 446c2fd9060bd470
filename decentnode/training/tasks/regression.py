"""One number for each sample, or several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from decentnode.core.registry import TASKS
from decentnode.datasets.base import Samples
from decentnode.datasets.ragged import Ragged
from decentnode.errors import BadInput
from decentnode.training.metrics import R2, MeanAbsoluteError, Measure, Predictions, RootMeanSquaredError
from decentnode.training.tasks.measured import Measured


@TASKS.register("regression")
@dataclass(kw_only=True)
class Regression(Measured):
    """RMSE, MAE and R2 of predicted numbers (Wright, 1921).

    Outputs and labels: shape (batch, numbers). With labels of shape (batch,), outputs may be (batch, 1), too.
    """

    default_loss: ClassVar[str] = "MSELoss"
    labels_are_classes: ClassVar[bool] = False
    num_classes: ClassVar[int | None] = 1
    losses: ClassVar[tuple[type[nn.Module], ...]] = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)

    per_output: bool = False
    """Adds the metrics of each number, such as `rmse_of_0`."""

    def shapes(self, num_classes: int, label_shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        several = tuple(label_shape)
        return (several,) if len(several) == 1 else ((1, *several), several)

    def measures(self) -> tuple[Measure, ...]:
        of_errors = (RootMeanSquaredError, MeanAbsoluteError, R2)
        return tuple(metric(per_class=self.per_output) for metric in of_errors)

    def loss(self, outputs: Tensor, labels: Tensor, loss: nn.Module) -> Tensor:
        return super().loss(outputs.reshape(labels.shape), labels.to(outputs.dtype), loss)

    def predictions(self, outputs: Tensor, labels: Tensor) -> Predictions:
        places = labels if labels.dim() < 3 else labels.flatten()
        return Predictions("regression", outputs.reshape(places.shape), places)

    def labelled(self, samples: Samples) -> Samples:
        labels = samples.labels
        if isinstance(labels, Ragged):
            raise BadInput.at("task", "regression needs labels of one shape, not of several lengths")
        # Whole numbers, such as ages, are numbers, too.
        if isinstance(labels, Tensor) and not labels.is_floating_point():
            return replace(samples, labels=labels.to(samples.dtype))
        return samples
