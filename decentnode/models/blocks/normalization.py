"""The choice between batch norm and group norm."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from decentnode.errors import BadInput

NormName = Literal["group", "batch"]
Norm = Callable[[int], nn.Module]
"""Makes the normalization of so many channels."""


def norm_of(name: NormName, groups: int, narrowest: int, model: str) -> Norm:
    """The normalization of images with that name; raises BadInput where groups would not be equal.

    `narrowest` is the number of channels of the narrowest layer, which divides those of all others.
    GroupNorm (Wu and He, 2018) has as many parameters as BatchNorm and no running statistics.
    """
    if name == "batch":
        return nn.BatchNorm2d
    if narrowest % groups:
        raise BadInput.at("model", f"{model}: groups {groups} does not divide width {narrowest}")
    return lambda channels: nn.GroupNorm(groups, channels)
