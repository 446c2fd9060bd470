"""Fragments of the model, one in each round."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.core.rng import generator
from decentnode.core.text import counted
from decentnode.core.vector import Entry
from decentnode.errors import BadInput
from decentnode.options import Fraction, Positive
from decentnode.transforms.base import VALUES, VECTOR, Context, Transform, Turn


@TRANSFORMS.register("fragments")
@dataclass
class Fragments(Transform):
    """Sends one fragment of the layers in each round, by turns (Douillard et al., 2025, arXiv 2501.18512).

    This is the first part of Streaming DiLoCo (Alg. 2; `blend` and `communication.overlap` are the others).
    Round r sends fragment r mod `count`, the same on all nodes, so no indices travel. `strided` puts layer l
    into fragment l mod `count`; `sequential` divides the layers in their order, into fragments of as many
    layers or one more. A layer is what has one name up to its first number, such as `blocks.3`, or one module
    where there is no number (`ParameterLayout.layers`).

    With `fraction` in place of `count` a fragment is a block of ceil(fraction d) consecutive values, and the
    last one has the rest. With `start: drawn` each node begins with a fragment of its own, drawn by the seed,
    so nodes send different fragments in a round.

    An outer optimizer of the scheme makes its step in the fragment of the round alone. So each fragment has
    moments of its own, and its gradient is what has changed since the round that sent it last.
    """

    by_coordinate: ClassVar = True
    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.SPARSE
    wire: ClassVar = "b d_p, d_p the values of the fragment; 8 more where fragments differ in size"
    lossless = True

    count: Positive | None = None
    """The number of fragments of layers."""
    order: Literal["strided", "sequential"] = "strided"
    fraction: Fraction | None = None
    """The part of all values in each fragment, in place of `count`."""
    start: Literal["same", "drawn"] = "same"
    """The fragment that a node begins with: the first, or one that is drawn."""
    _turns: tuple[Turn, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.count is None) == (self.fraction is None):
            raise BadInput.at("count", "give either count, of layers, or fraction, of consecutive values")

    @property
    def same_coordinates(self) -> bool:
        return self.start == "same" or not self.counts_rounds

    @property
    def counts_rounds(self) -> bool:
        return self.count != 1 and self.fraction != 1

    @property
    def least_layers(self) -> int:
        return self.count or 1

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self._turns if self.same_coordinates else ()

    def layout(self, input_layout: Layout) -> Layout:
        self._turns = self._blocks() if self.count is None else self._layers(self.count)
        sizes = [sum(part.stop - part.start for part in turn) for turn in self._turns]
        values = Field(VALUES, input_layout.fields[0].dtype, max(sizes), variable=len(set(sizes)) > 1)
        return Layout((values,), self.emits)

    def _blocks(self) -> tuple[Turn, ...]:
        """The fragments of consecutive values."""
        size = max(1, math.ceil((self.fraction or 1.0) * self.dimension))
        firsts = range(0, max(1, self.dimension), size)
        return tuple((slice(first, min(first + size, self.dimension)),) for first in firsts)

    def _layers(self, number: int) -> tuple[Turn, ...]:
        """So many fragments of layers."""
        if self.parameters is None or self.parameters.numel != self.dimension:
            raise BadInput("needs the layers of the model, which a transform before it mixes; put it first")
        layers = list(self.parameters.layers.values())
        if number > len(layers):
            what = f"divides a model of {counted(len(layers), 'layer')} into {number} fragments"
            raise BadInput(f"{what}; use count: {len(layers)} at most")
        parts = [layers[p::number] for p in range(number)]
        if self.order == "sequential":
            parts = [layers[part] for part in even_parts(len(layers), number)]
        return tuple(_parts_of(entry for layer in part for entry in layer) for part in parts)

    def _turn(self, context: Context) -> Turn:
        """The fragment that a sender sends in a round."""
        number = len(self._turns)
        first = 0
        if not self.same_coordinates:
            first = int(generator(context.seed, "fragments", context.sender).integers(number))
        return self._turns[(context.round + first) % number]

    def encode(self, payload: Payload, context: Context) -> Payload:
        turn = self._turn(context)
        return Payload.of(self.output_layout, {VALUES: joined(payload[VECTOR], turn)})

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact for what was sent."""
        values, turn = payload[VALUES], self._turn(context)
        fragments = divided(values, turn)
        (dense,) = self.input_layout.fields
        if context.fill is None:
            whole = values.new_zeros(dense.elements, dtype=dense.dtype)
        else:
            whole = context.fill.to(dense.dtype, copy=True)
        for part, sent in zip(turn, fragments, strict=True):
            whole[part] = sent
        return Payload.dense(whole)


def even_parts(number: int, count: int) -> list[slice]:
    """Returns `count` slices of so many things in their order, whose lengths differ by one at most."""
    return [slice(number * k // count, number * (k + 1) // count) for k in range(count)]


def joined(vector: Tensor, turn: Turn) -> Tensor:
    """The values of some parts of a vector, one after the other."""
    return torch.cat([vector[part] for part in turn])


def divided(values: Tensor, turn: Turn) -> tuple[Tensor, ...]:
    """The inverse of `joined`, for each part; raises PayloadError for another number of values."""
    sizes = [part.stop - part.start for part in turn]
    if values.numel() != sum(sizes):
        raise PayloadError(f"{values.numel()} values where the fragments that are due have {sum(sizes)}")
    return torch.split(values, sizes)


def _parts_of(entries: Iterable[Entry]) -> Turn:
    """The parts of the vector that entries take, in its order; neighbors are one part."""
    turn: list[slice] = []
    for entry in sorted(entries, key=lambda entry: entry.offset):
        end = entry.offset + entry.shape.numel()
        if turn and turn[-1].stop == entry.offset:
            turn[-1] = slice(turn[-1].start, end)
        else:
            turn.append(slice(entry.offset, end))
    return tuple(turn)
