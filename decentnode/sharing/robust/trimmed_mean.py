"""The coordinate-wise trimmed mean."""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.sharing.blocks.weighted_sum import weighted_sum
from decentnode.sharing.robust.base import Aggregation, Models, Numbers
from decentnode.sharing.robust.order import middle_values, pieces_of


@SHARINGS.register(
    "trimmed_mean",
    "tr_mean",
    "cwtm",
    "bridge",
    "bridge_t",
    "coordinate_wise_trimmed_mean",
    nnm="before: nnm",
    nearest_neighbor_mixing="before: nnm",
    bucketing="before: bucketing",
)
@dataclass
class TrimmedMean(Aggregation):
    """Leaves out the f largest and the f smallest values of each coordinate (Yin et al., ICML 2018, Def. 2).

    x_i <- the mean of the other values of {y_i} and the y_j that arrived

    BRIDGE-T (Fang et al., 2022) is this rule on a graph. Needs at least 2 f + 1 models.
    """

    def least(self) -> int:
        return 2 * self.faults + 1

    def trimmed(self, count: int) -> int:
        """How many values of `count` are left out at each end."""
        return self.faults

    def aggregate(self, models: Models, mixes: Numbers | None, view: View, out: Tensor) -> None:
        inputs = len(models) if mixes is None else len(mixes)
        cut = self.trimmed(inputs)
        counted = [k for k in range(inputs) if mixes is not None or [*models][k] in self.setup.watched]
        kept = np.zeros(inputs)
        for piece, *values in pieces_of(out, *models.values()):
            if mixes is not None:
                stacked = torch.stack(values)
                values = list(torch.as_tensor(mixes, dtype=stacked.dtype, device=stacked.device) @ stacked)
            middle = middle_values(values, cut)
            weighted_sum([(1 / len(middle), x) for x in middle], piece)
            if self.setup.watched:
                kept[counted] += _kept([values[k] for k in counted], middle)
        share = kept / (out.numel() * (inputs - 2 * cut))
        self._shares = dict(zip(models, (share if mixes is None else share @ mixes).tolist(), strict=True))


def _kept(values: list[Tensor], middle: list[Tensor]) -> list[int]:
    """How many values of each input are not beyond those in the middle."""
    low, high = reduce(torch.minimum, middle), reduce(torch.maximum, middle)
    return [int(((value >= low) & (value <= high)).sum()) for value in values]
