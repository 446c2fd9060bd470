"""Faults on purpose: what goes wrong, at which node, in which round, while it does what."""

from decentnode.faults.base import Fault, MessageFault, NodeFault
from decentnode.faults.messages import Corrupt, Delay, Drop, Duplicate, Partition, Reorder
from decentnode.faults.nodes import Crash, FullDisk, Hang, Raise, Slow, Stop

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
