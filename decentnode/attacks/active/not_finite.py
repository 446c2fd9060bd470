"""Values that are no numbers."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from decentnode.attacks.base import Attack, Seen
from decentnode.core.registry import ATTACKS
from decentnode.graph.base import View


@ATTACKS.register("not_finite", "inf", "nan")
@dataclass(kw_only=True)
class NotFiniteModels(Attack):
    """Sends a model of NaN or infinite values (Blanchard et al., NeurIPS 2017: any vector may be sent)."""

    value: Literal["nan", "inf"] = "nan"

    def lie(self, model: Tensor, view: View, seen: Seen, target: int | None) -> Tensor:
        return torch.full_like(model, math.nan if self.value == "nan" else math.inf)
