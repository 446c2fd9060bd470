"""Injected faults: which fault, at which node, in which round, during which activity."""

from decentnode.node.faults.base import Fault, MessageFault, NodeFault
from decentnode.node.faults.message_faults import Drop, MessageDelay, NetworkPartition
from decentnode.node.faults.node_faults import Crash, Slow, Stop
from decentnode.node.faults.virtual_faults import LinkDown, NodeAvailability, NodeChurn, Offline

__all__ = [
    "Crash",
    "Drop",
    "Fault",
    "LinkDown",
    "MessageDelay",
    "MessageFault",
    "NetworkPartition",
    "NodeAvailability",
    "NodeChurn",
    "NodeFault",
    "Offline",
    "Slow",
    "Stop",
]  # fmt: skip
