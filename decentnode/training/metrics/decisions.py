"""Metrics of the predicted classes, from counts: how often each class is right, predicted, and there."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.registry import METRICS
from decentnode.datasets.base import counts
from decentnode.errors import BadInput
from decentnode.training.metrics.base import OF_CLASSES, Kind, Measure, OfEach, Predictions, State


@METRICS.register("accuracy", "acc", "pixel_accuracy", "hamming_accuracy")
@dataclass(kw_only=True)
class Accuracy(Measure):
    """The fraction of labels that are predicted (Sokolova and Lapalme, 2009, table 2).

    Of several labels for a sample each counts by itself.
    """

    is_fraction: bool | None = True
    kinds: ClassVar[tuple[Kind, ...]] = OF_CLASSES

    def state(self, predictions: Predictions) -> Tensor:
        is_right = predictions.classes == predictions.labels
        return torch.stack([is_right.sum(), counts(predictions.labels).sum()])

    def value(self, state: State) -> Tensor:
        assert isinstance(state, Tensor)
        return state[0] / state[1]


@dataclass(kw_only=True)
class OfCounts(OfEach):
    """A ratio of counts: n_c right, p_c predicted, a_c actual labels of class c; of 0 of 0 it is 0.

    A class that is neither predicted nor in the samples has none (nan), and is no part of a mean, as in
    scikit-learn (Pedregosa et al., 2011) and torchmetrics.
    """

    is_fraction: bool | None = True
    kinds: ClassVar[tuple[Kind, ...]] = OF_CLASSES

    def parts(self, right: Tensor, predicted: Tensor, actual: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator and denominator of the ratio, of each class or of all together."""
        raise NotImplementedError

    def state(self, predictions: Predictions) -> Tensor:
        labels, guesses = predictions.labels, predictions.classes
        if predictions.kind == "multilabel":
            guesses = guesses * counts(labels)
            actual = labels == 1
            return torch.stack([(actual & (guesses == 1)).sum(0), guesses.sum(0), actual.sum(0)])
        of = labels[guesses == labels], guesses, labels
        return torch.stack([torch.bincount(part, minlength=predictions.width) for part in of])

    def each(self, state: State) -> Tensor:
        assert isinstance(state, Tensor)
        right, predicted, actual = state
        return _ratio(*self.parts(right, predicted, actual)).where(predicted + actual > 0, torch.nan)


class OfAll(OfCounts):
    """The ratio of all classes together."""

    def mean(self, state: State, each: Tensor) -> Tensor:
        assert isinstance(state, Tensor)
        return _ratio(*self.parts(*state.sum(1)))


class OfPositive(OfCounts):
    """The ratio of class 1 of two."""

    def check(self, kind: Kind, width: int) -> None:
        super().check(kind, width)
        if kind == "multilabel" or width != 2:
            raise BadInput(f"{self.stem} is of one class of two; use {self.stem}_macro or {self.stem}_micro")

    def mean(self, state: State, each: Tensor) -> Tensor:
        return each[1].nan_to_num()


class OfF1(OfCounts):
    """2 n / (p + a), the harmonic mean of precision and recall (van Rijsbergen, 1979, chapter 7)."""

    stem: ClassVar[str] = "f1"

    def parts(self, right: Tensor, predicted: Tensor, actual: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * right, predicted + actual


class OfPrecision(OfCounts):
    """n / p."""

    stem: ClassVar[str] = "precision"

    def parts(self, right: Tensor, predicted: Tensor, actual: Tensor) -> tuple[Tensor, Tensor]:
        return right, predicted


class OfRecall(OfCounts):
    """n / a."""

    stem: ClassVar[str] = "recall"

    def parts(self, right: Tensor, predicted: Tensor, actual: Tensor) -> tuple[Tensor, Tensor]:
        return right, actual


@METRICS.register("f1", "f1_binary", "f1_score")
@dataclass(kw_only=True)
class F1Score(OfPositive, OfF1):
    """F1 of class 1 of two: 2 n / (p + a) (van Rijsbergen, 1979, chapter 7)."""


@METRICS.register("f1_macro", "macro_f1")
@dataclass(kw_only=True)
class F1Macro(OfF1):
    """The mean of F1, 2 n / (p + a), over classes or labels (Sokolova and Lapalme, 2009, table 3)."""


@METRICS.register("f1_micro", "micro_f1")
@dataclass(kw_only=True)
class F1Micro(OfAll, OfF1):
    """F1 of all classes or labels together (Sokolova and Lapalme, 2009, table 3)."""


@METRICS.register("precision")
@dataclass(kw_only=True)
class PrecisionScore(OfPositive, OfPrecision):
    """Precision of class 1 of two: the right part of those predicted (van Rijsbergen, 1979, chapter 7)."""


@METRICS.register("precision_macro")
@dataclass(kw_only=True)
class PrecisionMacro(OfPrecision):
    """The mean precision of classes or labels (Sokolova and Lapalme, 2009, table 3)."""


@METRICS.register("precision_micro")
@dataclass(kw_only=True)
class PrecisionMicro(OfAll, OfPrecision):
    """Precision of all classes or labels together (Sokolova and Lapalme, 2009, table 3)."""


@METRICS.register("recall", "sensitivity")
@dataclass(kw_only=True)
class RecallScore(OfPositive, OfRecall):
    """Recall of class 1 of two: the part of its samples that is found (van Rijsbergen, 1979, chapter 7)."""


@METRICS.register("recall_macro")
@dataclass(kw_only=True)
class RecallMacro(OfRecall):
    """The mean recall of classes or labels (Sokolova and Lapalme, 2009, table 3)."""


@METRICS.register("recall_micro")
@dataclass(kw_only=True)
class RecallMicro(OfAll, OfRecall):
    """Recall of all classes or labels together (Sokolova and Lapalme, 2009, table 3)."""


@METRICS.register("balanced_accuracy", "bacc", "mean_accuracy")
@dataclass(kw_only=True)
class BalancedAccuracy(OfRecall):
    """The mean recall of the classes that the samples have (Brodersen et al., 2010, section 2)."""

    kinds: ClassVar[tuple[Kind, ...]] = ("binary", "multiclass")

    def mean(self, state: State, each: Tensor) -> Tensor:
        assert isinstance(state, Tensor)
        return each[state[2] > 0].mean()


@METRICS.register("mean_iou", "miou", "iou", "jaccard", "jaccard_macro", "jaccard_index")
@dataclass(kw_only=True)
class MeanIou(OfCounts):
    """The mean of n / (p + a - n), intersection over union, over classes (Everingham et al., 2015, VOC)."""

    stem: ClassVar[str] = "iou"

    def parts(self, right: Tensor, predicted: Tensor, actual: Tensor) -> tuple[Tensor, Tensor]:
        return right, predicted + actual - right


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, 0.0)
