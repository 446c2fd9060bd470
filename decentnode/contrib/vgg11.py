"""VGG-11."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape
from decentnode.models.blocks.normalization import Norm, norm_of
from decentnode.models.blocks.residual import start_like_he
from decentnode.options import Positive, Probability

STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))
"""Channels of the convolutions between poolings, in widths: configuration A of the paper."""


@MODELS.register("vgg11")
@dataclass
class Vgg11(Model):
    """VGG-11, eight 3x3 convolutions and three linear layers (Simonyan and Zisserman, 2015, table 1, A).

    132,863,336 parameters on 3x224x224 images of 1,000 classes, and 132,868,840 with a norm, as in
    torchvision, and started as there. `{pooled: 1, hidden: []}` is the usual form for CIFAR-10: 9,225,610,
    and 9,231,114 with a norm.
    """

    norm: Literal["none", "batch", "group"] = "none"
    groups: Positive = 32
    """Groups per GroupNorm; must divide `width`."""
    width: Positive = 64
    """Channels of the first convolution; the last has eight times as many."""
    hidden: tuple[Positive, ...] = (4096, 4096)
    """The width of each linear layer before the last."""
    pooled: Positive = 7
    """The side to which features are pooled before the linear layers."""
    dropout: Probability = 0.5

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, _, _ = image_shape(shape, "vgg11", smallest=32)
        norm = None if self.norm == "none" else norm_of(self.norm, self.groups, self.width, model="vgg11")
        network = nn.Sequential(
            *convolutions(inputs, self.width, norm),
            nn.AdaptiveAvgPool2d(self.pooled),
            nn.Flatten(),
            *self._classifier(self.width * STAGES[-1][-1] * self.pooled**2, num_classes),
        )
        start_like_he(network)
        for part in network.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.01)
                nn.init.zeros_(part.bias)
        return network

    def _classifier(self, inputs: int, num_classes: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(self.dropout)]
            inputs = width
        return [*layers, nn.Linear(inputs, num_classes)]


def convolutions(inputs: int, width: int, norm: Norm | None) -> list[nn.Module]:
    """The convolutions with their poolings; they keep their bias where a norm follows, as in torchvision."""
    layers: list[nn.Module] = []
    for channels in STAGES:
        for outputs in (width * factor for factor in channels):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            layers += [norm(outputs)] if norm else []
            layers.append(nn.ReLU())
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return layers
