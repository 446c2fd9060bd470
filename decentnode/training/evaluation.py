"""Evaluates a model: accuracy and loss on samples that it was not trained on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from decentnode.core.vector import ParameterLayout
from decentnode.datasets.base import Samples
from decentnode.errors import DatasetError
from decentnode.training.objective import Objective

BATCH_SIZE = 64
"""The fastest measured for convolutions on a CPU: larger activations exceed its caches."""


def evaluate(
    module: nn.Module,
    samples: Samples,
    loss: nn.Module,
    batch_size: int = BATCH_SIZE,
    channels_last: bool = False,
    beat: Callable[[], None] | None = None,
) -> dict[str, float]:
    """The metrics over all samples, by name, in evaluation mode; restores the mode of the module.

    accuracy: the fraction of labels that have the highest score, 0..1; loss: the mean over samples.
    `beat` is called after every batch.
    """
    if not len(samples):
        raise DatasetError("there are no samples to evaluate on; the test set is empty")
    objective = Objective(module, loss, channels_last)
    correct, total = 0, 0.0
    with evaluation_mode(module), torch.inference_mode():
        for start in range(0, len(samples), batch_size):
            indices = torch.arange(start, min(start + batch_size, len(samples)))
            inputs, labels = samples.batch(indices)
            scores, value = objective(inputs, labels)
            correct += int((scores.argmax(1) == labels.to(scores.device)).sum())
            total += objective.total(value.item(), len(indices))
            if beat is not None:
                beat()
    return {"accuracy": correct / samples.labels.numel(), "loss": total / len(samples)}


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Disables dropout and uses running batch statistics, then restores the mode of each part."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def load_flat(module: nn.Module, layout: ParameterLayout, flat: Tensor) -> None:
    """Copies a vector of shape (d,), such as the average model, into a module of the same layout."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for entry in layout.entries:
            tensors[entry.name].copy_(entry.view(flat))
