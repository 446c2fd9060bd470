"""Matrices as products of two thin matrices."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.core.vector import Entry
from decentnode.errors import BadInput, RunFailed
from decentnode.options import Positive
from decentnode.transforms.base import VECTOR, Context, Field, Form, Layout, Payload, Transform


@dataclass(frozen=True)
class MatrixBlock:
    """One tensor of the model: m x n of rank r, the thin matrices in sequence; r = 0: sent as it is."""

    entry: Entry
    m: int
    n: int
    r: int

    @property
    def elements(self) -> int:
        """Values on the wire."""
        return self.r * (self.m + self.n) if self.r else self.m * self.n


@TRANSFORMS.register("low_rank", "power_sgd")
@dataclass
class LowRank(Transform):
    """Sends each matrix of the model as a product of rank r (PowerSGD: Vogels et al., NeurIPS 2019, Alg. 1).

    P = orthogonal(M Q),   Q <- M^T P,   sent: P and Q,   decoded: P Q^T;   repeated `iterations` times

    M is a weight of shape m x (all other dimensions). Tensors of one dimension, and those that would not
    shrink, are sent as they are. With `warm_start`, Q is that of the last round: where the signal changes
    slowly, rounds are steps of one power iteration. Otherwise Q is random. Exact for matrices of rank r. The
    squared error is |M - P Q^T|^2 = |M|^2 - |Q|^2, at least the error of the truncated SVD, which iterations
    approach. Biased: use it after `error_feedback`, or with a scheme that sends differences to what the
    receivers know.

    State: Q, r n floats a matrix. Needs whole signals in the model's own coordinates. LAPACK takes most of
    the time.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.QUANTIZED
    needs_float32: ClassVar = True  # LAPACK
    state: ClassVar = ("_starts",)
    wire: ClassVar = "b r (m + n) for each m x n matrix, b for each other value"

    rank: Positive = 1
    iterations: Positive = 1
    warm_start: bool = True

    _blocks: tuple[MatrixBlock, ...] = field(default=(), init=False, repr=False, compare=False)
    _starts: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def remembers(self) -> bool:
        return self.warm_start

    def layout(self, input_layout: Layout) -> Layout:
        if self.parameters is None:
            raise BadInput("needs the model's matrices, which a change of basis before it takes away")
        if self.dimension != self.parameters.numel:
            raise BadInput(f"takes whole models of {self.parameters.numel} values, not {self.dimension}")
        self._blocks = tuple(part_of(entry, self.rank) for entry in self.parameters.entries)
        elements = sum(part.elements for part in self._blocks)
        return Layout((Field("factors", input_layout.fields[0].dtype, elements),), self.emits)

    def encode(self, payload: Payload, context: Context) -> Payload:
        signal = payload[VECTOR]
        factors, random = (
            signal.new_empty(self.output_layout.fields[0].elements),
            context.generator("low_rank"),
        )
        starts: dict[str, Tensor] = {}
        for part, sent in self._pieces(factors):
            matrix = part.entry.view(signal).reshape(part.m, part.n)
            if not part.r:
                sent.view(part.m, part.n).copy_(matrix)
                continue
            p, q = thin(sent, part)
            known = self._starts.get(part.entry.name)
            q.copy_(torch.from_numpy(random.standard_normal(q.shape)) if known is None else known)
            for _ in range(self.iterations):
                p.copy_(torch.linalg.qr(matrix @ q).Q)
                q.copy_(matrix.T @ p)
            # Orthogonal, so that a column that has become zero can grow again.
            starts[part.entry.name] = torch.linalg.qr(q).Q
        self._refuse_overflow(factors, context)
        self._starts = starts if self.warm_start else {}
        return Payload(self.output_layout, factors.view(torch.uint8))

    def decode(self, payload: Payload, context: Context) -> Payload:
        factors = payload["factors"]
        if not bool(torch.isfinite(factors).all()):
            raise PayloadError("a factor of a matrix is not finite")
        signal = factors.new_empty(self.dimension)
        for part, sent in self._pieces(factors):
            target = part.entry.view(signal)
            if part.r:
                p, q = thin(sent, part)
                sent = p @ q.T
            target.copy_(sent.view(target.shape))
        return Payload.dense(signal)

    def _refuse_overflow(self, factors: Tensor, context: Context) -> None:
        if bool(torch.isfinite(factors).all()):
            return
        infinite = (part for part, sent in self._pieces(factors) if not bool(torch.isfinite(sent).all()))
        raise RunFailed(
            f"rank {context.sender}, round {context.round + 1}: low_rank cannot encode "
            f"{next(infinite).entry.name}: its values are so large that their products are infinite"
        )

    def _pieces(self, factors: Tensor) -> Iterator[tuple[MatrixBlock, Tensor]]:
        pieces = torch.split_with_sizes(factors, [part.elements for part in self._blocks])
        return zip(self._blocks, pieces, strict=True)


def part_of(entry: Entry, rank: int) -> MatrixBlock:
    """The block of a tensor of the model."""
    m = entry.shape[0] if len(entry.shape) > 1 else 1
    n = entry.shape.numel() // m if m else 0
    r = min(rank, m, n)
    return MatrixBlock(entry, m, n, r=r if r * (m + n) < m * n else 0)


def thin(sent: Tensor, block: MatrixBlock) -> tuple[Tensor, Tensor]:
    """Returns P (m x r) and Q (n x r) as views of the sent values."""
    p, q = sent.split_with_sizes([block.r * block.m, block.r * block.n])
    return p.view(block.m, block.r), q.view(block.n, block.r)
