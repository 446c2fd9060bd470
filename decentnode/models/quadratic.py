"""A model whose training is a quadratic function, for problems with a known answer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decentnode.core.registry import MODELS
from decentnode.errors import BadInput
from decentnode.models.base import Model


class GaussianMean(nn.Module):
    """The mean x of a Gaussian; the score of (a, b) is the log-density of b at precision a."""

    def __init__(self, start: Tensor) -> None:
        """`start`: shape (dimension,)."""
        super().__init__()
        self.x = nn.Parameter(start)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns -a/2 |x - b|^2 without the constant, (batch, 1); inputs (a, b): (batch, 2, dimension)."""
        a, b = inputs.unbind(1)
        score: Tensor = -0.5 * (a * (self.x - b).square()).sum(1, keepdim=True)
        return score


@MODELS.register("quadratic")
@dataclass
class Quadratic(Model):
    """A point x whose only score is -f(x), for dataset `quadratic` and NLLLoss (Shi et al., 2015, section 4).

    The loss is then f itself, and the reported accuracy is always 1.
    """

    start: float = 0.0
    """Every coordinate of x at the start."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if len(shape) != 2 or shape[0] != 2 or num_classes != 1:
            raise BadInput.at("model", "quadratic takes the samples of dataset quadratic, and no other")
        return GaussianMean(torch.full(shape[1:], self.start))
