"""Faults on purpose: what goes wrong, at which node, in which round, while it does what."""

from decentnode.node.faults.base import Fault, MessageFault, NodeFault
from decentnode.node.faults.message_faults import (
    Corrupt,
    Drop,
    Duplicate,
    MessageDelay,
    NetworkPartition,
    Reorder,
)
from decentnode.node.faults.node_faults import Crash, FullDisk, Hang, Raise, Slow, Stop

__all__ = [
    "Corrupt",
    "Crash",
    "Drop",
    "Duplicate",
    "Fault",
    "FullDisk",
    "Hang",
    "MessageDelay",
    "MessageFault",
    "NetworkPartition",
    "NodeFault",
    "Raise",
    "Reorder",
    "Slow",
    "Stop",
]
