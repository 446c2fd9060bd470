"""ResNet-8, as decentralizepy has it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape
from decentnode.models.blocks.normalization import NormName, norm_of
from decentnode.models.blocks.residual import ResidualBlock, stages, stem
from decentnode.options import Positive


class ResNet8Network(nn.Module):
    """The network, with the second classifier and the label embedding that its forward pass leaves out."""

    def __init__(self, features: nn.Sequential, width: int, num_classes: int) -> None:
        """`features` turns images into `width` numbers."""
        super().__init__()
        self.features = features
        self.linear1 = nn.Linear(width, num_classes)
        self.linear2 = nn.Linear(width, num_classes)
        self.emb = nn.Embedding(num_classes, num_classes, _weight=torch.eye(num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Shape (batch, channels, height, width) to (batch, classes)."""
        scores: Tensor = self.linear1(self.features(images))
        return scores


@MODELS.register("resnet8")
@dataclass
class ResNet8(Model):
    """ResNet-8 of three wide blocks for CIFAR-10 (He et al., 2016; class ResNet8 of Dhasade et al., 2023).

    4,932,344 parameters on 3x32x32 images of 10 classes, as in decentralizepy. That counts two layers that
    no score depends on; their 20,590 parameters are sent like all others. BatchNorm is as published.
    """

    norm: NormName = "batch"
    groups: Positive = 32
    """Groups per GroupNorm; must divide `width`."""
    width: Positive = 128
    """Channels of the first of three blocks; each later block has twice as many."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, height, width = image_shape(shape, "resnet8", smallest=16)
        norm = norm_of(self.norm, self.groups, self.width, model="resnet8")
        blocks, outputs = stages(ResidualBlock, (1, 1, 1), self.width, norm=norm)
        features = nn.Sequential(
            *stem("cifar", inputs, self.width, norm=norm), *blocks, nn.AvgPool2d(4), nn.Flatten()
        )
        # Two strides of 2 that round up, then pooling that rounds down.
        pooled = (-(-height // 4) // 4) * (-(-width // 4) // 4)
        return ResNet8Network(features, outputs * pooled, num_classes)
