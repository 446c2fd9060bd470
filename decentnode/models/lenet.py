"""LeNet with group normalization, the network of the decentralized CIFAR-10 literature."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape

GROUPS = 2


@MODELS.register("lenet")
@dataclass
class LeNet(Model):
    """GN-LeNet: three 5x5 convolutions with GroupNorm (Hsieh et al., 2020, "The non-IID data quagmire").

    89,834 parameters on 3x32x32 images of 10 classes, as in decentralizepy (Dhasade et al., 2023).
    """

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, height, width = image_shape(shape, "lenet", smallest=8)
        return nn.Sequential(
            *stage(inputs, 32),
            *stage(32, 32),
            *stage(32, 64),
            nn.Flatten(),
            nn.Linear(64 * (height // 8) * (width // 8), num_classes),
        )


def stage(inputs: int, outputs: int) -> list[nn.Module]:
    """Builds one convolution, normalized, at half the resolution.

    Pooling before ReLU has the same result as after it, on a quarter of the elements.
    """
    convolution = nn.Conv2d(inputs, outputs, 5, padding=2)
    return [convolution, nn.GroupNorm(GROUPS, outputs), nn.MaxPool2d(2), nn.ReLU()]
