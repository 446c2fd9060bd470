"""Mixing, and steps, that follow how far neighbors are apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import AdjustGradient
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import complete, live_weights
from decentnode.options import PositiveFloat, Probability
from decentnode.sharing.gossip import Gossip
from decentnode.transforms.chain import Chain


@SHARINGS.register("consensus_control")
@dataclass
class ConsensusControl(Gossip):
    """Gossip that is weaker between models near each other (own rule, 2026, after Kong et al., ICML 2021).

    x_i <- x_i + sum_j w_ij s(r_ij) (x_j - x_i),   r_ij = |x_i - x_j| / sqrt((|x_i|^2 + |x_j|^2) / 2)
    s(r) = min(1, max(least, r / target))

    Kong et al. find a critical consensus distance: training is as good as with one model below it, and worse
    above. So models are mixed fully from `target` on, and less below. Both ends of an edge compute the same
    r, so symmetric weights keep the mean. `target` is relative to the models, as the recorded distance.

    With `slow_down` a node also multiplies its gradients by min(1, target / r_i), where r_i^2 is the mean of
    its r_ij^2 in the last mix, weighted by w_ij. This is a smaller learning rate for plain SGD, and for no
    other optimizer. Both ends need the same numbers, so transforms must be lossless. State: r_i.
    """

    promises = replace(Gossip.promises, by_coordinate=False, takes_correction=False)
    state: ClassVar = ("_distance",)

    target: PositiveFloat = 0.1
    least: Probability = 0.1
    """The least s, for models that are equal."""
    slow_down: bool = False
    _distance: float = field(default=0.0, init=False, repr=False)
    """The distance r_i of the last mix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requirements = replace(self.requirements, plain_sgd=self.slow_down)

    def check_chain(self, chain: Chain) -> None:
        for index, stage in enumerate(chain.stages):
            if stage.changes_basis or not (stage.lossless and stage.same_coordinates):
                raise BadInput.at(
                    f"transforms[{index}]",
                    f"{name_of(stage)} changes the models that {name_of(self)} compares; leave it out",
                )

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        return self._slow if self.slow_down else None

    def weights(self, signals: Mapping[int, Tensor], view: View) -> dict[int, float]:
        full = live_weights(view.weights, view.rank, signals)
        local = signals[view.rank]
        apart = {j: distance(local, x_j) for j, x_j in signals.items() if j != view.rank}
        total = math.fsum(full[j] for j in apart)
        if total:
            self._distance = math.sqrt(math.fsum(full[j] * (r * r) for j, r in apart.items()) / total)
        return complete({j: full[j] * self.strength(r) for j, r in apart.items()}, view.rank)

    def strength(self, r: float) -> float:
        """The strength s(r)."""
        return min(1.0, max(self.least, r / self.target))

    def _slow(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        if self._distance > self.target:
            gradient.mul_(self.target / self._distance)


def distance(x: Tensor, y: Tensor) -> float:
    """The distance r of two models relative to their norms, the same for (x, y) and (y, x)."""
    apart, *norms = (float(torch.linalg.vector_norm(z.double())) for z in (x - y, x, y))
    return apart / scale if (scale := math.sqrt((norms[0] * norms[0] + norms[1] * norms[1]) / 2)) else 0.0
