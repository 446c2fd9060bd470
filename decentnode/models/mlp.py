"""Fully connected layers."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, perceptron
from decentnode.options import Positive


@MODELS.register("mlp")
@dataclass
class Mlp(Model):
    """Fully connected layers with ReLU between them (McMahan et al., 2017, "2NN": hidden (200, 200))."""

    hidden: tuple[Positive, ...] = (64,)
    """The width of each hidden layer, first to last."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return perceptron(shape, (*self.hidden, num_classes))
