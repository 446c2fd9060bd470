"""The coordinate-wise median."""

from dataclasses import dataclass

from decentnode.core.registry import SHARINGS
from decentnode.sharing.robust.trimmed_mean import TrimmedMean


@SHARINGS.register("median", "coordinate_wise_median", "cwmed", "co_med")
@dataclass
class Median(TrimmedMean):
    """The median of each coordinate; of an even number the mean of the two middle ones (Yin et al., 2018).

    x_i <- the median of {y_i} and the y_j that arrived

    It needs no number of wrong models; less than half of the models may be wrong.
    """

    def least(self) -> int:
        return 1

    def trimmed(self, count: int) -> int:
        return (count - 1) // 2
