"""The function that training minimizes and evaluation measures: a network with a task and its loss."""

import copy
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from decentnode.core.vector import DTYPES, accumulator
from decentnode.datasets.base import IGNORED, Batch, Samples, counts
from decentnode.errors import BadInput
from decentnode.models.outputs import main_output, named_outputs
from decentnode.training.computation import Computation
from decentnode.training.metrics.base import Predictions
from decentnode.training.tasks.base import Task

PLAIN = Computation()
LossWeights = Mapping[str, float] | tuple[float, ...] | None
"""The weights of the losses of outputs, by name or in their order; None: the main output alone has one."""


class Objective:
    """Outputs and loss of a batch, in the memory format and on the device of the network."""

    def __init__(
        self, module: nn.Module, loss: nn.Module, task: Task, channels_last: bool = False,
        computation: Computation = PLAIN, weights: LossWeights = None,
    ) -> None:  # fmt: skip
        """Raises BadInput for a loss that is not one number.

        `weights`: those of the losses of several outputs in training.
        """
        self.loss = loss
        self._weights = weights
        # Those of transformers compute a loss of their own where they are given labels.
        asks = isinstance(weights, Mapping) and bool(weights.get("loss"))
        self._gives_labels = asks and "labels" in signature(module.forward).parameters
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
        """Returns the main output, as the task has it, and the loss, a scalar with a gradient.

        In training mode the loss may have terms of other outputs, by the weights.
        """
        with self._computation.autocast(self._device):
            # An evaluation is not compiled: it has other sizes of batches, and other nodes may wait for it.
            network = self._compiled if self.module.training else self.module
            labels = {}
            if self._gives_labels and self.module.training:
                labels["labels"] = batch.labels.to(self._device)
            given: Any = network(*map(self._placed, batch.fields), **labels)
            outputs: Tensor = main_output(given)
            # A sum of exponentials in bfloat16 would have two digits.
            outputs = outputs.to(accumulator(outputs.dtype))
            if self._weights is not None and self.module.training:
                return outputs, self._weighted(given, batch)
            return outputs, self._of_batch(outputs, batch)

    def _weighted(self, given: Any, batch: Batch) -> Tensor:
        """The loss of several outputs; a scalar among them is a loss by itself. Raises BadInput."""
        named, weights = named_outputs(given), self._weights or ()
        if not isinstance(weights, Mapping):
            names = [*named, *map(str, range(len(named), len(weights)))]
            weights = dict(zip(names, weights, strict=False))
        total = torch.zeros((), device=self._device)
        for name, weight in {next(iter(named)): 1.0, **weights}.items():
            if not isinstance(output := named.get(name), Tensor):
                known = ", ".join(key for key, value in named.items() if isinstance(value, Tensor))
                what = f"the model gives no such output in training (it gives {known})"
                raise BadInput.at(f"training.loss_weights.{name}", what)
            output = output.to(accumulator(output.dtype))
            if weight:
                total = total + weight * (self._of_batch(output, batch) if output.dim() else output)
        return total

    def _of_batch(self, outputs: Tensor, batch: Batch) -> Tensor:
        loss = self._loss(outputs, batch.labels, batch.weights)
        if batch.mixed is not None:
            others, share = batch.mixed
            loss = share * loss + (1 - share) * self._loss(outputs, others, batch.weights)
        return loss

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

    def predictions(self, outputs: Tensor, batch: Batch) -> Predictions:
        """The predictions for a batch."""
        return self.task.predictions(outputs, batch.labels.to(self._device))

    def generated(
        self, samples: Samples, batch_size: int, beat: Callable[[], None] | None
    ) -> dict[str, float]:
        """The sums of what the task has the network generate for samples."""

        def network(*fields: Tensor) -> Tensor:
            with self._computation.autocast(self._device):
                outputs: Tensor = main_output(self.module(*map(self._placed, fields)))
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
