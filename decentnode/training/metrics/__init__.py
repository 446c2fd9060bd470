"""The metrics that `evaluation.metrics` names."""

from decentnode.training.metrics.base import Measure, MetricSpec, Predictions
from decentnode.training.metrics.decisions import Accuracy, BalancedAccuracy, F1Macro, MeanIou
from decentnode.training.metrics.distances import R2, MeanAbsoluteError, RootMeanSquaredError
from decentnode.training.metrics.probabilities import Auroc, AveragePrecision, CalibrationError, Perplexity

__all__ = [
    "R2", "Accuracy", "Auroc", "AveragePrecision", "BalancedAccuracy", "CalibrationError", "F1Macro",
    "MeanAbsoluteError", "MeanIou", "Measure", "MetricSpec", "Perplexity", "Predictions",
    "RootMeanSquaredError",
]  # fmt: skip
