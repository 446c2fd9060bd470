"""Metrics of predicted numbers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.registry import METRICS
from decentnode.training.metrics.base import Kind, OfEach, Predictions, State


@dataclass(kw_only=True)
class OfErrors(OfEach):
    """A metric of the errors of each output, from sums over samples."""

    kinds: ClassVar[tuple[Kind, ...]] = ("regression",)

    def of(self, errors: Tensor) -> Tensor:
        """What of the errors of a batch is averaged, of their shape."""
        raise NotImplementedError

    def state(self, predictions: Predictions) -> Tensor:
        errors = self.of(predictions.values - predictions.labels.double()).reshape(
            len(predictions.labels), -1
        )
        return torch.stack([errors.sum(0), torch.full_like(errors[0], len(errors))])

    def each(self, state: State) -> Tensor:
        assert isinstance(state, Tensor)
        return state[0] / state[1]


@METRICS.register("mse", "mean_squared_error")
@dataclass(kw_only=True)
class MeanSquaredError(OfErrors):
    """The mean squared error of all outputs (Gauss, 1823)."""

    higher_is_better: bool | None = False
    stem: ClassVar[str] = "mse"

    def of(self, errors: Tensor) -> Tensor:
        return errors.square()


@METRICS.register("rmse", "root_mean_squared_error")
@dataclass(kw_only=True)
class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean squared error of all outputs (Willmott and Matsuura, 2005)."""

    stem: ClassVar[str] = "rmse"

    def each(self, state: State) -> Tensor:
        return super().each(state).sqrt()

    def mean(self, state: State, each: Tensor) -> Tensor:
        return super().each(state).mean().sqrt()


@METRICS.register("mae", "mean_absolute_error")
@dataclass(kw_only=True)
class MeanAbsoluteError(OfErrors):
    """The mean absolute error of all outputs (Willmott and Matsuura, 2005)."""

    higher_is_better: bool | None = False
    stem: ClassVar[str] = "mae"

    def of(self, errors: Tensor) -> Tensor:
        return errors.abs()


@METRICS.register("r2", "r2_score", "r_squared")
@dataclass(kw_only=True)
class R2(OfEach):
    """1 - sum (y - f)^2 / sum (y - mean of y)^2, the mean over outputs (Wright, 1921).

    An output whose labels are all equal has none (nan).
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("regression",)
    stem: ClassVar[str] = "r2"

    def each(self, state: State) -> Tensor:
        assert isinstance(state, Predictions)
        labels = state.labels.double().reshape(len(state.labels), -1)
        rest = (labels - state.values.reshape(labels.shape)).square().sum(0)
        spread = (labels - labels.mean(0)).square().sum(0)
        return (1 - rest / spread).where(spread > 0, torch.nan)
