"""Muffliato: noise once, then several mixing steps that hide where it came from."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.options import PositiveFloat
from decentnode.sharing.base import Exchange
from decentnode.sharing.blocks.noise import Generator, normal_like
from decentnode.sharing.multi_gossip import MultiGossip
from decentnode.transforms.chain import Chain


@SHARINGS.register("muffliato")
@dataclass(kw_only=True)
class Muffliato(MultiGossip):
    """Adds noise to the local update once, then mixes `steps` times (Cyffers et al., NeurIPS 2022, Alg. 1).

    u = (y - x) min(1, clip / |y - x|),   x_0 = x + u + clip noise N(0, I),   x_t+1 as in `multi_gossip`

    x is the model before the local steps and y that after them. The more steps lie between two nodes, the
    less one learns of the other's update: pairwise network differential privacy, computed by `decentnode
    privacy`. The noise of the mean model has the variance (clip noise)^2 / n. State: x, d.
    """

    promises = replace(
        MultiGossip.promises,
        by_coordinate=False,
        protects=True,
        about_mean="adds noise to the mean of all models, once in a round",
    )
    state: ClassVar = ("_before",)

    noise: Annotated[float, Ge(1e-3), Le(1e4)]
    """The deviation of the noise, in units of `clip`."""
    clip: PositiveFloat = 1.0
    """The largest Euclidean norm of a local update."""
    generator: Generator = "secure"
    _before: Any = field(default=None, init=False, repr=False)

    def preserves_mean(self, chain: Chain) -> bool:
        return False

    def check_chain(self, chain: Chain) -> None:
        super().check_chain(chain)
        if chain.protects:
            raise BadInput(f"{name_of(self)} adds noise of its own; leave clip and gaussian_noise out")

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._before = vector.clone()

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        update = vector - self._before
        update.mul_(min(1.0, self.clip / max(float(torch.linalg.vector_norm(update)), 1e-30)))
        noisy = update.add_(self._before)
        # A node that rests has no update to hide, and sends nothing; it keeps its model.
        if view.learning_rate or view.targets or view.sources:
            noise = normal_like(vector, self.generator, self.setup.seed, purpose=name_of(self), view=view)
            noisy.add_(noise, alpha=self.noise * self.clip)
        await super().share(noisy, view, exchange, out=out)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        super().accept(vector, view, mixed)
        self._before.copy_(mixed)
