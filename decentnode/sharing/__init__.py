"""Sharing schemes, one per file."""

from decentnode.sharing import aliases, asynchronous
from decentnode.sharing.all_reduce import AllReduce
from decentnode.sharing.base import Promises, Requirements, Setup, Sharing
from decentnode.sharing.beer import Beer
from decentnode.sharing.cesar import Cesar
from decentnode.sharing.choco import Choco
from decentnode.sharing.consensus_control import ConsensusControl
from decentnode.sharing.d2 import D2
from decentnode.sharing.decent_lam import DecentLam
from decentnode.sharing.deep_squeeze import DeepSqueeze
from decentnode.sharing.demo import DeMo
from decentnode.sharing.exact_diffusion import ExactDiffusion
from decentnode.sharing.fed_avg import FedAvg
from decentnode.sharing.fed_opt import FedAdam
from decentnode.sharing.fed_prox import FedProx
from decentnode.sharing.fed_stc import FedStc
from decentnode.sharing.gasloc import Gasloc
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.gradient_tracking import GradientTracking
from decentnode.sharing.jwins import Jwins
from decentnode.sharing.levels import Levels
from decentnode.sharing.moniqua import Moniqua
from decentnode.sharing.mosaic import Mosaic
from decentnode.sharing.muffliato import Muffliato
from decentnode.sharing.multi_gossip import MultiGossip
from decentnode.sharing.none import NoSharing
from decentnode.sharing.parameter_server import ParameterServer
from decentnode.sharing.power_gossip import PowerGossip
from decentnode.sharing.push_sum import PushSum
from decentnode.sharing.quasi_global import QuasiGlobal
from decentnode.sharing.relay_sum import RelaySum
from decentnode.sharing.robust import (
    Balance,
    ClippedGossip,
    GeometricMedian,
    Krum,
    Median,
    Rfa,
    TrimmedMean,
    Ubar,
)
from decentnode.sharing.scaffold import Scaffold
from decentnode.sharing.secure_aggregation import SecureAggregation
from decentnode.sharing.shatter import Shatter
from decentnode.sharing.sparse_loco import SparseLoCo
from decentnode.sharing.stc import Stc
from decentnode.sharing.wrapper import SchemeWrapper
from decentnode.sharing.zip_dl import ZipDl

__all__ = [
    "D2", "AllReduce", "Balance", "Beer", "Cesar", "Choco", "ClippedGossip",
    "ConsensusControl", "DeMo", "DecentLam", "DeepSqueeze", "ExactDiffusion", "FedAdam", "FedAvg", "FedProx",
    "FedStc", "Gasloc", "GeometricMedian", "Gossip", "GradientTracking", "Jwins", "Krum", "Levels",
    "Median", "Moniqua", "Mosaic", "Muffliato", "MultiGossip", "NoSharing", "ParameterServer", "PowerGossip",
    "Promises", "PushSum", "QuasiGlobal", "RelaySum", "Requirements", "Rfa", "Scaffold", "SchemeWrapper",
    "SecureAggregation", "Setup", "Sharing", "Shatter", "SparseLoCo", "Stc", "TrimmedMean", "Ubar", "ZipDl",
    "aliases", "asynchronous",
]  # fmt: skip
