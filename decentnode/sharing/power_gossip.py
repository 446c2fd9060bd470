"""Gossip of low-rank differences that both ends of an edge compute together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Field, Layout, NotFinite, Payload, PayloadError
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.rng import generator
from decentnode.core.vector import ParameterLayout, is_finite
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.options import Positive
from decentnode.sharing.base import Incoming, Promises, Requirements, Setup, Sharing
from decentnode.transforms.chain import Chain


@dataclass(frozen=True)
class LayerBlock:
    """A parameter as a matrix of (outputs, everything else), in the order of its memory."""

    offset: int
    rows: int
    columns: int
    rank: int
    """Columns of a product; 0 where the parameter itself is sent."""

    def matrix(self, flat: Tensor) -> Tensor:
        """Returns this block as a view of a whole vector."""
        return flat[self.offset : self.offset + self.rows * self.columns].view(self.rows, self.columns)

    def shape(self, left: bool) -> tuple[int, int]:
        """The shape of what is sent."""
        if not self.rank:
            return self.rows, self.columns
        return (self.columns if left else self.rows), self.rank


@SHARINGS.register("power_gossip")
@dataclass
class PowerGossip(Sharing):
    """Removes low-rank parts of each edge's difference (PowerGossip: Vogels et al., NeurIPS 2020, Alg. 1).

    For an edge i < j and a parameter of 2 or more dimensions, as a matrix, let D = X_i - X_j. Both ends have
    the same orthonormal p. Each sends X p, both compute D p, and X_i <- X_i - w_ij D p p^T, X_j with the
    other sign. D p, made orthonormal, is the p of the next round, from the left: X^T p. The two sides
    alternate. Parameters of fewer dimensions, and those no larger than a product, are sent as they are.

    With symmetric weights the mean is kept exactly where both ends of each edge mix or neither does. A
    difference of rank `rank` vanishes in two rounds where w = 1/2. Each payload has the round that its p
    comes from. Where that differs, or a message was late, the ends skip an exchange and start from a p drawn
    by the shared seed.

    On a graph that changes p is only warm for two nodes that exchange in two rounds in a row. Every other
    exchange takes a random part of a difference: the mean is kept as exactly, but agreement takes longer.

    State: p per neighbor and parameter. Takes no transforms.
    """

    requirements = Requirements(undirected_graph=True, float32=True)
    promises = Promises(
        keeps_mean=True,
        sends_one_payload=False,
        overlaps=True,
        wire="deg * (b rank (rows or columns, by turns) + b d_1 + 16), d_1 values in vectors",
    )
    state: ClassVar = ("_p", "_last")

    rank: Positive = 1
    warm_start: bool = True
    """False: draw a new p for each exchange."""

    _p: dict[int, list[Tensor]] = field(default_factory=dict, init=False, repr=False)
    _last: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """The round that each neighbor's p comes from."""

    def check_chain(self, chain: Chain) -> None:
        if chain.stages:
            raise BadInput(f"{name_of(self)} is a compressor itself; leave the transforms out")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._blocks = list(blocks(setup.layout, self.rank))
        self._sent: dict[int, Payload] = {}
        (signal,) = setup.chain.layout.fields
        most = max(self._elements(left) for left in (False, True))
        self._layout = Layout(
            (Field("vector", signal.dtype, most, variable=True), Field("last", torch.int64, 1))
        )

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self._layout

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        self._sent = {j: self._products(j, vector, view) for j in view.targets}
        return self._sent

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        out.copy_(vector)
        for j in view.sources:
            try:
                if not (j in incoming and self._is_fit(incoming[j], view, j)):
                    self.on_peer_lost(j)
                    continue
            except PayloadError as error:
                self.on_peer_lost(j)
                self.refuse(j, view, error)
                continue
            self._apply(j, incoming[j], view, out=out)

    def on_peer_lost(self, rank: int) -> None:
        self._p.pop(rank, None)
        self._last.pop(rank, None)

    def _products(self, j: int, vector: Tensor, view: View) -> Payload:
        left = is_left(view)
        if not self.warm_start or self._last.get(j) != view.round - 1:
            self._last.pop(j, None)
            self._p[j] = [self._drawn(view, j, index, vector) for index in range(len(self._blocks))]
        payload = Payload.empty(self._layout, vector=self._elements(left))
        payload["last"][0] = self._last.get(j, -1)
        for block, p, part in zip(self._blocks, self._p[j], self._parts(payload, left), strict=True):
            X = block.matrix(vector)
            part.copy_((X.T if left else X) @ p if block.rank else X)
        if not is_finite(payload["vector"]):
            raise self.own_error(vector, view)
        return payload

    def _apply(self, j: int, payload: Payload, view: View, out: Tensor) -> None:
        left, sign = is_left(view), 1.0 if view.rank < j else -1.0
        products, their_products = self._parts(self._sent[j], left), self._parts(payload, left)
        for index, (block, mine, theirs) in enumerate(
            zip(self._blocks, products, their_products, strict=True)
        ):
            # Always the lower rank less the higher, so that both ends compute the same numbers.
            D = (mine.to(out.device) - theirs.to(out.device)).mul_(sign)
            step, p = -sign * view.weights[j], self._p[j][index]
            if not block.rank:
                block.matrix(out).add_(D, alpha=step)
                continue
            block.matrix(out).addmm_(*((p, D.T) if left else (D, p.T)), alpha=step)
            self._p[j][index] = orthonormal(D) if D.any() else self._drawn(view, j, index, out, ahead=1)
        self._last[j] = view.round

    def _is_fit(self, payload: Payload, view: View, j: int) -> bool:
        """Whether the other end has the same p; raises PayloadError when the payload is not valid."""
        vector, left = payload["vector"], is_left(view)
        if vector.numel() != self._elements(left):
            raise PayloadError(f"{vector.numel()} values where {self._elements(left)} are products")
        if not is_finite(vector):
            raise NotFinite("a product is not finite")
        return int(payload["last"]) == self._last.get(j, -1)

    def _drawn(self, view: View, j: int, index: int, like: Tensor, ahead: int = 0) -> Tensor:
        block, round = self._blocks[index], view.round + ahead
        low, high = sorted((view.rank, j))
        rng = generator(self.setup.seed, "power_gossip", low, high, round, index)
        shape = block.shape(left=not is_left(view, ahead)) if block.rank else (0, 0)
        return orthonormal(torch.from_numpy(rng.standard_normal(shape))).to(like)

    def _elements(self, left: bool) -> int:
        shapes = (block.shape(left) for block in self._blocks)
        return sum(height * width for height, width in shapes)

    def _parts(self, payload: Payload, left: bool) -> Iterator[Tensor]:
        """The part of each block in the payload, as matrices that are views of it."""
        shapes = [block.shape(left) for block in self._blocks]
        parts = torch.split(payload["vector"], [height * width for height, width in shapes])
        return (part.view(shape) for part, shape in zip(parts, shapes, strict=True))


def blocks(layout: ParameterLayout, rank: int) -> Iterator[LayerBlock]:
    """Yields a block for each tensor of the model."""
    for entry in layout.entries:
        size = entry.shape.numel()
        rows = entry.shape[0] if len(entry.shape) > 1 else size
        columns = size // rows if rows else 0
        yield LayerBlock(entry.offset, rows, columns, rank=rank if rank < min(rows, columns) else 0)


def is_left(view: View, ahead: int = 0) -> bool:
    """Whether products are from the left in this round: X^T p."""
    return (view.round + ahead) % 2 == 1


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of a space that holds all columns, shape as given."""
    Q: Tensor = torch.linalg.qr(columns)[0]
    return Q
