"""Residual blocks and the networks that are made of them (He et al., 2016)."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from decentnode.models.blocks.normalization import Norm

Stem = Literal["cifar", "imagenet"]
"""3x3 at full resolution for small images, or 7x7 at a quarter of it."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, because a normalization follows; only the stride shrinks the image."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut (He et al., 2016, figure 2)."""

    expansion = 1
    """Channels of the result for each of `width`."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(inputs, width, 3, stride=stride),
            norm(width),
            nn.ReLU(),
            convolution(width, width, 3),
            norm(width),
        )
        self.shortcut = shortcut(inputs, width, stride, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, inputs, h, w) to (batch, width, h / stride, w / stride)."""
        return relu(self.residual(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut (He et al., 2016, figure 5).

    The 3x3 convolution has the stride, as in torchvision ("ResNet v1.5").
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.residual = nn.Sequential(
            convolution(inputs, width, 1),
            norm(width),
            nn.ReLU(),
            convolution(width, width, 3, stride=stride),
            norm(width),
            nn.ReLU(),
            convolution(width, outputs, 1),
            norm(outputs),
        )
        self.shortcut = shortcut(inputs, outputs, stride, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, inputs, h, w) to (batch, 4 width, h / stride, w / stride)."""
        return relu(self.residual(x) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module:
    """The identity, or a 1x1 convolution where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(convolution(inputs, outputs, 1, stride=stride), norm(outputs))


def stem(kind: Stem, inputs: int, width: int, norm: Norm) -> list[nn.Module]:
    """The layers before the first stage."""
    if kind == "cifar":
        return [convolution(inputs, width, 3), norm(width), nn.ReLU()]
    return [convolution(inputs, width, 7, stride=2), norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]


def stages(
    block: type[ResidualBlock] | type[Bottleneck], blocks: Sequence[int], width: int, norm: Norm
) -> tuple[list[nn.Module], int]:
    """Builds the blocks of all stages, and returns them with the channels of the last stage.

    `blocks`: the blocks of each stage. A stage halves the image and doubles the channels.
    """
    made: list[nn.Module] = []
    inputs = width
    for number, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if number and not index else 1
            made.append(block(inputs, width << number, stride, norm))
            inputs = (width << number) * block.expansion
    return made, inputs


def start_like_he(network: nn.Module) -> None:
    """Convolutions start as in He et al. (2015, section 2.2), by the number of outputs, as in torchvision."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
