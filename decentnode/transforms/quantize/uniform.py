"""Evenly spaced levels between the least and the largest value of a block."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.options import Positive
from decentnode.transforms.coding.alphabet import Alphabet
from decentnode.transforms.quantize.base import Quantizer, Random, positive, uniform_like


@TRANSFORMS.register("uniform", "quantization", int8="bits: 8", int4="bits: 4")
@dataclass
class Uniform(Quantizer):
    """Rounds to one of 2^bits even levels from the least to the largest value (Bennett, BSTJ 27, 1948).

    step = (max v - min v) / (2^bits - 1),   Q(v_i) = min v + step round((v_i - min v) / step)

    The error is at most step / 2. With `rounding: stochastic` it is below one step, and unbiased (to 2^-16 of
    a step). The rounding of the block's largest magnitude adds to it. Blocks of equal values are exact. Zeros
    between other values are not levels: for sparse differences use `qsgd` with `norm: max`.
    """

    by_coordinate: ClassVar = True
    wire: ClassVar = "bits d / 8 + 2 max(4, b) d / block"
    scales_per_block: ClassVar[int] = 2

    bits: Literal[1, 2, 4, 8] = 8
    block: Positive = 1024
    rounding: Literal["nearest", "stochastic"] = "nearest"

    @property
    def alphabet(self) -> Alphabet:
        return Alphabet(1 << self.bits)

    def block_length(self, count: int) -> int:
        return self.block

    def quantize(self, tile: Tensor, codes: Tensor, random: Random) -> Tensor:
        top = self.alphabet.size - 1
        low, high = tile.amin(1, keepdim=True), tile.amax(1, keepdim=True)
        # Halves, because the distance of two large numbers may overflow.
        half, span = low / 2, positive(high / 2 - low / 2)
        x = torch.div(tile, 2).sub_(half).div_(span).mul_(top)
        x = x.round_() if self.rounding == "nearest" else x.add_(uniform_like(tile, random)).floor_()
        codes.copy_(x.clamp_(0, top))
        return torch.cat([low, high], dim=1)

    def dequantize(self, codes: Tensor, scales: Tensor, tile: Tensor) -> None:
        low, high = scales[:, :1], scales[:, 1:]
        if bool((low > high).any()):
            raise PayloadError("a block's least value is above its largest")
        tile.copy_(codes).div_(self.alphabet.size - 1).mul_(high / 2 - low / 2).add_(low / 2).mul_(2)
        # Rounding may leave the block's range, and even the range of the type.
        torch.clamp(tile, low, high, out=tile)
