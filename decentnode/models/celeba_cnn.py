"""The network of the CelebA experiments."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape
from decentnode.options import Positive

LAYERS = 4


@MODELS.register("celeba_cnn", "cnn_celeba")
@dataclass
class CelebaCnn(Model):
    """Four 3x3 convolutions, each at half the resolution (Caldas et al., 2018, "LEAF", CelebA).

    30,242 parameters on 3x84x84 images of 2 classes, as in decentralizepy (Dhasade et al., 2023), which
    leaves out LEAF's batch norm.
    """

    channels: Positive = 32
    """Channels of each convolution."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, height, width = image_shape(shape, "celeba_cnn", smallest=1 << LAYERS)
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Conv2d(inputs, self.channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
            inputs = self.channels
        features = self.channels * (height >> LAYERS) * (width >> LAYERS)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, num_classes))
