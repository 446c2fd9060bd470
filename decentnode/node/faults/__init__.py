"""Faults on purpose: what goes wrong, at which node, in which round, while it does what."""

from decentnode.node.faults.base import Fault, MessageFault, NodeFault
from decentnode.node.faults.message_faults import Corrupt, Delay, Drop, Duplicate, Partition, Reorder
from decentnode.node.faults.node_faults import Crash, FullDisk, Hang, Raise, Slow, Stop

__all__ = [
    "Corrupt",
    "Crash",
    "Delay",
    "Drop",
    "Duplicate",
    "Fault",
    "FullDisk",
    "Hang",
    "MessageFault",
    "NodeFault",
    "Partition",
    "Raise",
    "Reorder",
    "Slow",
    "Stop",
]
