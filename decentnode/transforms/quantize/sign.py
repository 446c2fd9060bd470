"""One bit a value."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, Literal

from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.errors import BadInput
from decentnode.options import Positive
from decentnode.transforms.base import VECTOR, Layout
from decentnode.transforms.coding.alphabet import Alphabet
from decentnode.transforms.quantize.base import Quantizer, Random, Tile, norms


@TRANSFORMS.register("sign", "sign_sgd", "scaled_sign", "one_bit")
@dataclass
class Sign(Quantizer):
    """One bit a value and the mean magnitude (scaled sign: Karimireddy et al., ICML 2019, Alg. 1).

    C(v) = |v|_1 / d sgn(v),   |C(v) - v|^2 = (1 - omega) |v|^2,   omega = |v|_1^2 / (d |v|_2^2)

    omega is .64 for gaussian and .50 for Laplace distributed values. The mean is that of the whole vector, of
    each layer, or of each block. Biased: use it after `error_feedback`, or with a scheme that sends
    differences to what the receivers know already. The sign of 0 counts as positive.
    """

    wire: ClassVar = "d / 8 + max(4, b) for each mean"

    scale: Literal["vector", "layer", "block"] = "vector"
    block: Positive = 1024

    _layers: tuple[int, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def alphabet(self) -> Alphabet:
        return Alphabet(2)

    def layout(self, input_layout: Layout) -> Layout:
        entries = self.parameters.entries if self.parameters else ()
        self._layers = tuple(e.shape.numel() for e in entries if e.shape.numel()) or None
        if self.scale == "layer":
            if self._layers is None:
                raise BadInput("with 'scale: layer' needs to know the layers: not after a change of basis")
            if input_layout.fields[0].name != VECTOR or input_layout.fields[0].elements != sum(self._layers):
                raise BadInput("with 'scale: layer' takes whole models, not a selection")
        return super().layout(input_layout)

    def block_length(self, count: int) -> int:
        return self.block if self.scale == "block" else max(count, 1)

    def blocks(self, count: int) -> int:
        return len(self._layers) if self.scale == "layer" and self._layers else super().blocks(count)

    def tiles(self, count: int, most: int) -> Iterator[Tile]:
        if self.scale != "layer" or not self._layers:
            return super().tiles(count, most)
        ends = accumulate(self._layers)
        tiles = zip(self._layers, ends, strict=True)
        return ((slice(end - length, end), slice(i, i + 1)) for i, (length, end) in enumerate(tiles))

    def quantize(self, tile: Tensor, codes: Tensor, random: Random) -> Tensor:
        codes.copy_(tile >= 0)
        return norms(tile, 1).div_(tile.shape[1]).to(tile.dtype)

    def dequantize(self, codes: Tensor, scales: Tensor, tile: Tensor) -> None:
        if bool((scales < 0).any()):
            raise PayloadError("a mean magnitude is negative")
        tile.copy_(codes).mul_(2).sub_(1).mul_(scales)
