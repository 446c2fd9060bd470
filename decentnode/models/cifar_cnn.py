"""The smallest convolutional network for CIFAR-10."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape


@MODELS.register("cifar_cnn", "lenet5", "cnn_cifar", "cnn_cifar10")
@dataclass
class CifarCnn(Model):
    """LeNet-5 with ReLU and max pooling (LeCun et al., 1998; class CNN of CIFAR10 in Dhasade et al., 2023).

    62,006 parameters on 3x32x32 images of 10 classes, as in decentralizepy.
    """

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, height, width = image_shape(shape, "cifar_cnn", smallest=16)
        return nn.Sequential(
            nn.Conv2d(inputs, 6, 5),
            # Pooling before ReLU has the same result on a quarter of the elements.
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * side(side(height)) * side(side(width)), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )


def side(before: int) -> int:
    """The side of an image after a 5x5 convolution without padding and 2x2 pooling."""
    return (before - 4) // 2
