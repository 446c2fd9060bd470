"""Sharing schemes, one per file."""

from decentnode.sharing.all_reduce import AllReduce
from decentnode.sharing.d2 import D2
from decentnode.sharing.decent_lam import DecentLam
from decentnode.sharing.exact_diffusion import ExactDiffusion
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.gradient_tracking import GradientTracking
from decentnode.sharing.none import NoSharing
from decentnode.sharing.power_gossip import PowerGossip
from decentnode.sharing.push_sum import PushSum
from decentnode.sharing.quasi_global import QuasiGlobal
from decentnode.sharing.relay_sum import RelaySum
from decentnode.sharing.secure_aggregation import SecureAggregation

__all__ = [
    "D2",
    "AllReduce",
    "DecentLam",
    "ExactDiffusion",
    "Gossip",
    "GradientTracking",
    "NoSharing",
    "PowerGossip",
    "PushSum",
    "QuasiGlobal",
    "RelaySum",
    "SecureAggregation",
]
