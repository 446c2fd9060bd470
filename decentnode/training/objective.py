"""The function that training minimizes and evaluation measures: a network with a task and its loss."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from decentnode.core.vector import accumulator
from decentnode.datasets.base import Batch, Samples
from decentnode.errors import BadInput
from decentnode.training.computation import Computation
from decentnode.training.tasks.base import Task

PLAIN = Computation()


class Objective:
    """Outputs and loss of a batch, in the memory format and on the device of the network."""

    def __init__(
        self, module: nn.Module, loss: nn.Module, task: Task, channels_last: bool = False,
        computation: Computation = PLAIN,
    ) -> None:  # fmt: skip
        """Raises BadInput for a loss that is not one number."""
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
        self._computation = computation
        self._device = next(module.parameters()).device
        self.use(module)

    def use(self, module: nn.Module) -> None:
        """Takes this network, such as one that synchronizes the gradients of the same parameters."""
        self.module = module
        self._compiled = self._computation.compiled(module)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the outputs, as the task has them, and the loss, a scalar with a gradient."""
        with self._computation.autocast(self._device):
            # An evaluation is not compiled: it has other sizes of batches, and other nodes may wait for it.
            network = self._compiled if self.module.training else self.module
            outputs: Tensor = network(*map(self._placed, batch.fields))
            # A sum of exponentials in bfloat16 would have two digits.
            outputs = outputs.to(accumulator(outputs.dtype))
            loss = self._loss(outputs, batch.labels, batch.weights)
            if batch.mixed is not None:
                others, share = batch.mixed
                loss = share * loss + (1 - share) * self._loss(outputs, others, batch.weights)
        return outputs, loss

    def _loss(self, outputs: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        labels = labels.to(self._device)
        if weights is None:
            return self.task.loss(outputs, labels, self.loss)
        weights = weights.to(self._device)
        total = (weights * self.each(outputs, labels)).sum()
        return total if self.reduction == "sum" else total / weights.sum()

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, shape (batch,), given the outputs for them."""
        each = self.task.loss(outputs, labels.to(self._device), self._of_each)
        return each.reshape(len(labels), -1).mean(1)

    def shares(self, batches: Sequence[Batch]) -> list[tuple[Batch, float]]:
        """Each batch with the factor of its loss in the loss of all their samples as one batch.

        Those in which nothing counts, as their labels are ignored, are left out.
        """
        if self.reduction == "sum" or len(batches) == 1:
            return [(batch, 1.0) for batch in batches]
        counts = [self.count(batch) for batch in batches]
        total = sum(counts)
        counted = [(batch, count / total) for batch, count in zip(batches, counts, strict=True) if count]
        return counted or [(batches[0], 1.0)]

    def count(self, batch: Batch) -> float:
        """How many terms the mean loss of a batch has; with weights their sum."""
        return self.task.count(batch.labels) if batch.weights is None else float(batch.weights.sum())

    def total(self, loss: float, count: float) -> float:
        """The sum over a batch with the loss `loss`, whether the loss averages or sums."""
        return loss if self.reduction == "sum" else loss * count

    def sums(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The sums of the task's metrics over a batch."""
        return self.task.sums(outputs, batch.labels.to(self._device))

    def generated(
        self, samples: Samples, batch_size: int, beat: Callable[[], None] | None
    ) -> dict[str, float]:
        """The sums of what the task has the network generate for samples."""

        def network(*fields: Tensor) -> Tensor:
            with self._computation.autocast(self._device):
                outputs: Tensor = self.module(*map(self._placed, fields))
            return outputs.to(accumulator(outputs.dtype))

        return self.task.generated(network, samples, batch_size, beat=beat or (lambda: None))

    def _placed(self, field: Tensor) -> Tensor:
        if self._channels_last and field.dim() == 4:
            return field.to(self._device, memory_format=torch.channels_last)
        return field.to(self._device)
