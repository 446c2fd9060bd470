"""A model: any torch.nn.Module."""

from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from decentnode.models import Model
from decentnode.options import Positive


class MyNetwork(nn.Module):
    """One hidden layer."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1)).relu())


@dataclass
class MyModel(Model):
    """Fits the network to the data set; the fields are the options in YAML."""

    hidden: Positive = 32

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Returns the network for samples of this shape; all nodes start from one copy."""
        return MyNetwork(prod(shape), self.hidden, num_classes)
