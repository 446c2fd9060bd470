"""Whether something is true: of each sample, or of each of several labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from decentnode.core.registry import TASKS, name_of
from decentnode.datasets.base import IGNORED, Samples, counts
from decentnode.datasets.ragged import Ragged
from decentnode.errors import BadInput
from decentnode.training.metrics import Accuracy, F1Macro, Measure, Predictions
from decentnode.training.metrics.base import Kind
from decentnode.training.tasks.measured import Measured

SURELY_NOT = -1e4
"""A logit whose loss beside a label of 0, and its gradient, are exactly 0."""


@dataclass(kw_only=True)
class Logits(Measured):
    """A task of log-odds, one for each label of 0 or 1; labels of -100 do not count."""

    default_loss: ClassVar[str] = "BCEWithLogitsLoss"
    losses: ClassVar[tuple[type[nn.Module], ...]] = (nn.BCEWithLogitsLoss,)
    num_classes: ClassVar[int | None] = 2

    def loss(self, outputs: Tensor, labels: Tensor, loss: nn.Module) -> Tensor:
        outputs, counted = outputs.reshape(labels.shape), counts(labels)
        # Not by choosing some, which has no rule for several nodes at once.
        value = super().loss(
            outputs.where(counted, SURELY_NOT), labels.where(counted, 0).to(outputs.dtype), loss
        )
        is_mean = not value.dim() and getattr(loss, "reduction", "mean") == "mean"
        return value * counted.numel() / counted.sum() if is_mean else value

    def count(self, labels: Tensor) -> int:
        return int(counts(labels).sum())

    def labelled(self, samples: Samples) -> Samples:
        labels = samples.labels
        if isinstance(labels, Ragged):
            raise BadInput.at("task", f"{name_of(self)} needs labels of one shape, not of several lengths")
        if not isinstance(labels, Tensor):
            return samples
        found = labels[counts(labels, samples.ignored)]
        if len(wrong := found[(found != 0) & (found != 1)]):
            what = f"{name_of(self)} needs labels that are 0 or 1, not {wrong[0].item():g}"
            raise BadInput.at("task", f"{what}; those that do not count are {IGNORED}")
        return replace(samples, labels=labels.long())


@TASKS.register("binary", "binary_classification")
@dataclass(kw_only=True)
class Binary(Logits):
    """Accuracy of two classes by one number, the log-odds of class 1 (Cox, 1958, logistic regression).

    Outputs: shape (batch,) or (batch, 1), or those of `label_shape` for each pixel or position.
    """

    @property
    def kind(self) -> Kind:
        return "binary"

    def shapes(self, num_classes: int, label_shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return ((1, *label_shape), tuple(label_shape))

    def measures(self) -> tuple[Measure, ...]:
        return (Accuracy(),)

    def predictions(self, outputs: Tensor, labels: Tensor) -> Predictions:
        counted = counts(labels)
        return Predictions("binary", outputs.reshape(labels.shape)[counted], labels[counted].long())


@TASKS.register("multi_label", "multilabel", "multi_label_classification")
@dataclass(kw_only=True)
class MultiLabel(Logits):
    """Macro F1 and accuracy of several labels for a sample, each 0 or 1 (Tsoumakas and Katakis, 2007).

    Outputs: log-odds, shape (batch, labels). Labels: shape (n, labels).
    """

    labels_show_ranks: ClassVar[bool] = False

    @property
    def kind(self) -> Kind:
        return "multilabel"

    def shapes(self, num_classes: int, label_shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return (tuple(label_shape),)

    def measures(self) -> tuple[Measure, ...]:
        return F1Macro(), Accuracy()

    def predictions(self, outputs: Tensor, labels: Tensor) -> Predictions:
        return Predictions("multilabel", outputs.reshape(labels.shape), labels.long())

    def labelled(self, samples: Samples) -> Samples:
        if samples.labels.dim() != 2:
            shape = tuple(samples.labels.shape)
            raise BadInput.at(
                "task", f"multi_label needs labels of shape (n, labels), not {shape}; a 0 or 1 each"
            )
        return super().labelled(samples)
