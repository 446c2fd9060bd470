"""Random models."""

from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.core.rng import generator
from decentnode.graph.base import View
from decentnode.options import PositiveFloat


@ATTACKS.register("noise", "gaussian")
@dataclass(kw_only=True)
class NoisyModels(Attack):
    """Sends y_i + N(0, deviation^2) (the Gaussian attack: Blanchard et al., NeurIPS 2017, section 6)."""

    deviation: PositiveFloat = 1.0

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        random = generator(self.seed, "noise_attack", view.round, view.rank)
        noise = torch.as_tensor(random.standard_normal(model.numel()), dtype=model.dtype)
        return model + self.deviation * noise.to(model.device)
