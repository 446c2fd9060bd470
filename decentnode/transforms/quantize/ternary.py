"""Minus one, zero or one times a magnitude: five values in a byte."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.options import NonNegativeFloat, Positive
from decentnode.transforms.coding.alphabet import Alphabet
from decentnode.transforms.quantize.base import Quantizer, Random, largest, positive, uniform_like


@TRANSFORMS.register("ternary", "tern_grad")
@dataclass
class Ternary(Quantizer):
    """Sends -1, 0 or 1 for each value, one magnitude a block (TernGrad: Wen et al., NeurIPS 2017, Sec. 3).

    stochastic:  s b_i sgn(v_i),   s = max|v|,   P(b_i = 1) = |v_i| / s; unbiased
    threshold:   mu sgn(v_i) where |v_i| > t mean|v|, else 0; mu is the mean magnitude of those that are sent

    The second rule is biased. With t = 0.7 it is that of ternary weights (Li et al., 2016), and with t = 0
    after `top_k` that of STC (Sattler et al., TNNLS 2020, Alg. 1). `sign` sends the same in fewer bits unless
    there are zeros among the values. Its squared error is |v|^2 - k mu^2 for the k values sent.
    """

    wire: ClassVar = "d / 5 + max(4, b) d / block"

    rule: Literal["stochastic", "threshold"] = "stochastic"
    block: Positive = 1024
    threshold: NonNegativeFloat = 0.7

    @property
    def alphabet(self) -> Alphabet:
        return Alphabet(3)

    def block_length(self, count: int) -> int:
        return self.block

    def quantize(self, tile: Tensor, codes: Tensor, random: Random) -> Tensor:
        if self.rule == "threshold":
            return self._selected(tile, codes)
        scales = largest(tile)
        x = torch.div(tile, positive(scales)).add_(uniform_like(tile, random)).floor_().clamp_(-1, 1)
        codes.copy_(x.add_(1))
        return scales

    def _selected(self, tile: Tensor, codes: Tensor) -> Tensor:
        magnitudes = tile.abs()
        least = magnitudes.mean(1, keepdim=True, dtype=torch.float64).mul_(self.threshold).to(tile.dtype)
        selected = magnitudes > least
        codes.copy_(tile.sign().mul_(selected).add_(1))
        sums = magnitudes.mul_(selected).sum(1, keepdim=True, dtype=torch.float64)
        return sums.div_(selected.sum(1, keepdim=True).clamp_(min=1)).to(tile.dtype)

    def dequantize(self, codes: Tensor, scales: Tensor, tile: Tensor) -> None:
        if bool((scales < 0).any()):
            raise PayloadError("a magnitude is negative")
        tile.copy_(codes).sub_(1).mul_(scales)
