"""Metrics of predicted probabilities: how they order samples, and whether they are true."""

from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decentnode.core.registry import METRICS
from decentnode.errors import BadInput
from decentnode.options import Positive
from decentnode.training.metrics.base import OF_CLASSES, Kind, Measure, OfEach, Predictions, State

MOST_EXPONENT = 700.0
"""The largest exponent whose exp is a finite number of 64 bits."""


@dataclass(kw_only=True)
class OfOrder(OfEach):
    """A metric of the order in which probabilities put samples, one class against the others.

    All predictions of an evaluation are kept until its end: it is exact, and no sum of batches. A class has
    none (nan) that no sample has, or for AUC all; it is no part of the mean.
    """

    is_fraction: bool | None = True
    kinds: ClassVar[tuple[Kind, ...]] = OF_CLASSES

    def of_one(self, positive: Tensor, negative: Tensor) -> Tensor:
        """The number of one class, from how many samples of it, and of others, have each probability.

        Both are float64, of shape (distinct probabilities,), from the lowest on.
        """
        raise NotImplementedError

    def check(self, kind: Kind, width: int) -> None:
        super().check(kind, width)
        if self.per_class and kind == "binary":
            raise BadInput("per_class needs several classes or labels; leave it out")

    def each(self, state: State) -> Tensor:
        assert isinstance(state, Predictions)
        return torch.stack([self._of(values, is_right) for values, is_right in state.by_class])

    def _of(self, values: Tensor, is_right: Tensor) -> Tensor:
        distinct, places = torch.unique(values, return_inverse=True)
        counted = (torch.bincount(places[part], minlength=len(distinct)) for part in (is_right, ~is_right))
        return self.of_one(*(count.double() for count in counted))


@METRICS.register("auroc", "auc", "roc_auc", "roc_auc_ovr")
@dataclass(kw_only=True)
class Auroc(OfOrder):
    """The area under the ROC curve: P(s_i > s_j) + P(s_i = s_j) / 2, i of a class and j not (Fawcett, 2006).

    Of several classes the mean of one against all others.
    """

    stem: ClassVar[str] = "auroc"

    def of_one(self, positive: Tensor, negative: Tensor) -> Tensor:
        below = negative.cumsum(0) - negative
        return (positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum())


@METRICS.register("average_precision", "ap", "map", "mean_average_precision", "auprc", "pr_auc")
@dataclass(kw_only=True)
class AveragePrecision(OfOrder):
    """sum_k (R_k - R_(k-1)) P_k over the thresholds, from the highest on (Buckley and Voorhees, 2000).

    Of several classes the mean of one against all others.
    """

    stem: ClassVar[str] = "average_precision"

    def of_one(self, positive: Tensor, negative: Tensor) -> Tensor:
        positive, negative = positive.flip(0), negative.flip(0)
        right, wrong = positive.cumsum(0), negative.cumsum(0)
        return (positive * right / (right + wrong)).sum() / positive.sum()


@METRICS.register("ece", "calibration_error", "expected_calibration_error")
@dataclass(kw_only=True)
class CalibrationError(Measure):
    """sum_b n_b / n |accuracy_b - confidence_b|, by bins of equal width (Guo et al., 2017, equation 3).

    The confidence is the highest probability; of one logit it is the probability of class 1, and the
    accuracy the fraction of that class.
    """

    bins: Positive = 15
    higher_is_better: bool | None = False
    is_fraction: bool | None = True
    kinds: ClassVar[tuple[Kind, ...]] = ("binary", "multiclass")

    def state(self, predictions: Predictions) -> Tensor:
        if predictions.kind == "binary":
            confidence, is_right = predictions.values, predictions.labels == 1
        else:
            confidence, guesses = predictions.values.max(1)
            is_right = guesses == predictions.labels
        # Bins include their lower ends, and the last one 1.
        places = (confidence * self.bins).long().clamp(max=self.bins - 1)
        of = confidence, is_right.double()
        return torch.stack(
            [torch.bincount(places, values, minlength=self.bins) for values in of]
            + [torch.bincount(places, minlength=self.bins).double()]
        )

    def value(self, state: State) -> Tensor:
        assert isinstance(state, Tensor)
        confidence, right, count = state
        error: Tensor = (right - confidence).abs().sum() / count.sum()
        return error


@METRICS.register("perplexity", "ppl")
@dataclass(kw_only=True)
class Perplexity(Measure):
    """exp(mean of -log p) of the labels (Jelinek et al., 1977)."""

    higher_is_better: bool | None = False
    kinds: ClassVar[tuple[Kind, ...]] = ("multiclass",)

    def state(self, predictions: Predictions) -> Tensor:
        surprise = cross_entropy(predictions.scores.double(), predictions.labels, reduction="sum")
        return torch.stack([surprise, surprise.new_tensor(len(predictions.labels))])

    def value(self, state: State) -> float:
        assert isinstance(state, Tensor)
        surprise = float(state[0] / state[1])
        return inf if surprise >= MOST_EXPONENT else exp(surprise)
