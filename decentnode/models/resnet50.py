"""ResNet-50, the network of the ImageNet experiments."""

from dataclasses import dataclass
from typing import ClassVar

from decentnode.core.registry import MODELS
from decentnode.models.blocks.residual import Bottleneck, ResidualBlock, Stem
from decentnode.models.resnet18 import ResNet18


@MODELS.register("resnet50")
@dataclass
class ResNet50(ResNet18):
    """ResNet-50 with bottlenecks for images of 224x224 (He et al., 2016, table 1).

    25,557,032 parameters on 3x224x224 images of 1,000 classes, as in torchvision, and started as there.
    GroupNorm is the default, as in `resnet18`; the published network has `norm: batch`.
    """

    stem: Stem = "imagenet"
    """The first layer: 3x3 (cifar), or 7x7 and a pooling that quarter the image (imagenet)."""

    name: ClassVar[str] = "resnet50"
    block: ClassVar[type[ResidualBlock] | type[Bottleneck]] = Bottleneck
    depths: ClassVar[tuple[int, ...]] = (3, 4, 6, 3)
