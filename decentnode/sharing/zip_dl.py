"""Zip-DL: noise that cancels in the mean of all models."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.options import PositiveFloat
from decentnode.sharing.base import Incoming, Requirements
from decentnode.sharing.blocks.noise import Generator, normal_like
from decentnode.sharing.gossip import Gossip
from decentnode.transforms.chain import Chain


@SHARINGS.register("zip_dl")
@dataclass(kw_only=True)
class ZipDl(Gossip):
    """Sends each neighbor another noisy model; the noise cancels (Biswas et al., PoPETs 2025, Alg. 1).

    Y_iv ~ N(0, sigma^2 I) for each v of the closed neighborhood N_i
    Z_iv = Y_iv - 1/(|N_i| w_vi) sum_u w_ui Y_iu,   so that sum_v w_vi Z_iv = 0
    x_v <- sum_i w_vi (y_i + Z_iv),   the own Z_vv included

    Where no payload of an edge arrives, the own noise cancels that of the others: w_vv Z_vv = -sum_i w_iv
    Z_vi over the i that arrived, w_vv with the weights of the others. So the mean of all models is that
    without noise, up to rounding, but for what a lost edge costs. A neighbor sees y_i + Z_iv, whose noise has
    the variance of `variance`. All neighbors together can average it out, and
    what stays is that of the own Z_ii. |N_i| counts the v with w_vi > 0; for others Z_iv = Y_iv.
    """

    requirements = Requirements(undirected_graph=True)
    promises = replace(
        Gossip.promises,
        by_coordinate=False,
        overlaps=False,
        takes_correction=False,
        takes_strength=False,
        protects=True,
        sends_one_payload=False,
        about_mean="keeps the mean of all models",
        wire="deg * b d",
    )

    sigma: PositiveFloat
    generator: Generator = "secure"
    _own_model: Tensor | None = field(default=None, init=False, repr=False)
    """The own noisy model y_i + Z_ii, from `outgoing` until `mix`."""
    _sent_models: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    """The noisy models y_i + Z_iv by v, of the last `outgoing`."""

    def check_chain(self, chain: Chain) -> None:
        if chain.transforms:
            raise BadInput(
                f"{name_of(self)} sends each neighbor another model, and transforms would leave noise that "
                "does not cancel; leave them out"
            )

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        noise = self._noise(vector, view)
        self._own_model = noise.pop(view.rank).add_(vector)
        self._sent_models = {v: z.add_(vector) for v, z in noise.items()}
        return {v: Payload.dense(y) for v, y in self._sent_models.items()}

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        local = vector if self._own_model is None else self._own_model
        if incoming.keys() < self._sent_models.keys():
            weight = self.weights(dict.fromkeys(incoming, vector), view)[view.rank]
            local = vector.clone()
            for v in incoming:
                local.sub_(self._sent_models[v] - vector, alpha=view.outgoing_weights[v] / weight)
        super().mix(local, incoming, view, out)
        self._own_model = None

    def _noise(self, vector: Tensor, view: View) -> dict[int, Tensor]:
        """Returns the noise Z_iv by rank v, the own one included."""
        weights = view.outgoing_weights
        drawn = {
            v: normal_like(
                vector, self.generator, self.setup.seed, purpose=name_of(self), view=view, receiver=v
            ).mul_(self.sigma)
            for v in weights
        }
        total = torch.zeros_like(vector)
        for v, y in drawn.items():
            total.add_(y, alpha=weights[v])
        used = [v for v in weights if weights[v] > 0]
        for v in used:
            drawn[v].sub_(total, alpha=1 / (len(used) * weights[v]))
        return drawn


def variance(view: View, receiver: int, sigma: float) -> float:
    """The variance of each value of Z_iv for that receiver v (from the definition of Z)."""
    weights = {v: weight for v, weight in view.outgoing_weights.items() if weight > 0}
    if receiver not in weights:
        return sigma**2
    closed = len(weights)
    others = sum(w**2 for u, w in weights.items() if u != receiver)
    kept = (1 - 1 / closed) ** 2 + others / (closed * weights[receiver]) ** 2
    return (sigma * sqrt(kept)) ** 2
