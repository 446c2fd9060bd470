"""Transports: what carries payloads between nodes."""

from decentnode.communication.inproc import InProcess
from decentnode.communication.torch_distributed import Hybrid, TorchDistributed
from decentnode.communication.zeromq import ZeroMQ

__all__ = ["Hybrid", "InProcess", "TorchDistributed", "ZeroMQ"]
