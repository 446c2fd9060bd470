"""The signal in a cosine basis."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from decentnode.core.payload import Form, Layout, Payload
from decentnode.core.registry import TRANSFORMS
from decentnode.core.vector import Entry
from decentnode.errors import BadInput
from decentnode.transforms.base import VECTOR, Context, Transform

Chunk = Annotated[int, Gt(0), Le(1024)]
"""The side of a block; a larger one would make the matrix of the map, chunk^2 numbers, slow."""


@TRANSFORMS.register("dct")
@dataclass
class Dct(Transform):
    """Cosine coefficients of chunks of the signal (DCT-II: Ahmed et al., IEEE TC 1974; DeMo: 2024).

    X_k = s_k sum_t x_t cos(pi (2 t + 1) k / (2 n)),   s_0 = n^(-1/2), s_k = (2 / n)^(1/2),   n = `chunk`

    An orthogonal map of each chunk, so there are as many coefficients as values, and norms stay. The last
    chunk may be shorter. With `matrices` the chunks are blocks of chunk x chunk of each m x (all other
    dimensions) tensor of the model, X = C_m x C_n^T, and chunks of all others, each tensor by itself.
    Coefficients stand block by block, so that `chunk_top_k` with `chunk: 4096` selects from blocks of 64 x
    64. Where a dimension is no multiple of the chunk, its last blocks are smaller. (DeMo's code takes the
    largest divisor up to 64 instead: 1 for a prime dimension, where nothing is transformed.)
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.DENSE
    changes_basis: ClassVar = True
    needs_float32: ClassVar = True  # the change of basis would round a model twice in every round
    wire: ClassVar = "b d"

    chunk: Chunk = 64
    matrices: bool = False

    def layout(self, input_layout: Layout) -> Layout:
        if not self.matrices:
            self._entries: tuple[Entry, ...] = (Entry("signal", torch.Size([self.dimension]), 0),)
            return input_layout
        if self.parameters is None:
            raise BadInput("with matrices needs the model's, which a change of basis before it takes away")
        if self.dimension != self.parameters.numel:
            raise BadInput(
                f"with matrices takes whole models of {self.parameters.numel} values, not {self.dimension}"
            )
        self._entries = self.parameters.entries
        return input_layout

    def in_basis(self, signal: Tensor) -> Tensor:
        coefficients = torch.empty_like(signal)
        for x, X in self._blocks(signal, coefficients):
            height, width = (cosines(n, x.dtype, x.device) for n in (x.shape[1], x.shape[3]))
            X.copy_(torch.einsum("ahbw,kh,lw->abkl", x, height, width))
        return coefficients

    def encode(self, payload: Payload, context: Context) -> Payload:
        return Payload.dense(self.in_basis(payload[VECTOR]))

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact to the precision of the signal's numbers."""
        coefficients = payload[VECTOR].to(self.input_layout.fields[0].dtype)
        signal = torch.empty_like(coefficients)
        for x, X in self._blocks(signal, coefficients):
            height, width = (cosines(n, x.dtype, x.device) for n in (x.shape[1], x.shape[3]))
            x.copy_(torch.einsum("abkl,kh,lw->ahbw", X, height, width))
        return Payload.dense(signal)

    def _blocks(self, signal: Tensor, coefficients: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of equal blocks: of the signal, shape (a, h, b, w), and of the coefficients, (a, b, h, w)."""
        for entry in self._entries:
            # Vectors are matrices of one row, whose map is 1.
            is_matrix = len(entry.shape) > 1 and not entry.is_complex
            size = entry.shape.numel()
            m = entry.shape[0] if is_matrix else 1
            if not size:
                continue
            start = entry.offset
            flat = signal[start : start + size]
            # Rows as they lie in memory, so that this is a view in channels_last, too.
            matrix = flat.view(m, size // m)
            for rows in split(m, self.chunk):
                for columns in split(size // m, self.chunk):
                    part = matrix[rows.start : rows.stop, columns.start : columns.stop]
                    a, h, b, w = len(rows), rows.step, len(columns), columns.step
                    x = part.view(a, h, b, w)
                    yield x, coefficients[start : start + part.numel()].view(a, b, h, w)
                    start += part.numel()


def split(n: int, chunk: int) -> list[range]:
    """The ranges of 0..n-1 that are cut into pieces of one length, which is the range's step."""
    whole = n // chunk * chunk
    ranges = (range(0, whole, chunk), range(whole, n, max(1, n - whole)))
    return [r for r in ranges if len(r)]


@cache
def cosines(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthogonal matrix of the map of n values, shape (n, n)."""
    t = torch.arange(n, dtype=torch.float64, device=device)
    # Whole turns are taken off in whole numbers: the cosine of a large angle is less exact.
    turns = (2 * t + 1) * t[:, None] % (4 * n)
    matrix = math.sqrt(2 / n) * torch.cos(math.pi / (2 * n) * turns)
    matrix[0] = 1 / math.sqrt(n)
    return matrix.to(dtype)
