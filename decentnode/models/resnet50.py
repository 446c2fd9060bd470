"""ResNet-50, the network of the ImageNet experiments."""

from dataclasses import dataclass

from torch import nn

from decentnode.core.registry import MODELS
from decentnode.models.base import Model, image_shape
from decentnode.models.blocks.normalization import NormName, norm_of
from decentnode.models.blocks.residual import Bottleneck, Stem, stages, start_like_he, stem
from decentnode.options import Positive


@MODELS.register("resnet50")
@dataclass
class ResNet50(Model):
    """ResNet-50 with bottlenecks for images of 224x224 (He et al., 2016, table 1).

    25,557,032 parameters on 3x224x224 images of 1,000 classes, as in torchvision, and started as there.
    GroupNorm is the default, as in `resnet18`; the published network has `norm: batch`.
    """

    norm: NormName = "group"
    groups: Positive = 32
    """Groups per GroupNorm; must divide `width`."""
    width: Positive = 64
    """Channels of the first 3x3 convolutions; each of four stages has twice as many as the one before."""
    stem: Stem = "imagenet"
    """The first layer: 3x3 (cifar), or 7x7 and a pooling that quarter the image (imagenet)."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, _, _ = image_shape(shape, "resnet50", smallest=8)
        norm = norm_of(self.norm, self.groups, self.width, "resnet50")
        first = stem(self.stem, inputs, self.width, norm)
        blocks, outputs = stages(Bottleneck, (3, 4, 6, 3), self.width, norm)
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outputs, num_classes))
        network = nn.Sequential(*first, *blocks, *head)
        start_like_he(network)
        return network
