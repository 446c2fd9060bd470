"""The convex baseline."""

from dataclasses import dataclass

from torch import nn

from decentnode.models.base import Model, perceptron
from decentnode.registry import MODELS


@MODELS.register("logistic_regression")
@dataclass
class LogisticRegression(Model):
    """One linear layer from the flattened sample to the classes (Cox, 1958, section 2)."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return perceptron(shape, (num_classes,))
