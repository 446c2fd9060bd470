"""Schemes that print what they keep the sum of, in each round; named from YAML as `kept_sums:gossip`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from decentnode import sharing
from decentnode.core.registry import SHARINGS
from decentnode.core.vector import AdjustGradient
from decentnode.graph.base import View
from decentnode.sharing.asynchronous import AdPsgd
from decentnode.sharing.asynchronous.base import Posts
from decentnode.sharing.base import Exchange, Incoming, Sharing

MARK = "kept: "
"""The start of a line of a node's log that this module has written."""


def as_numbers(value: Any) -> Any:
    """Tensors as lists of numbers, also those in a dict by rank."""
    if isinstance(value, Mapping):
        return {str(key): as_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_numbers(item) for item in value]
    if isinstance(value, int | float):
        return value
    return torch.as_tensor(value, dtype=torch.float64).flatten().tolist()


def printing(scheme: type[Sharing], **state: str) -> type[Sharing]:
    """The scheme that prints the models before and after each mix, and these attributes after it."""

    @dataclass
    class Printing(scheme):  # type: ignore[misc,valid-type]
        def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
            super().accept(vector, view, mixed)
            sums = {name: as_numbers(attrgetter(path)(self)) for name, path in state.items()}
            models = {"before": as_numbers(vector), "after": as_numbers(mixed)}
            print(MARK + json.dumps({"round": view.round, **models, **sums}), flush=True)

    Printing.__doc__ = scheme.__doc__
    return Printing


all_reduce = printing(sharing.AllReduce)
beer = printing(sharing.Beer, tracker="_v", gradient="_g", pull="_models.p")
beer_per_edge = printing(SHARINGS.find("beer_per_edge"), tracker="_v", gradient="_g", pull="_models.p")
choco = printing(sharing.Choco, pull="_models.p")
choco_per_edge = printing(SHARINGS.find("choco_per_edge"), own="_models.own", theirs="_models.theirs")
consensus_control = printing(sharing.ConsensusControl)
d2 = printing(sharing.D2, correction="_correction")
deep_squeeze = printing(sharing.DeepSqueeze, sent="_c")
exact_diffusion = printing(sharing.ExactDiffusion, correction="_correction")
gossip = printing(sharing.Gossip)
gradient_tracking = printing(sharing.GradientTracking, tracker="_y", gradient="_g")
moniqua = printing(sharing.Moniqua, steps="_own_steps")
power_gossip = printing(sharing.PowerGossip)
push_sum = printing(sharing.PushSum, z="_z", w="_w")
quasi_global = printing(sharing.QuasiGlobal)
relay_sum = printing(sharing.RelaySum, counts="_counts")
secure_aggregation = printing(sharing.SecureAggregation)
stc = printing(sharing.Stc, pull="_models.p")
zip_dl = printing(sharing.ZipDl, sent="_sent_models")


@dataclass
class _Stepwise(sharing.MultiGossip):
    """Keeps the models of each step, and who was heard in it."""

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        self.models: list[Tensor] = []
        self.heard: list[list[int]] = []
        await super().share(vector, view, exchange, out)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self.models.append(vector.clone())
        self.heard.append(sorted(incoming))
        super().mix(vector, incoming, view, out)


multi_gossip = printing(_Stepwise, models="models", heard="heard", c="c")


@dataclass
class ad_psgd(AdPsgd):
    __doc__ = AdPsgd.__doc__

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._start, self._gradients = vector.clone(), torch.zeros_like(vector)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._add

    def _add(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        self._gradients += gradient

    def after_step(self, vector: Tensor, view: View) -> Posts:
        sums = {"start": as_numbers(self._start), "gradients": as_numbers(self._gradients)}
        print(MARK + json.dumps({"round": view.round, **sums}), flush=True)
        return super().after_step(vector, view)
