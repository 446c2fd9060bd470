"""The small convolutional network of federated learning."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape
from decentnode.options import Positive


@MODELS.register("cnn")
@dataclass
class Cnn(Model):
    """Two 5x5 convolutions with pooling and one hidden layer (McMahan et al., 2017, section 3, "CNN").

    With the defaults 1,663,370 parameters on 1x28x28 images of 10 classes, as in the paper.
    """

    channels: tuple[Positive, Positive] = (32, 64)
    hidden: Positive = 512

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, height, width = image_shape(shape, "cnn", smallest=4)
        first, second = self.channels
        return nn.Sequential(
            nn.Conv2d(inputs, first, 5, padding=2),
            # Pooling before ReLU has the same result on a quarter of the elements.
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(first, second, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, num_classes),
        )
