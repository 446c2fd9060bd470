"""Rules that mix models of which some may be wrong, one per file."""

from decentnode.sharing.robust.balance import Balance
from decentnode.sharing.robust.clipped_gossip import ClippedGossip
from decentnode.sharing.robust.geometric_median import GeometricMedian, Rfa
from decentnode.sharing.robust.krum import Krum
from decentnode.sharing.robust.median import Median
from decentnode.sharing.robust.trimmed_mean import TrimmedMean
from decentnode.sharing.robust.ubar import Ubar

__all__ = [
    "Balance", "ClippedGossip", "GeometricMedian", "Krum", "Median", "Rfa", "TrimmedMean", "Ubar",
]  # fmt: skip
