"""The largest values of each chunk."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError, Role
from decentnode.core.registry import TRANSFORMS
from decentnode.core.vector import accumulator
from decentnode.options import Fraction, Positive
from decentnode.transforms.base import INDICES, VALUES, VECTOR, Context, Transform
from decentnode.transforms.coding.bits import pack, packed_bytes, unpack
from decentnode.transforms.coding.index_coder import CODE
from decentnode.transforms.sparsify.selection import check_indices, count, filled, positions


@TRANSFORMS.register("chunk_top_k")
@dataclass
class ChunkTopK(Transform):
    """Sends the k largest values of each chunk, with short indices (SparseLoCo: Sarfi et al., 2025).

    of each `chunk` values in a row:  the k = max(1, round(fraction chunk)) largest |x_i|, or |x_i - h_i|

    As `top_k`, `by: change` ranks by the change since a value was last sent, the default where the scheme
    sends models; otherwise `by: magnitude`. Of equal scores the lower index is sent. Every part of the model
    sends its share, and the selection of one chunk needs no other. An index within its chunk takes
    ceil(log2 chunk) bits: 12 of 4096, in place of 32 (`packed`). A coder of indices needs `packed: false`; at
    1 / 64 `rice` takes about 7.6 bits. The last chunk may be shorter. All d values need no indices.

    State by change: h, d floats.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.SPARSE
    depends_on_signal: ClassVar = True
    wire: ClassVar = "k (b + log2(chunk) / 8), k = fraction d; k (b + 4) where not packed"
    lossless = True
    state: ClassVar = ("_reference",)

    fraction: Fraction = 1 / 64
    chunk: Positive = 4096
    by: Literal["magnitude", "change"] | None = None
    packed: bool = True

    @property
    def remembers(self) -> bool:
        """Returns True for the selection by a change."""
        return self.of_models if self.by is None else self.by == "change"

    @property
    def same_coordinates(self) -> bool:
        return self._is_whole

    def layout(self, input_layout: Layout) -> Layout:
        n, dtype = self.dimension, input_layout.fields[0].dtype
        whole, rest = divmod(n, self.chunk)
        self._reference = torch.zeros(n if self.remembers else 0, dtype=dtype)
        # How many chunks, their length, and k, of the chunks of full length and of the last one.
        cut = ((whole, self.chunk, count(self.fraction, self.chunk)), (1, rest, count(self.fraction, rest)))
        self._parts = tuple(part for part in cut if part[0] * part[1])
        self._sent = sum(chunks * k for chunks, _, k in self._parts)
        self._is_whole = self._sent == n
        self._width = (min(self.chunk, n) - 1).bit_length() if n else 0
        fields = [Field(VALUES, dtype, self._sent)]
        if not self._is_whole and self.packed:
            size = packed_bytes(self._sent, self._width)
            fields.append(Field(CODE, torch.uint8, size, role=Role.INDEX))
        elif not self._is_whole:
            fields.append(Field(INDICES, torch.int32, self._sent, role=Role.INDEX))
        return Layout(tuple(fields), self.emits)

    def begin(self, signal: Tensor) -> Tensor:
        if self.remembers:
            self._reference = signal.clone()
        return signal

    def encode(self, payload: Payload, context: Context) -> Payload:
        x = payload[VECTOR]
        if self._is_whole:
            if self.remembers:
                self._reference.copy_(x)
            return Payload.of(self.output_layout, {VALUES: x})
        score = (x - self._reference).abs_() if self.remembers else x.abs()
        start, parts = 0, []
        for chunks, length, k in self._parts:
            rows = score[start : start + chunks * length].view(chunks, length)
            parts.append(positions(largest_of_rows(rows, k).view(-1)).add_(start))
            start += chunks * length
        indices = torch.cat(parts)
        values = x.index_select(0, indices)
        if self.remembers:
            self._reference.index_copy_(0, indices, values)
        if not self.packed:
            return Payload.of(self.output_layout, {VALUES: values, INDICES: indices})
        return Payload.of(self.output_layout, {VALUES: values, CODE: pack(indices % self.chunk, self._width)})

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact for what was sent; PayloadError unless the indices ascend within each chunk."""
        values = payload[VALUES]
        if self._is_whole:
            return Payload.dense(values.to(self.input_layout.fields[0].dtype, copy=True))
        indices = payload[INDICES] if not self.packed else self._unpacked(payload[CODE])
        check_indices(indices, values, self.dimension)
        return filled(self.input_layout, values, indices, fill=context.fill)

    def _unpacked(self, code: Tensor) -> Tensor:
        """The indices within the signal."""
        within = unpack(code, self._width, self._sent).long()
        start, sent, parts = 0, 0, []
        for chunks, length, k in self._parts:
            rows = within[sent : sent + chunks * k].view(chunks, k)
            if rows.numel() and int(rows.max()) >= length:
                raise PayloadError(f"index {int(rows.max())} in a chunk of {length} values")
            starts = torch.arange(chunks, device=code.device).mul_(length).add_(start)
            parts.append((rows + starts[:, None]).view(-1))
            start, sent = start + chunks * length, sent + chunks * k
        return torch.cat(parts)


def largest_of_rows(score: Tensor, k: int) -> Tensor:
    """A mask of the k largest scores of each row, shape (rows, n), 0 < k <= n; of equal ones the first."""
    score = score.to(accumulator(score.dtype))
    kth = score.topk(k, dim=1).values[:, -1:]
    above, ties = score > kth, score == kth
    missing = k - above.sum(1, keepdim=True)
    return above | (ties & (ties.cumsum(1) <= missing))
