"""ResNet-18 for small images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from decentnode.core.registry import MODELS
from decentnode.errors import BadInput
from decentnode.models.base import Model, image_shape
from decentnode.options import Positive

Norm = Callable[[int], nn.Module]


@MODELS.register("resnet18")
@dataclass
class ResNet18(Model):
    """ResNet-18 with a 3x3 first layer for small images (He et al., 2016, sections 3.3 and 4.2).

    GroupNorm (Wu and He, 2018) is the default: batch statistics of non-IID nodes do not average
    (Hsieh et al., 2020, section 5). 11,173,962 parameters on 3x32x32 images of 10 classes.
    """

    norm: Literal["group", "batch"] = "group"
    groups: Positive = 32
    """Groups per GroupNorm; must divide `width`."""
    width: Positive = 64
    """Channels of the first of four stages; each later stage has twice as many."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, _, _ = image_shape(shape, "resnet18", smallest=8)
        norm = self._norm()
        layers: list[nn.Module] = [convolution(inputs, self.width, 3), norm(self.width), nn.ReLU()]
        before = self.width
        for stage in range(4):
            outputs = self.width << stage
            layers += [
                ResidualBlock(before, outputs, 1 if stage == 0 else 2, norm),
                ResidualBlock(outputs, outputs, 1, norm),
            ]
            before = outputs
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))

    def _norm(self) -> Norm:
        if self.norm == "batch":
            return nn.BatchNorm2d
        if self.width % self.groups:
            raise BadInput(f"model resnet18: groups {self.groups} does not divide width {self.width}")
        return lambda channels: nn.GroupNorm(self.groups, channels)


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut (He et al., 2016, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(inputs, outputs, 3, stride),
            norm(outputs),
            nn.ReLU(),
            convolution(outputs, outputs, 3),
            norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        return relu(self.residual(x) + self.shortcut(x))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, because a normalization follows; only the stride shrinks the image."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
