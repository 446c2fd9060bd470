"""The state of a node's network in one block of bytes, for the processes that evaluate it."""

from typing import Any

import msgspec
import torch
from torch import Tensor

from decentnode.models.state_encoding import decoded, encoded
from decentnode.node.checkpoint.safetensors_io import pieces, tensors_in

LENGTH_BYTES = 8
SLACK = 1 << 20
"""Bytes by which the state of a network may become larger, in addition to the size of its vector."""


def packed(state: Any) -> bytes:
    """The state as bytes; raises UnknownKind or BadTensors."""
    tensors: dict[str, Tensor] = {}
    tree = msgspec.json.encode(encoded(state, tensors))
    return b"".join([len(tree).to_bytes(LENGTH_BYTES, "little"), tree, *pieces(tensors)])


def unpacked(content: bytes) -> Any:
    """The state that was `packed`, on the CPU."""
    end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    tree = msgspec.json.decode(content[LENGTH_BYTES:end])
    return decoded(tree, tensors_in(content[end:]), torch.device("cpu"))


def most_bytes(state: Any, vector: int) -> int:
    """The room for a network's state, given the first one and the bytes of its vector."""
    return len(packed(state)) + vector + SLACK
