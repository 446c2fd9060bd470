"""Coordinates that both ends draw from one seed."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.core.payload import HOST, Field, Form, Layout, Payload, PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.core.rng import generator
from decentnode.options import Fraction, Positive
from decentnode.transforms.base import VALUES, VECTOR, Context, Transform
from decentnode.transforms.sparsify.philox import Stream
from decentnode.transforms.sparsify.selection import count, filled, positions, spans


@TRANSFORMS.register("random_k", "rand_k", "random_sparsification", "sub_sampling")
@dataclass
class RandomK(Transform):
    """Sends k values at random, without indices: both ends draw them (Konecny et al., arXiv 2016, Sec. 2).

    k = max(1, round(fraction n)) of all n values, or of each tensor of the model (`per_layer`); every set of
    k is equally likely. Values travel in ascending order of their coordinates. With `shared_mask` all senders
    use the same coordinates in a round. Secure aggregation needs that, and self-filled gossip then keeps the
    mean of all models. After every step and for .0005 to .005 of all values, that is SPARTA (Beton et al.,
    2025). With `whole_every: m` all values are sent in each m-th round. Where each sender has a mask of its
    own, one round moves the mean by D,

        E |D|^2 = f (1 - f) / n^2 sum_j |sum_i w_ij (x_j - x_i)|^2,   f = fraction, n nodes

    In units of the models' rms distance from the mean that is .09 (f = .1) to .15 (.5) on a ring of 8, and
    .028 to .045 with 96 nodes of degree 4.

    The draw is part of the wire format. Words are the 64-bit outputs, in order, of Philox4x64-10 as in numpy.
    The key is xxh3_64("seed/random_k/round/phase/sender") >> 1, in decimal digits, without `/sender` when the
    mask is shared. For each part of n values in turn, with T = floor(256 k / n):
    1. where T > 0, ceil(n / 8) words are n bytes, lowest byte first; coordinate i is marked if byte i < T;
    2. while m > 0 coordinates are missing, m words w mark floor((w >> 11) 2^-53 n), in IEEE doubles;
    3. while there are m > 0 too many, m words unmark likewise.
    """

    by_coordinate: ClassVar = True
    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.SPARSE
    wire: ClassVar = "b k, k = fraction d; b d in each whole_every-th round"
    lossless = True

    fraction: Fraction = 0.1
    shared_mask: bool = False
    per_layer: bool = False
    whole_every: Positive | None = None
    """Rounds from one in which all values are sent to the next; null: there is none."""
    _latest: tuple[tuple[int, ...], Tensor] | None = field(default=None, init=False, repr=False)

    @property
    def same_coordinates(self) -> bool:
        return self.shared_mask or self.fraction == 1 or self.whole_every == 1

    @property
    def counts_rounds(self) -> bool:
        return self.whole_every is not None

    def layout(self, input_layout: Layout) -> Layout:
        self._spans = spans(self.dimension, self.per_layer, self.parameters)
        k, dtype = sum(count(self.fraction, n) for _, n in self._spans), input_layout.fields[0].dtype
        if self.whole_every is not None:
            return Layout((Field(VALUES, dtype, self.dimension, variable=True),), self.emits)
        return Layout((Field(VALUES, dtype, k),), self.emits)

    def coordinates(self, context: Context, device: torch.device = HOST) -> Tensor:
        """The coordinates that the sender sends in that round: indices (int64, ascending), read-only."""
        sender = () if self.shared_mask else (context.sender,)
        counters = (context.seed, context.round, context.phase, *sender)
        if self._latest is None or self._latest[0] != counters or self._latest[1].device != device:
            self._latest = counters, self._drawn(device, *counters)
        return self._latest[1]

    def encode(self, payload: Payload, context: Context) -> Payload:
        x = payload[VECTOR]
        indices = self.coordinates(context, x.device)
        return Payload.of(self.output_layout, {VALUES: x.index_select(0, indices)})

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact for what was sent."""
        values = payload[VALUES]
        indices = self.coordinates(context, values.device)
        if values.numel() != indices.numel():
            raise PayloadError(f"{values.numel()} values where {indices.numel()} are drawn")
        return filled(self.input_layout, values, indices, fill=context.fill)

    def _drawn(self, device: torch.device, seed: int, *counters: int) -> Tensor:
        round = counters[0]
        if self.whole_every is not None and (round + 1) % self.whole_every == 0:
            return torch.arange(self.dimension, device=device)
        source = generator(seed, "random_k", *counters)
        stream = None if device == HOST else Stream(source)
        mask = torch.zeros(self.dimension, dtype=torch.bool, device=device)
        for offset, n in self._spans:
            part, k = mask[offset : offset + n], count(self.fraction, n)
            if stream is None:
                mark(part.numpy(), k, source)
            else:
                mark_on_device(part, k, stream)
        return positions(mask)


def mark(mask: np.ndarray, k: int, source: np.random.Generator) -> None:
    """Marks k of n coordinates of an empty mask; whatever step 1 marks, every set is equally likely.

    Each byte costs an eighth of a word, so most of the work is cheap; steps 2 and 3 correct a few.
    """
    n = len(mask)
    threshold = 256 * k // n if n else 0
    if threshold:
        words = source.bit_generator.random_raw(-(-n // 8)).astype("<u8", copy=False)
        np.less(words.view(np.uint8)[:n], threshold, out=mask)
    while lacking := k - np.count_nonzero(mask):
        drawn = (source.random(abs(lacking)) * n).astype(np.int64)
        mask[drawn] = lacking > 0


def mark_on_device(mask: Tensor, k: int, stream: Stream) -> None:
    """Does `mark` with tensors, for the same coordinates; the host waits only for their number."""
    n = mask.numel()
    threshold = 256 * k // n if n else 0
    if threshold:
        chances = stream.words(-(-n // 8), mask.device).view(torch.uint8)[:n]
        torch.le(chances, threshold - 1, out=mask)
    while lacking := k - int(mask.count_nonzero()):
        mask.index_fill_(0, stream.below(n, abs(lacking), mask.device), lacking > 0)
