"""ResNet-18, for small images or for those of ImageNet."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape
from decentnode.models.blocks.normalization import NormName, norm_of
from decentnode.models.blocks.residual import Bottleneck, ResidualBlock, Stem, stages, start_like_he, stem
from decentnode.options import Positive


@MODELS.register("resnet18")
@dataclass
class ResNet18(Model):
    """ResNet-18 with a 3x3 first layer for small images (He et al., 2016, sections 3.3 and 4.2).

    GroupNorm (Wu and He, 2018) is the default: batch statistics of non-IID nodes do not average
    (Hsieh et al., 2020, section 5). 11,173,962 parameters on 3x32x32 images of 10 classes; 11,689,512 with
    `stem: imagenet` on 3x224x224 images of 1,000 classes, as in torchvision, and started as there.
    """

    norm: NormName = "group"
    groups: Positive = 32
    """Groups per GroupNorm; must divide `width`."""
    width: Positive = 64
    """Channels of the first of four stages; each later stage has twice as many."""
    stem: Stem = "cifar"
    """The first layer: 3x3 (cifar), or 7x7 and a pooling that quarter the image (imagenet)."""

    name: ClassVar[str] = "resnet18"
    block: ClassVar[type[ResidualBlock] | type[Bottleneck]] = ResidualBlock
    depths: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)
    """Blocks of each stage."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, _, _ = image_shape(shape, self.name, smallest=8)
        norm = norm_of(self.norm, self.groups, self.width, model=self.name)
        first = stem(self.stem, inputs, self.width, norm=norm)
        blocks, outputs = stages(self.block, self.depths, self.width, norm=norm)
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outputs, num_classes))
        network = nn.Sequential(*first, *blocks, *head)
        if self.stem == "imagenet":
            start_like_he(network)
        return network
