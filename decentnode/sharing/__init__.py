"""Sharing schemes, one per file."""

from decentnode.sharing.all_reduce import AllReduce
from decentnode.sharing.base import Sharing
from decentnode.sharing.beer import Beer
from decentnode.sharing.choco import Choco
from decentnode.sharing.d2 import D2
from decentnode.sharing.decent_lam import DecentLam
from decentnode.sharing.deep_squeeze import DeepSqueeze
from decentnode.sharing.exact_diffusion import ExactDiffusion
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.gradient_tracking import GradientTracking
from decentnode.sharing.jwins import Jwins
from decentnode.sharing.moniqua import Moniqua
from decentnode.sharing.none import NoSharing
from decentnode.sharing.power_gossip import PowerGossip
from decentnode.sharing.push_sum import PushSum
from decentnode.sharing.quasi_global import QuasiGlobal
from decentnode.sharing.relay_sum import RelaySum
from decentnode.sharing.secure_aggregation import SecureAggregation
from decentnode.sharing.stc import Stc

__all__ = [
    "D2", "AllReduce", "Beer", "Choco", "DecentLam", "DeepSqueeze", "ExactDiffusion", "Gossip",
    "GradientTracking", "Jwins", "Moniqua", "NoSharing", "PowerGossip", "PushSum", "QuasiGlobal", "RelaySum",
    "SecureAggregation", "Sharing", "Stc",
]  # fmt: skip
