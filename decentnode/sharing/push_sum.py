"""Averages on directed graphs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload, PayloadError
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming, Promises, Requirements, Sharing
from decentnode.sharing.blocks.scalar_field import ScalarField
from decentnode.transforms.chain import Chain

WEIGHT = ScalarField("weight", torch.float64)


@SHARINGS.register("push_sum", "sgp", "stochastic_gradient_push")
@dataclass
class PushSum(Sharing):
    """Averages on directed graphs, and on undirected ones (SGP: Assran et al., ICML 2019, Alg. 1).

    z_i <- sum_j p_ij (z_j - eta g_j),   w_i <- sum_j p_ij w_j,   x_i = z_i / w_i;   w = 1 at the start

    p_ij = 1/(1 + out-degree of j): each node splits its sum evenly over its targets and itself. So columns
    sum to 1 on every graph, also one that changes. The weights of the configuration are not used. The sum of
    all z is kept, whatever transforms lose: a node keeps what it did not send. A lost message removes its
    part of the sum.

    State: z and w, d + 1 floats. Transforms that select are refused: z and w must travel together.
    """

    requirements = Requirements(float32=True)
    promises = Promises(
        by_coordinate=True,
        tolerates_loss=False,
        about_mean="does not keep the mean of all models, but the sum of all z",
        wire="out * (C(d) + 8)",
    )
    state: ClassVar = ("_z", "_w")

    _w: float = field(default=1.0, init=False, repr=False)

    def check_chain(self, chain: Chain) -> None:
        if chain.selects:
            raise BadInput(f"{name_of(self)} needs all coordinates of a sum, but a transform selects some")
        if chain.per_receiver:
            raise BadInput(
                f"{name_of(self)} sends all neighbors the same payload, but a transform encodes per neighbor"
            )

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._z = vector.clone()

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return WEIGHT.layout(self.chain.layout)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        # z <- z + (vector - x): the local steps move z as far as they moved x = z / w.
        self._z.mul_(1 - 1 / self._w).add_(vector)
        p = 1 / (1 + len(view.targets))
        share = self._z * p
        context = view.context(view.rank)
        payload = self.chain.encode(share, context)
        # The node keeps the difference to what targets decode, so that encoding loses nothing.
        self._z.sub_(self.chain.decode(payload.to(vector.device), context), alpha=len(view.targets))
        joined = WEIGHT.join(payload, self._w * p)
        self._w *= p
        return dict.fromkeys(view.targets, joined)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        parts = self.decode_each(incoming, view, lambda j, payload: self._part(j, payload, view))
        z = {view.rank: self._z, **{j: z_j for j, (z_j, _) in parts.items()}}
        self.weighted_mix(z, view, out, terms=lambda z: ((1.0, z_j) for z_j in z.values()))
        for j, (_, w_j) in parts.items():
            self._w += w_j if j in z else 0.0
        self._z.copy_(out)
        out.div_(self._w)

    def _part(self, j: int, payload: Payload, view: View) -> tuple[Tensor, float]:
        inner, companion = WEIGHT.split(payload, self.chain.layout)
        weight = companion.item()
        if not (math.isfinite(weight) and 0 < weight <= self.setup.num_nodes):
            raise PayloadError(
                f"a weight of {weight:g}; the weights of {self.setup.num_nodes} nodes sum to as many"
            )
        return self.chain.decode(inner, view.context(j, view.rank)), weight
