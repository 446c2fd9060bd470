"""Injected faults: which fault, at which node, in which round, during which activity."""

from decentnode.node.faults.base import Fault, MessageFault, NodeFault
from decentnode.node.faults.message_faults import Drop, MessageDelay, NetworkPartition
from decentnode.node.faults.node_faults import Crash, Slow, Stop
from decentnode.node.faults.virtual_faults import AvailabilityTrace, Churn, LinkDown, Offline

__all__ = [
    "AvailabilityTrace", "Churn", "Crash", "Drop", "Fault", "LinkDown", "MessageDelay", "MessageFault",
    "NetworkPartition", "NodeFault", "Offline", "Slow", "Stop",
]  # fmt: skip
