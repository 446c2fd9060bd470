"""Injected faults: which fault, at which node, in which round, during which activity."""

from decentnode.node.faults.base import Fault, MessageFault, NodeFault
from decentnode.node.faults.message_faults import Drop, MessageDelay, NetworkPartition
from decentnode.node.faults.node_faults import Crash, Slow, Stop

__all__ = [
    "Crash", "Drop", "Fault", "MessageDelay", "MessageFault", "NetworkPartition", "NodeFault", "Slow", "Stop",
]  # fmt: skip
