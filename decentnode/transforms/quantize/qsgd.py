"""Stochastic quantization to a few levels of a norm."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.options import Positive
from decentnode.transforms.coding.alphabet import Alphabet
from decentnode.transforms.quantize.base import Quantizer, Random, largest, norms, positive, uniform_like


@TRANSFORMS.register("qsgd")
@dataclass
class Qsgd(Quantizer):
    """Rounds to one of 2 s + 1 levels of a block's norm at random (Alistarh et al., NeurIPS 2017, Sec. 3.1).

    Q_s(v_i) = |v| sgn(v_i) xi_i,   xi_i in {l/s, (l+1)/s},   E xi_i = |v_i| / |v|

    E|Q_s(v) - v|^2 <= min(d/s^2, sqrt(d)/s) |v|^2 for a block of d values and the l2 norm. With `norm: max`
    the error of a value is below max|v| / s. Bits of a value: log2(2 s + 1) rounded up (8 for s = 127, 6 for
    16, 4 for 4), 2.67 for s = 2 and 1.6 for s = 1. Each block adds one scale of 4 bytes. Unbiased to 2^-24 of
    the step |v| / s or of the value. A value of 0 stays 0.
    """

    by_coordinate: ClassVar = True
    wire: ClassVar = "d log2(2 s + 1) / 8 + max(4, b) d / block"
    unbiased: ClassVar = True

    levels: Annotated[int, Ge(1), Le(127)] = 127
    block: Positive = 1024
    norm: Literal["l2", "max"] = "l2"

    @property
    def alphabet(self) -> Alphabet:
        return Alphabet(2 * self.levels + 1)

    def block_length(self, count: int) -> int:
        return self.block

    def quantize(self, tile: Tensor, codes: Tensor, random: Random) -> Tensor:
        s, most = self.levels, torch.finfo(tile.dtype).max
        scales = largest(tile) if self.norm == "max" else norms(tile, 2).clamp_(max=most).to(tile.dtype)
        x = torch.div(tile, positive(scales)).mul_(s)
        x.add_(uniform_like(tile, random)).floor_().clamp_(-s, s)
        codes.copy_(x.add_(s))
        return scales

    def dequantize(self, codes: Tensor, scales: Tensor, tile: Tensor) -> None:
        if bool((scales < 0).any()):
            raise PayloadError("a norm is negative")
        tile.copy_(codes).sub_(self.levels).div_(self.levels).mul_(scales)
