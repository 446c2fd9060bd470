"""Averaging in which a node cannot read the model of a single neighbor."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import torch
import xxhash
from annotated_types import Ge
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import ParameterLayout
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph, live_weights
from decentnode.options import Positive
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.blocks.pairwise_masks import PIECE_BYTES, MaskKeys, scratch_for
from decentnode.sharing.blocks.weighted_sum import weighted_sum
from decentnode.transforms.base import Context, Transform, values_field
from decentnode.transforms.chain import Chain

INTEGERS = {32: torch.int32, 64: torch.int64}


@SHARINGS.register("secure_aggregation")
@dataclass
class SecureAggregation(Sharing):
    """Gossip where a node only learns the weighted sum of its neighbors' models (Bonawitz et al., CCS 2017).

    y_ar <- Q(w_ra x_a) + sum_{c in S_r, c > a} m_ac - sum_{c in S_r, c < a} m_ac   (mod 2^bits)
    x_r  <- w_rr x_r + (1 / scale) sum_{a in S_r} y_ar,   Q(v) = round(scale v)

    S_r are the senders to r, at least two; a sends y_ar to r. Each pair of them shares a key (X25519), from
    which both draw a new mask m_ac for each receiver and round: deg (deg - 1) masks per node and round. They
    cancel bit for bit. So models do not depend on keys, and equal those of gossip within |S_r| / (2 scale)
    per element and round. A summand that could make the sum exceed the modulus ends the run; sums never wrap.
    Only transforms that send plain values of the same coordinates at all senders fit: bases, clip, noise, and
    random_k with shared_mask: true. Coordinates that are not sent keep the own values.

    Losses: a receiver that misses a sender keeps its own model in that round and logs this. Its next message
    reports the missing sender to the others. In the round after that they mask without it, and mixing
    continues; the receiver's own model gets the missing weight. Skipped rounds do not keep the mean of all
    models. Where senders do not receive from the receiver (directed and changing graphs), mixing at that
    receiver stays skipped.

    Protects against peers that are curious but follow the protocol. It does not protect models from a
    receiver that lies about missing senders, or from an attacker that replaces public keys in transit (they
    are not signed), or from a receiver together with all senders but one. State: which senders were missing,
    but no keys. Nodes agree on new keys at each start, so that no mask is used twice.
    """

    needs_co_senders: ClassVar = True
    needs_float32: ClassVar = True
    takes_back: ClassVar = False  # a restarted process has lost its key
    protects: ClassVar = True
    sends_one_payload: ClassVar = False
    overlaps: ClassVar = True
    wire: ClassVar = "deg * (4 k + 16), k values left by the chain; 8 k with 64 bits"
    mean: ClassVar = "keeps the mean of all models unless transforms clip them or add noise"
    state: ClassVar = ("_missed", "_left_out", "_told")

    scale: Positive = 1 << 16
    bits: Literal[32, 64] = 32
    least_senders: Annotated[int, Ge(2)] = 2
    """With k senders, k - 2 of them can reveal their models to the receiver, and the others stay hidden."""
    _keys: MaskKeys = field(
        default_factory=lambda: MaskKeys(os.urandom(32)), init=False, repr=False, compare=False
    )
    _missed: list[int] = field(default_factory=list, init=False, repr=False)
    """Sources that were missing in the last round: the next message names them."""
    _left_out: list[int] = field(default_factory=list, init=False, repr=False)
    """Sources that the last message named; the senders mask without them in this round."""
    _told: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    """Missing sources that the others' last messages named."""

    def check(self, graph: WeightedGraph) -> None:
        for rank, round in product(range(graph.num_nodes), graph.graph.cycle):
            sources = graph.graph.sources(rank, round)
            if len(sources) < self.least_senders:
                raise BadInput(
                    f"secure_aggregation hides models among at least {self.least_senders} senders to each "
                    f"node, but rank {rank} hears {', '.join(map(str, sources)) or 'nobody'} alone"
                )

    def check_chain(self, chain: Chain) -> None:
        for transform in chain.stages:
            flaw = _flaw(transform)
            if flaw:
                raise BadInput(f"secure_aggregation cannot mask what {name_of(transform)} makes: {flaw}")
        selects = chain.layout.form is Form.SPARSE
        if len(chain.layout.fields) > 1 or (selects and not _selecting(chain)):
            names = " and ".join(f.name for f in chain.layout.fields)
            raise BadInput(f"secure_aggregation masks values that all senders send, not {names}")

    def preserves_mean(self, chain: Chain) -> bool:
        return not chain.protects

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        super().bind(layout, num_nodes, chain, seed)
        self._values = values_field(chain.layout)
        fields = (
            Field("senders", torch.int64, 1),
            Field("missed", torch.int32, num_nodes, variable=True),
            Field("values", INTEGERS[self.bits], self._values.elements),
        )
        self._layout = Layout(fields, Form.MASKED)

    def introduction(self) -> bytes:
        return self._keys.public

    def meet(self, introductions: Mapping[int, bytes]) -> None:
        self._keys.meet(introductions)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self._layout

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        encoded = self._encoded(vector, view)
        on_host = {id(payload): payload[self._values.name].cpu() for payload in encoded.values()}
        return {r: self._masked(on_host[id(encoded[r])], r, view) for r in view.targets}

    def _masked(self, x: Tensor, receiver: int, view: View) -> Payload:
        payload = Payload.empty(self._layout, missed=len(self._missed))
        payload["missed"].copy_(torch.tensor(self._missed, dtype=torch.int32))
        left_out = self._told.get(receiver, [])
        senders = [c for c in view.co_senders[receiver] if c not in left_out]
        payload["senders"][0] = _fingerprint(senders)
        y = payload["values"]
        if len(senders) < self.least_senders or view.rank not in senders:
            y.zero_()
            return payload
        masks = [self._keys.mask(view.rank, c, receiver, view.round, 0) for c in senders if c != view.rank]
        factor, most = view.outgoing_weights[receiver] * self.scale, _most(self.bits, len(senders))
        size, scratch = PIECE_BYTES // y.element_size(), scratch_for(y)
        for x_piece, y_piece in zip(torch.split(x, size), torch.split(y, size), strict=True):
            if not self._quantize(x_piece, factor, most, y_piece):
                self._refuse(x, factor, most, view)
            for mask in masks:
                mask.apply(y_piece, scratch)
        return payload

    def _quantize(self, x: Tensor, factor: float, most: float, out: Tensor) -> bool:
        """Q(w x); returns False when an element exceeds the limit of a summand or is NaN."""
        scaled = (x.double() if self.bits == 64 else x) * factor
        if not scaled.numel():
            return True
        lowest, highest = torch.aminmax(scaled.round_())
        out.copy_(scaled)
        # NaN compares false.
        return bool(-most <= lowest.item() and highest.item() <= most)

    def _refuse(self, x: Tensor, factor: float, most: float, view: View) -> None:
        # NaN counts as the largest.
        index, largest = int(x.abs().argmax()), most / factor if factor else math.inf
        where = f"element {index} of the signal" if self.chain.stages else self.layout.name_at(index)
        raise RunFailed(
            f"rank {view.rank}, round {view.round + 1}: secure_aggregation cannot send {float(x[index]):g}, "
            f"found in {where}: with scale {self.scale} and {self.bits} bits the most is {largest:g} "
            "here; a smaller scale, or bits: 64, allows more"
        )

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        senders = [a for a in view.sources if a not in self._left_out]
        flaw = self._why_not(senders, incoming)
        self._told = {r: payload["missed"].tolist() for r, payload in incoming.items()}
        self._left_out, self._missed = self._missed, [a for a in view.sources if a not in incoming]
        if flaw:
            print(f"round {view.round + 1}: keeps its own model: {flaw}", flush=True)
            out.copy_(vector)
            return
        weight = live_weights(view.weights, view.rank, senders)[view.rank]
        self._add_own(vector, weight, self._sum([incoming[a]["values"] for a in senders]), view, out)

    def _why_not(self, senders: Sequence[int], incoming: Incoming) -> str:
        """Why the masks of the received payloads do not cancel; empty when they do."""
        if len(senders) < self.least_senders:
            return f"{len(senders)} senders are left, at least {self.least_senders} are needed"
        missing = [a for a in senders if a not in incoming]
        if missing:
            return f"without rank {', '.join(map(str, missing))} the masks of the others stay"
        expected = _fingerprint(senders)
        other = [a for a in senders if int(incoming[a]["senders"][0]) != expected]
        return f"rank {other[0]} masked for other senders" if other else ""

    def _sum(self, received: list[Tensor]) -> Tensor:
        """(1 / scale) sum_a y_a: masks cancel in integers, so the conversion to floats is last."""
        summed = received[0].new_empty(received[0].shape, dtype=self._values.dtype)
        size = PIECE_BYTES // received[0].element_size()
        columns = zip(*(torch.split(y, size) for y in (summed, *received)), strict=True)
        for piece, first, *rest in columns:
            total = first.clone()
            for y in rest:
                total.add_(y)
            piece.copy_(total).div_(self.scale)
        return summed

    def _add_own(self, vector: Tensor, weight: float, summed: Tensor, view: View, out: Tensor) -> None:
        """x_r <- w_rr x_r + the sum, where something was sent; the rest of x_r stays as it is."""
        chain, context = self.chain, Context(self.seed, view.round, view.rank, view.rank)
        others = chain.decode_coefficients(Payload(chain.layout, summed.view(torch.uint8)), context)
        own = chain.to_basis(vector)
        mixed = out if not chain.basis else torch.empty_like(own)
        if chain.layout.form is Form.DENSE:
            weighted_sum([(weight, own), (1.0, others)], mixed)
        else:
            sent = _selecting(chain).coordinates(context, own.device)
            mixed.copy_(own)
            mixed[sent] = weight * own[sent] + others[sent]
        if chain.basis:
            out.copy_(chain.from_basis(mixed, context))


def _selecting(chain: Chain) -> Any:
    """The stage whose `coordinates(context)` all nodes send in a round; None without one."""
    return next((t for t in chain.transforms if getattr(t, "shared_mask", False)), None)


def _flaw(transform: Transform) -> str:
    """Why the transform of a sum is not the sum of the transforms; empty when it is."""
    if transform.depends_on_signal:
        return "each sender would choose other coordinates; random_k with shared_mask: true chooses the same"
    if transform.emits in (Form.QUANTIZED, Form.BYTES):
        return "only integers of one scale can be summed under masks; the options scale and bits set it"
    if transform.emits is Form.SPARSE and not getattr(transform, "shared_mask", False):
        return "each sender would send other coordinates; set shared_mask: true"
    return ""


def _most(bits: int, senders: int) -> float:
    """The largest summand for which a sum of `senders` of them stays in the range of the integers."""
    return math.nextafter(2.0 ** (bits - 1) / senders, 0.0)


def _fingerprint(ranks: Sequence[int]) -> int:
    """Equal for equal sets of ranks; fits into 64 bits with a sign."""
    return xxhash.xxh3_64_intdigest(" ".join(map(str, ranks)).encode()) >> 1
