"""Averaging in which a node cannot read the model of a single neighbor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
import xxhash
from annotated_types import Ge, Lt
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph, live_weights
from decentnode.sharing.base import Exchange, Incoming, Setup
from decentnode.sharing.blocks.fixed_point import apply
from decentnode.sharing.blocks.mask_recovery import (
    MOST_SENDERS,
    NOTICE,
    REVEALED,
    SEALED,
    ReceiverGroup,
    SenderGroup,
    content,
    needed,
    payload_of,
    sealed_shares,
)  # fmt: skip
from decentnode.sharing.blocks.masked_sums import MaskedSums, all_senders
from decentnode.sharing.blocks.weighted_sum import weighted_sum
from decentnode.transforms.base import Transform, values_field
from decentnode.transforms.chain import Chain


@SHARINGS.register("secure_aggregation", "sec_agg")
@dataclass
class SecureAggregation(MaskedSums):
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
    receiver stays skipped. With `threshold` no round is skipped while more than that fraction of a
    receiver's senders is alive: each sender adds a mask of its own, gives the others its masks in shares, and
    two more exchanges let the receiver remove what is left in the sum of those that arrived
    (`blocks/mask_recovery.py`). The own model gets the weight of the others.

    Graphs that change: keys are agreed on at the start between all nodes, and masks are drawn for the senders
    of each round. A node with fewer senders than `least_senders` in a round keeps its own model, and nothing
    of a model is sent to it. Then that round does not keep the mean of all models.

    Protects against peers that are curious but follow the protocol. It does not protect models from an
    attacker that replaces public keys in transit (they are not signed), or from a receiver together with all
    senders but one. Without `threshold` it does not protect from a receiver that lies about missing senders.
    With it a receiver learns nothing more by such lies, as a sender reveals its shares once, for one set of
    senders, and two sets would need more than all of them. State: which senders were missing, but no keys.
    Nodes agree on new keys at each start, so that no mask is used twice.
    """

    promises = replace(
        MaskedSums.promises,
        overlaps=True,
        wire=(
            "deg * (4 k + 16), k values left by the chain; 8 k with 64 bits; with threshold about 34 deg^3 "
            "more"
        ),
        about_mean=(
            "keeps the mean of all models unless transforms clip them or add noise, or a node has too few "
            "senders"
        ),
    )
    state: ClassVar = ("_missed", "_left_out", "_told")

    threshold: Annotated[float, Ge(0.5), Lt(1)] | None = None
    """The fraction of a receiver's senders of which more must be alive in a round; None: all of them."""
    _missed: list[int] = field(default_factory=list, init=False, repr=False)
    """Sources that were missing in the last round: the next message names them."""
    _left_out: list[int] = field(default_factory=list, init=False, repr=False)
    """Sources that the last message named; the senders mask without them in this round."""
    _told: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    """The missing sources that the others' last messages named."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            self.promises = replace(self.promises, phases=3)

    def check(self, graph: WeightedGraph) -> None:
        if self.threshold is not None and graph.directed:
            raise BadInput(
                "secure_aggregation with threshold needs an undirected graph, as a node tells its senders "
                "who has arrived; leave threshold out, or use a graph such as epidemic_oracle"
            )
        super().check(graph)
        if self.threshold is not None and max(map(len, all_senders(graph))) > MOST_SENDERS:
            raise BadInput(
                f"secure_aggregation with threshold is for at most {MOST_SENDERS} senders to each node, as "
                "shares grow with their square; leave threshold out, or use a sparser graph"
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

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._values = values_field(setup.chain.layout)
        integers = Field("values", self._fixed.dtype, self._values.elements)
        missed = Field("missed", torch.int32, setup.num_nodes, variable=True)
        fields = (Field("senders", torch.int64, 1), missed, integers)
        self._layout = Layout(fields if self.threshold is None else (SEALED, integers), Form.MASKED)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return (self._layout, NOTICE, REVEALED)[phase]

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self._for_each(vector, view, self._masked)

    def _for_each(
        self, vector: Tensor, view: View, masked: Callable[[Tensor, int, View], Payload]
    ) -> dict[int, Payload]:
        """Returns what `masked` makes of the encoded values for each target."""
        encoded = self.encode(vector, view)
        on_host = {id(payload): payload[self._values.name].cpu() for payload in encoded.values()}
        return {r: masked(on_host[id(encoded[r])], r, view) for r in view.targets}

    def _masked(self, x: Tensor, receiver: int, view: View) -> Payload:
        payload = Payload.empty(self._layout, missed=len(self._missed))
        payload["missed"].copy_(torch.tensor(self._missed, dtype=torch.int32))
        left_out = self._told.get(receiver, [])
        senders = [c for c in view.co_senders[receiver] if c not in left_out]
        payload["senders"][0] = _fingerprint(senders)
        if len(senders) < self.least_senders or view.rank not in senders:
            payload["values"].zero_()
            return payload
        masks = [self._keys.mask(view.rank, c, receiver, view.round, 0) for c in senders if c != view.rank]
        self._mask(x, receiver, view, senders=len(senders), masks=masks, out=payload["values"])
        return payload

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Makes one exchange; with `threshold` two more, in which the receiver is helped to open the sum."""
        if self.threshold is None:
            await super().share(vector, view, exchange, out=out)
            return
        groups = {r: self._group(r, view.co_senders[r], view) for r in view.targets}

        def masked(x: Tensor, receiver: int, view: View) -> Payload:
            return self._sealed(x, groups[receiver], view)

        incoming = await exchange(self._for_each(vector, view, masked), view.sources)
        # Payloads of one exchange are invalid in the next.
        sums = ReceiverGroup(view.sources, self._least(view.sources), sealed_shares(incoming, view.sources))
        total = self._total([incoming[a]["values"] for a in sums.arrived])
        notices = await exchange({a: sums.notice(a) for a in view.sources}, view.targets)
        answers = {r: group.reveal(notices[r]) if r in notices else b"" for r, group in groups.items()}
        revealed = {r: payload_of(REVEALED, shares=shares) for r, shares in answers.items()}
        reveals = await exchange(revealed, view.sources)
        rows = {a: content(payload["shares"]) for a, payload in reveals.items()}
        self._open(sums, rows, total, vector=vector, view=view, out=out)

    def _least(self, senders: Sequence[int]) -> int:
        assert self.threshold is not None
        return max(self.least_senders, needed(len(senders), self.threshold))

    def _group(self, receiver: int, senders: tuple[int, ...], view: View) -> SenderGroup:
        return SenderGroup(
            self._keys, view.rank, receiver, round=view.round, senders=senders, least=self._least(senders)
        )

    def _sealed(self, x: Tensor, group: SenderGroup, view: View) -> Payload:
        """The masked values and the shares of the masks; zeros alone for a receiver with too few senders."""
        if len(group.senders) < group.least or len(group.senders) > MOST_SENDERS:
            payload = Payload.empty(self._layout, shares=0)
            payload["values"].zero_()
            return payload
        shares = group.sealed()
        payload = Payload.empty(self._layout, shares=len(shares))
        payload["shares"].copy_(torch.frombuffer(bytearray(shares), dtype=torch.uint8))
        self._mask(
            x, group.receiver, view, senders=len(group.senders), masks=group.masks(), out=payload["values"]
        )
        return payload

    def _total(self, received: Sequence[Tensor]) -> Tensor:
        total = torch.zeros(self._values.elements, dtype=self._fixed.dtype)
        for y in received:
            total.add_(y.cpu())
        return total

    def _open(
        self, group: ReceiverGroup, reveals: Mapping[int, bytes], total: Tensor, vector: Tensor, view: View,
        out: Tensor,
    ) -> None:  # fmt: skip
        """Removes what masks are left in the sum, and mixes it; the own model stays where that fails."""
        senders, arrived = group.senders, group.arrived
        try:
            if len(arrived) < group.least:
                raise ValueError(
                    f"{len(arrived)} of {len(senders)} senders are there, {group.least} are needed"
                )
            apply(group.masks(reveals), total)
        except ValueError as error:
            if len(senders) >= group.least:
                print(f"round {view.round + 1}: keeps its own model: {error}", flush=True)
            out.copy_(vector)
            return
        weight = live_weights(view.weights, view.rank, arrived)[view.rank]
        self._add_own(
            vector, weight, self._fixed.sum([total.to(vector.device)], self._values.dtype), view=view, out=out
        )

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        senders = [a for a in view.sources if a not in self._left_out]
        flaw = self._why_not(senders, incoming)
        self._told = {r: payload["missed"].tolist() for r, payload in incoming.items()}
        self._left_out, self._missed = self._missed, [a for a in view.sources if a not in incoming]
        if flaw:
            if len(view.sources) >= self.least_senders:
                print(f"round {view.round + 1}: keeps its own model: {flaw}", flush=True)
            out.copy_(vector)
            return
        weight = live_weights(view.weights, view.rank, senders)[view.rank]
        summed = self._fixed.sum([incoming[a]["values"] for a in senders], self._values.dtype)
        self._add_own(vector, weight, summed, view=view, out=out)

    def _why_not(self, senders: Sequence[int], incoming: Incoming) -> str:
        """Returns why the masks of the received payloads do not cancel; empty when they do."""
        if len(senders) < self.least_senders:
            return f"{len(senders)} senders are left, at least {self.least_senders} are needed"
        missing = [a for a in senders if a not in incoming]
        if missing:
            return f"without rank {', '.join(map(str, missing))} the masks of the others stay"
        expected = _fingerprint(senders)
        other = [a for a in senders if int(incoming[a]["senders"][0]) != expected]
        return f"rank {other[0]} masked for other senders" if other else ""

    def _add_own(self, vector: Tensor, weight: float, summed: Tensor, view: View, out: Tensor) -> None:
        """Sets x_r <- w_rr x_r + the sum, where something was sent; the rest of x_r stays as it is."""
        chain, context = self.chain, view.context(view.rank, view.rank)
        others = chain.decode_coefficients(Payload(chain.layout, summed.view(torch.uint8)), context)
        local = chain.to_basis(vector)
        mixed = out if not chain.basis else torch.empty_like(local)
        if chain.layout.form is Form.DENSE:
            weighted_sum([(weight, local), (1.0, others)], mixed)
        else:
            sent = _selecting(chain).coordinates(context, local.device)
            mixed.copy_(local)
            mixed[sent] = weight * local[sent] + others[sent]
        if chain.basis:
            out.copy_(chain.from_basis(mixed, context))


def _selecting(chain: Chain) -> Any:
    """The stage whose `coordinates(context)` all nodes send in a round; None without one."""
    return next((t for t in chain.transforms if getattr(t, "shared_mask", False)), None)


def _flaw(transform: Transform) -> str:
    """Returns why the transform of a sum is not the sum of the transforms; empty when it is."""
    if transform.depends_on_signal:
        return "each sender would choose other coordinates; random_k with shared_mask: true chooses the same"
    if transform.emits in (Form.QUANTIZED, Form.BYTES):
        return "only integers of one scale can be summed under masks; the options scale and bits set it"
    if transform.counts_rounds:
        return "all rounds must have equally many values; use random_k with shared_mask alone"
    if transform.emits is Form.SPARSE and not getattr(transform, "shared_mask", False):
        return "each sender would send other coordinates; set shared_mask: true"
    return ""


def _fingerprint(ranks: Sequence[int]) -> int:
    """Returns a number that is equal for equal sets of ranks; fits into 64 bits with a sign."""
    return xxhash.xxh3_64_intdigest(" ".join(map(str, ranks)).encode()) >> 1
