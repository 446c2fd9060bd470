"""The function that training minimizes and evaluation measures: a network with a task and its loss."""

import copy

import torch
from torch import Tensor, nn

from decentnode.core.vector import accumulator
from decentnode.datasets.base import Batch
from decentnode.errors import BadInput
from decentnode.training.tasks.base import Task


class Objective:
    """Outputs and loss of a batch, in the memory format and on the device of the network."""

    def __init__(self, module: nn.Module, loss: nn.Module, task: Task, channels_last: bool = False) -> None:
        """Raises BadInput for a loss that is not one number."""
        self.module = module
        self.loss = loss
        self.task = task
        self.reduction = getattr(loss, "reduction", "mean")
        if self.reduction == "none":
            raise BadInput(
                f"{type(loss).__name__}: reduction 'none' gives no single loss; use 'mean' or 'sum'"
            )
        # For samples with weights.
        self._of_each = copy.copy(loss)
        self._of_each.reduction = "none"  # type: ignore[assignment]
        self._channels_last = channels_last
        self._device = next(module.parameters()).device

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Outputs, as the task has them, and the loss, a scalar with a gradient."""
        outputs: Tensor = self.module(*map(self._placed, batch.fields))
        # A sum of exponentials in bfloat16 would have two digits.
        outputs, labels = outputs.to(accumulator(outputs.dtype)), batch.labels.to(self._device)
        if batch.weights is None:
            return outputs, self.task.loss(outputs, labels, self.loss)
        weights = batch.weights.to(self._device)
        each = self.task.loss(outputs, labels, self._of_each).reshape(len(labels), -1).mean(1)
        total = (weights * each).sum()
        return outputs, total if self.reduction == "sum" else total / weights.sum()

    def count(self, batch: Batch) -> float:
        """How many terms the mean loss of a batch has; with weights their sum."""
        return self.task.count(batch.labels) if batch.weights is None else float(batch.weights.sum())

    def total(self, loss: float, count: float) -> float:
        """The sum over a batch with the loss `loss`, whether the loss averages or sums."""
        return loss if self.reduction == "sum" else loss * count

    def sums(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The sums of the task's metrics over a batch."""
        return self.task.sums(outputs, batch.labels.to(self._device))

    def _placed(self, field: Tensor) -> Tensor:
        if self._channels_last and field.dim() == 4:
            return field.to(self._device, memory_format=torch.channels_last)
        return field.to(self._device)
