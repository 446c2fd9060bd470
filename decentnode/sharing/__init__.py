"""Sharing schemes, one per file."""

from decentnode.sharing.all_reduce import AllReduce
from decentnode.sharing.gossip import Gossip
from decentnode.sharing.none import NoSharing

__all__ = ["AllReduce", "Gossip", "NoSharing"]
