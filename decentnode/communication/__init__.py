"""Transports: what carries payloads between nodes."""

from decentnode.communication.inproc import InProcess
from decentnode.communication.zeromq import ZeroMQ

__all__ = ["InProcess", "ZeroMQ"]
