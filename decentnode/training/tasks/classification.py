"""One class for each sample, or for each position of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decentnode.core.registry import TASKS
from decentnode.datasets.base import IGNORED, LoadedDataset, counts
from decentnode.datasets.ragged import dense
from decentnode.errors import BadInput
from decentnode.options import Positive
from decentnode.training.metrics.base import MetricSpec
from decentnode.training.tasks.base import LOSS, Task, share

PER_CLASS_LOSSES = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss,
    nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss,
)  # fmt: skip
"""Losses that compare each score with a target of its own and need one-hot labels."""
ALL_COUNT = (*PER_CLASS_LOSSES, nn.MultiMarginLoss)
"""Losses of torch in which all labels count."""
ACCURACY = MetricSpec("accuracy", higher_is_better=True, is_fraction=True)


@TASKS.register("classification")
@dataclass(kw_only=True)
class Classification(Task):
    """Accuracy, and as options top-k and per-class accuracy (Russakovsky et al., 2015, ImageNet, section 4).

    Outputs: scores of shape (batch, classes, *label_shape). With one class there is only the loss.
    """

    top_k: tuple[Positive, ...] = ()
    """Adds the fraction of labels among the k highest scores, for each of these k."""
    per_class: bool = False
    """Adds the accuracy of the samples of each class."""

    def metrics(self, num_classes: int) -> tuple[MetricSpec, ...]:
        if num_classes == 1:
            return (LOSS,)
        of_classes = range(num_classes if self.per_class else 0)
        more = [f"top_{k}_accuracy" for k in self.top_k] + [f"accuracy_of_{c}" for c in of_classes]
        return (ACCURACY, LOSS, *(MetricSpec(name, True, True) for name in more))

    def loss(self, outputs: Tensor, labels: Tensor, loss: nn.Module) -> Tensor:
        if isinstance(loss, PER_CLASS_LOSSES):
            # Not torch's one_hot, which looks at the values, and so has no rule for several nodes at once.
            is_class = labels.unsqueeze(-1) == torch.arange(outputs.shape[1], device=labels.device)
            labels = is_class.movedim(-1, 1).to(outputs.dtype)
        return super().loss(outputs, labels, loss)

    def sums(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        # No class is the one of a label that does not count, so none of these is right.
        is_right = outputs.argmax(1) == labels
        sums = {"right": is_right.sum(), "labels": counts(labels).sum()}
        for k in self.top_k:
            sums[f"right_{k}"] = (outputs.topk(k, 1).indices == labels.unsqueeze(1)).sum()
        if self.per_class:
            classes = outputs.shape[1]
            for c, (right, all_of_it) in enumerate(
                zip(
                    torch.bincount(labels[is_right], minlength=classes),
                    torch.bincount(labels[counts(labels)], minlength=classes),
                    strict=True,
                )
            ):
                sums |= {f"right_of_{c}": right, f"labels_of_{c}": all_of_it}
        return sums

    def count(self, labels: Tensor) -> int:
        return int(counts(labels).sum())

    def values(self, sums: Mapping[str, float], count: float) -> dict[str, float]:
        labels = sums["labels"]
        # nan where nothing counts, such as a class of which the test set has no sample.
        metrics = {"accuracy": share(sums["right"], labels), "loss": share(sums["loss"], count)}
        metrics |= {f"top_{k}_accuracy": share(sums[f"right_{k}"], labels) for k in self.top_k}
        classes = [name.removeprefix("labels_of_") for name in sums if name.startswith("labels_of_")]
        return metrics | {
            f"accuracy_of_{c}": share(sums[f"right_of_{c}"], sums[f"labels_of_{c}"]) for c in classes
        }

    def check(self, dataset: LoadedDataset, loss: object) -> None:
        super().check(dataset, loss)
        if dataset.num_classes == 1 and loss is nn.CrossEntropyLoss:
            raise BadInput.at(
                "training.loss", "CrossEntropyLoss is always 0 where there is one class; use NLLLoss"
            )
        if too_large := [k for k in self.top_k if k > dataset.num_classes]:
            raise BadInput.at("task.top_k", f"{too_large[0]} is more than the {dataset.num_classes} classes")
        if isinstance(loss, type) and issubclass(loss, ALL_COUNT):
            samples = (dataset.train, dataset.test)
            if not all(bool(counts(dense(part.labels), part.ignored).all()) for part in samples):
                raise BadInput.at(
                    "training.loss",
                    f"{loss.__name__} ignores no label, and some are {IGNORED}; use CrossEntropyLoss",
                )
