"""The convex baseline."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, perceptron


@MODELS.register("logistic_regression", "log_reg", "logistic")
@dataclass
class LogisticRegression(Model):
    """One linear layer from the flattened sample to the classes (Cox, 1958, section 2)."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return perceptron(shape, (num_classes,))
