"""Transports: what carries payloads between nodes."""

from decentnode.communication.inproc import InProcess
from decentnode.communication.simulated import Simulated
from decentnode.communication.torch_distributed.plugin import Hybrid, TorchDistributed
from decentnode.communication.zeromq.plugin import ZeroMQ

__all__ = ["Hybrid", "InProcess", "Simulated", "TorchDistributed", "ZeroMQ"]
