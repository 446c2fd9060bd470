"""Secure aggregation of sparse models."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.payload import Field, Form, Layout, Payload, PayloadError, Role
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.sharing.base import Exchange, Incoming, Setup
from decentnode.sharing.blocks.fixed_point import apply
from decentnode.sharing.blocks.masked_sums import MaskedSums
from decentnode.transforms.base import VALUES
from decentnode.transforms.chain import Chain

Selection = NDArray[np.bool_]
"""The coordinates that a node has selected, as booleans of shape (d,)."""


@SHARINGS.register("cesar")
@dataclass
class Cesar(MaskedSums):
    """Sends a value only where enough others hide it in a sum (Biswas et al., arXiv 2405.07708, 2024, CESAR).

    T_r  <- coordinates that at least s + 1 of the senders to r have selected, s = least_senders - 1
    y_ar <- Q(w_ra x_a) + sum_{c > a} m_ac - sum_{c < a} m_ac   on I_a and T_r, m_ac on I_a, I_c and T_r
    x_r  <- x_r + (1 / scale) sum_a y_ar - (sum_a w_ra) x_r     on each coordinate, over the a that sent it

    I_a is what the chain of a selects. With random_k all nodes compute the I_a of each other from the seed,
    and a round has one exchange. With top_k there are three: a node sends I_a, the receiver tells each sender
    which of its coordinates each other one has selected, and then values are sent. Masks are those of
    secure_aggregation, and so are fixed point and the range of sums.

    With random selections of density f and k senders a node sends f P(Bin(k - 1, f) >= s) of its values to
    each neighbor (`shared_fraction`). Coordinates at which a sender is missing keep the own values. Protects
    against peers that are curious but follow the protocol; s of them in a sum may collude with the receiver,
    and then know the rest. Selected coordinates are known: with top_k to neighbors, with random_k to all.
    """

    requirements = replace(MaskedSums.requirements, undirected_graph=True)
    promises = replace(
        MaskedSums.promises,
        wire=("deg * (b k + 8), k values that enough select; with top_k indices and deg k / f bits more"),
        about_mean="keeps the mean of all models where all nodes select the same coordinates",
    )

    _source_selections: dict[int, Selection] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The selections of the sources of this round, from the exchanges before until `mix`."""

    def check_chain(self, chain: Chain) -> None:
        fields = {f.name: f for f in chain.layout.fields}
        values = fields.get(VALUES)
        remedy = f"{name_of(self)} needs random_k, or top_k with one fraction, and at most a coder of indices"
        remedy += " after it"
        if _rounds(chain) or chain.per_receiver:
            raise BadInput(f"{remedy}; this chain rounds values, or sends other ones to each neighbor")
        if values is None or chain.layout.form is not Form.SPARSE:
            raise BadInput(f"{remedy}; this chain does not select values")
        if values.variable:
            raise BadInput(f"{remedy}; this chain sends another number of values in each round")
        if chain.corrects:
            reason = f"{name_of(self)} sends fewer values than the chain selects"
            raise BadInput(f"{reason}; leave out error_feedback")

    def preserves_mean(self, chain: Chain) -> bool:
        return chain.same_coordinates and not chain.protects

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        chain, graph = setup.chain, setup.graph
        most_senders = max(graph.most_targets(rank) for rank in range(graph.num_nodes))
        most = next(f.elements for f in chain.layout.fields if f.name == VALUES)
        selected = tuple(f for f in chain.layout.fields if f.name != VALUES)
        marks = Field(
            "marks", torch.uint8, most_senders * (1 + -(-most // 8)), variable=True, role=Role.INDEX
        )
        before = (Layout(selected), Layout((marks,))) if selected else ()
        sums = Layout((Field("values", self._fixed.dtype, most, variable=True),), Form.MASKED)
        self._layouts = (*before, sums)
        self.promises = replace(self.promises, phases=len(self._layouts))

    def payload_layout(self, phase: int = 0) -> Layout | None:
        layout: Layout = self._layouts[phase]
        return layout

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Exchanges selections where they depend on models, then masked values."""
        payload = next(iter(self.encode(vector, view).values()), None)
        others: dict[int, dict[int, Selection]] = {}
        if payload is None:
            own_selection, self._source_selections = np.zeros(0, np.bool_), {}
        elif self.promises.phases == 1:
            own_selection, others = self._drawn(view)
        else:
            own_selection = self._selection(payload, view, view.rank)
            others = await self._selections(payload, own_selection, view, exchange=exchange)
        values = torch.zeros(0) if payload is None else payload[VALUES].cpu()
        sent = {
            r: self._masked(values, own_selection, others.get(r, {}), receiver=r, view=view)
            for r in view.targets
        }
        self.mix(vector, await exchange(sent, view.sources), view, out)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        raise NotImplementedError("cesar makes its payloads in share")

    def _drawn(self, view: View) -> tuple[Selection, dict[int, dict[int, Selection]]]:
        """Returns what this node and the other senders to each target select by the seed."""
        near = {view.rank, *view.sources, *(c for r in view.targets for c in view.co_senders[r])}
        drawn = {c: self._selection(None, view, c) for c in near}
        self._source_selections = {a: drawn[a] for a in view.sources}
        return drawn[view.rank], {r: {c: drawn[c] for c in view.co_senders[r]} for r in view.targets}

    def _selection(self, payload: Payload | None, view: View, sender: int) -> Selection:
        """Returns what the payload's indices, or the seed, select: the chain decodes it from ones."""
        layout = self.chain.layout
        ones = torch.ones(next(f.elements for f in layout.fields if f.name == VALUES), dtype=self.chain.dtype)
        sent_fields = (
            {} if payload is None else {f.name: payload[f.name].cpu() for f in payload.layout.fields}
        )
        filled = Payload.of(layout, {**sent_fields, VALUES: ones})
        decoded = self.chain.decode_coefficients(filled, view.context(sender, view.rank))
        selection: Selection = decoded.numpy() != 0
        return selection

    async def _selections(
        self, payload: Payload, own_selection: Selection, view: View, exchange: Exchange
    ) -> dict[int, dict[int, Selection]]:
        """Returns what each sender known to each target selects of `own_selection`, by target."""
        selected, marks = self._layouts[:2]
        indices = Payload.of(selected, {f.name: payload[f.name].cpu() for f in selected.fields})
        incoming = await exchange(dict.fromkeys(view.targets, indices), view.sources)
        sources = self.decode_each(incoming, view, lambda a, payload: self._selection(payload, view, a))
        notices = {a: Payload.of(marks, {"marks": self._notice(a, sources, view)}) for a in view.sources}
        answers = await exchange(notices, view.targets)
        others = self.decode_each(
            answers, view, lambda r, payload: self._told(payload["marks"], own_selection, r, view=view)
        )
        self._source_selections = sources
        return others

    def _notice(self, sender: int, selections: Mapping[int, Selection], view: View) -> Tensor:
        """Returns whether each other sender, ascending, is there, and a bit for each of its coordinates."""
        if sender not in selections:
            return torch.zeros(0, dtype=torch.uint8)
        parts = []
        for c in view.sources:
            if c == sender:
                continue
            parts.append(np.array([c in selections], np.uint8))
            if c in selections:
                parts.append(np.packbits(selections[c][selections[sender]]))
        return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.uint8)

    def _told(
        self, marks: Tensor, own_selection: Selection, receiver: int, view: View
    ) -> dict[int, Selection]:
        """The selections behind `_notice`, within the own one."""
        received, count, position = marks.cpu().numpy(), int(own_selection.sum()), 0
        selections = {view.rank: own_selection}
        for c in view.co_senders[receiver]:
            if c == view.rank:
                continue
            if position >= received.size:
                raise PayloadError(f"{received.size} bytes are too few for the selections of others")
            is_there, position = received[position], position + 1
            if not is_there:
                continue
            bits = received[position : position + -(-count // 8)]
            position += bits.size
            if bits.size != -(-count // 8):
                raise PayloadError(f"{received.size} bytes are too few for the selections of others")
            selections[c] = np.zeros_like(own_selection)
            selections[c][own_selection] = np.unpackbits(bits, count=count).astype(np.bool_)
        return selections

    def _masked(
        self,
        values: Tensor,
        own_selection: Selection,
        selections: Mapping[int, Selection],
        receiver: int,
        view: View,
    ) -> Payload:
        """The values that enough of the senders to a receiver have selected, under masks."""
        layout = self._layouts[-1]
        others = {c: chosen for c, chosen in selections.items() if c != view.rank}
        number = sum(
            (chosen.astype(np.int32) for chosen in others.values()), np.zeros(own_selection.shape, np.int32)
        )
        shared = own_selection & (number >= self.least_senders - 1)
        payload = Payload.empty(layout, values=int(shared.sum()))
        if not shared.any():
            return payload
        y, coordinates = payload["values"], torch.from_numpy(np.flatnonzero(shared))
        x = values[torch.from_numpy(shared[own_selection])]
        self._mask(x, receiver, view, senders=len(others) + 1, masks=[], out=y, coordinates=coordinates)
        for c, chosen in others.items():
            places = torch.from_numpy(chosen[shared])
            part = y[places]
            apply([self._keys.mask(view.rank, c, receiver, view.round, 0)], part)
            y[places] = part
        return payload

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        """Adds the sums on the coordinates at which all that selected them have arrived."""
        selections = self._source_selections
        local = self.chain.to_basis(vector)
        n = local.numel()
        number = sum((chosen.astype(np.int32) for chosen in selections.values()), np.zeros(n, np.int32))
        shared, weight = number >= self.least_senders, np.zeros(n)
        total = torch.zeros(n, dtype=self._fixed.dtype)
        intact = shared.copy()
        for a, chosen in selections.items():
            here = chosen & shared
            y = self._values(incoming, a, int(here.sum()), view=view)
            if y is None:
                # The masks that others share with it stay in their sums.
                intact &= ~chosen
                continue
            total[torch.from_numpy(here)] += y
            weight[here] += view.weights[a]
        at = torch.from_numpy(np.flatnonzero(intact))
        summed = self._fixed.sum([total[at]], local.dtype).to(local.device)
        kept = (1 - torch.from_numpy(weight)[at]).to(local.device, local.dtype)
        at = at.to(local.device)
        mixed = local.clone()
        mixed[at] = kept * local[at] + summed
        context = view.context(view.rank)
        out.copy_(self.chain.from_basis(mixed, context) if self.chain.basis else mixed)

    def _values(self, incoming: Incoming, sender: int, count: int, view: View) -> Tensor | None:
        if sender not in incoming:
            return None
        y = incoming[sender]["values"].cpu()
        if y.numel() != count:
            self.refuse(sender, view, PayloadError(f"{y.numel()} values where {count} are shared"))
            return None
        return y


def _rounds(chain: Chain) -> bool:
    return any(stage.emits in (Form.QUANTIZED, Form.BYTES) for stage in chain.stages)


def shared_fraction(density: float, senders: int, s: int) -> float:
    """The expected share of a model's values that a node sends to one of so many senders' receiver."""
    others, p = senders - 1, density
    return p * sum(comb(others, i) * p**i * (1 - p) ** (others - i) for i in range(s, others + 1))
