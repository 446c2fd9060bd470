"""The function that training minimizes and evaluation measures: a network with a task and its loss."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from decentnode.core.vector import DTYPES, accumulator
from decentnode.datasets.base import IGNORED, Batch, Samples, counts
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
        self._ignored = ignored_by(loss)
        self.reduction = getattr(loss, "reduction", "mean")
        if self.reduction == "none":
            raise BadInput(
                f"{type(loss).__name__}: reduction 'none' gives no single loss; use 'mean' or 'sum'"
            )
        self._device = next(module.parameters()).device
        # Its tensors, such as the weights of classes, are beside outputs, which are of this type.
        loss.to(self._device, accumulator(DTYPES[computation.dtype]))
        # The mean of these losses is one by the weights of the labels' classes. Where batches are, so that
        # no step waits for a GPU.
        is_weighted = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
        weight: Tensor | None = getattr(loss, "weight", None) if is_weighted else None
        self._class_weights = None if weight is None else weight.cpu()
        # For samples with weights.
        self._of_each = copy.copy(loss)
        self._of_each.reduction = "none"  # type: ignore[assignment]
        self._channels_last = channels_last
        self._computation = computation
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
        if weights is None:
            return self.task.loss(outputs, self._labels(labels), self.loss)
        weights = counted_weights(labels, weights).to(self._device)
        total = (weights * self.each(outputs, labels)).sum()
        return total if self.reduction == "sum" else total / weights.sum()

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, shape (batch,), given the outputs for them."""
        each = self.task.loss(outputs, self._labels(labels), self._of_each).reshape(len(labels), -1)
        if labels.dim() == 1 or labels.is_floating_point():
            return each.mean(1)
        counted = counts(labels).to(self._device).reshape(len(labels), -1).sum(1)
        mean: Tensor = each.sum(1) / counted.clamp(min=1)
        return mean

    def _labels(self, labels: Tensor) -> Tensor:
        """The labels as the loss has them."""
        labels = labels.to(self._device)
        return labels if self._ignored == IGNORED else labels.masked_fill(labels == IGNORED, self._ignored)

    def shares(self, batches: Sequence[Batch]) -> list[tuple[Batch, float]]:
        """Each batch with the factor of its loss in the loss of all their samples as one batch.

        Those in which nothing counts, as their labels are ignored, are left out; of nothing else the first
        one has the factor 0.
        """
        if self.reduction == "sum":
            return [(batch, 1.0) for batch in batches]
        sizes = [self.count(batch) for batch in batches]
        total = sum(sizes)
        counted = [(batch, size / total) for batch, size in zip(batches, sizes, strict=True) if size]
        return counted or [(batches[0], 0.0)]

    def count(self, batch: Batch) -> float:
        """How many terms the mean loss of a batch has; with weights of samples or classes their sum."""
        if batch.weights is not None:
            return float(counted_weights(batch.labels, batch.weights).sum())
        if self._class_weights is not None:
            return float(self._class_weights[batch.labels[counts(batch.labels)]].sum())
        return self.task.count(batch.labels)

    def counts_each(self, samples: Samples) -> bool:
        """Whether each sample is one term of the mean loss, so that batches have as many as samples."""
        labels = samples.labels
        if not isinstance(labels, Tensor) or samples.weights is not None or self._class_weights is not None:
            return False
        if not labels.is_floating_point():
            # In 64 bits, because torch has no comparison of 16 without sign.
            labels = labels.long()
            if not counts(labels, samples.ignored).all():
                return False
        return self.task.count(labels) == len(labels)

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


def counted_weights(labels: Tensor, weights: Tensor) -> Tensor:
    """The weights of samples, 0 for those of which no label counts; shape (batch,)."""
    if labels.is_floating_point():
        return weights
    counted: Tensor = weights * counts(labels).reshape(len(labels), -1).any(1)
    return counted


def ignored_by(loss: nn.Module) -> int:
    """The label that a loss ignores: its `ignore_index`, or that of a part of it; raises BadInput."""
    values = {getattr(part, "ignore_index", None) for part in loss.modules()}
    own = sorted(value for value in values if isinstance(value, int) and value != IGNORED)
    if len(own) > 1:
        name = type(loss).__name__
        raise BadInput.at("training.loss", f"parts of {name} ignore several labels: {own[0]} and {own[1]}")
    return own[0] if own else IGNORED
