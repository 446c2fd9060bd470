"""Tensors in the safetensors format: written in pieces without a copy, and read with every check."""

from collections.abc import Iterator, Mapping

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import _TYPES, load
from torch import Tensor

from decentnode.models.state_encoding import in_one_block

PIECE = 1 << 20
"""Bytes that are written and hashed at once, while they are in the cache."""
ALIGNMENT = 8
NOTHING: Mapping[str, str] = {}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
"""The format's names of torch's types: exactly those that `load` reads."""


class BadTensors(ValueError):
    """Bytes that are not a safetensors file, or a type that the format lacks."""


def holds(tensor: object) -> bool:
    """Whether the format has such values."""
    if not isinstance(tensor, Tensor):
        return False
    return tensor.layout is torch.strided and tensor.dtype in _NAMES and not tensor.is_quantized


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] = NOTHING) -> Iterator[memoryview]:
    """The bytes of the file, in order; raises BadTensors. Copies at most one tensor at a time."""
    # Wide types first, so that every tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in _NAMES:
            raise BadTensors(f"the safetensors format has no {tensor.dtype}")
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]
        }  # fmt: skip
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % ALIGNMENT)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        content = content_of(tensor)
        for start in range(0, len(content), PIECE):
            yield content[start : start + PIECE]


def content_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's elements, in order."""
    flat = in_one_block(tensor)
    return flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")


def tensors_in(content: bytes) -> dict[str, Tensor]:
    """The tensors of a file, in memory aligned like torch's own; raises BadTensors."""
    try:
        # Cloned, because views into the file may be misaligned.
        return {name: tensor.clone() for name, tensor in load(content).items()}
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, AssertionError) as error:
        raise BadTensors(f"its tensors are not in the safetensors format: {error}"[:300]) from error
