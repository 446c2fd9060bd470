"""Encodes a node's state as JSON values plus tensors, and decodes it, bit for bit.

A value without a JSON form is an object with one key that names its kind: `{"tuple": [...]}`. Only the kinds
in this module are read, so no file can name a class.
"""

import base64
import math
import struct
from collections import Counter, deque
from typing import Any

import torch
from torch import Tensor

MOST_DEPTH = 64
"""The deepest nesting of lists and dicts."""
JSON_INTEGERS = range(-(1 << 63), 1 << 63)
_SENSELESS = (TypeError, ValueError, KeyError, IndexError, RuntimeError, OverflowError, struct.error)
"""Errors that the decoder may raise for an invalid tree."""


class UnknownKind(TypeError):
    """A state has a value that cannot be encoded; the message says where and what."""


class InvalidState(ValueError):
    """The input is not an encoded state."""


def encoded(value: Any, tensors: dict[str, Tensor], where: str = "state", depth: int = 0) -> Any:
    """The value as JSON that refers to its tensors, which are put into `tensors`; raises UnknownKind."""
    if depth > MOST_DEPTH:
        raise UnknownKind(f"{where} lies more than {MOST_DEPTH} levels deep")
    # The exact type: a subclass would be read back as its base.
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        # JSON readers are exact only for 64-bit integers.
        return value if value in JSON_INTEGERS else {"int": hex(value)}
    if kind is float:
        # As bits where JSON has no form: infinities, and the payload of a NaN.
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise UnknownKind(f"{where} is a tensor that is not dense, which a checkpoint cannot hold")
        name, order = str(len(tensors)), order_in_memory(value)
        tensors[name] = value.detach().permute(order)
        return {"tensor": [name, order, value.device.type != "cpu"]}
    if kind in (dict, Counter):
        pairs = [
            [
                encoded(key, tensors, f"a key of {where}", depth + 1),
                encoded(inner, tensors, f"{where}[{key!r:.50}]", depth + 1),
            ]
            for key, inner in value.items()
        ]
        return {kind.__name__.lower(): pairs}
    if kind in (list, tuple, deque):
        items = [encoded(inner, tensors, f"{where}[{i}]", depth + 1) for i, inner in enumerate(value)]
        if kind is list:
            return items
        return {"tuple": items} if kind is tuple else {"deque": [value.maxlen, items]}
    raise UnknownKind(
        f"{where} is of type {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; "
        "take tensors, numbers, texts, bytes, None, and lists, tuples and dicts of them"
    )


def order_in_memory(tensor: Tensor) -> list[int]:
    """The dimensions from slowest to fastest, so a tensor is restored with the same strides."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    return order if tensor.permute(order).is_contiguous() else list(range(tensor.dim()))


def decoded(tree: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """The state; raises InvalidState unless the tree refers to each of the tensors exactly once.

    `device`: of tensors that were on an accelerator.
    """
    try:
        state = _decoded(tree, tensors, device, 0)
    except _SENSELESS as error:
        raise InvalidState(f"its state is invalid: {type(error).__name__}: {error}"[:300]) from error
    if tensors:
        raise InvalidState(f"nothing refers to its tensor {min(tensors)!r:.50}")
    return state


def _decoded(tree: Any, tensors: dict[str, Tensor], device: torch.device, depth: int) -> Any:
    """One value; takes its tensors out of `tensors`, so a second reference to the same one is an error."""
    if depth > MOST_DEPTH:
        raise InvalidState(f"its state lies more than {MOST_DEPTH} levels deep")

    def items(content: Any) -> list[Any]:
        if not isinstance(content, list):
            raise InvalidState("a list that is none")
        return [_decoded(inner, tensors, device, depth + 1) for inner in content]

    if isinstance(tree, list):
        return items(tree)
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1:
        raise InvalidState(f"a value of {len(tree)} kinds")
    ((kind, content),) = tree.items()
    match kind:
        case "int":
            return int(content, 16)
        case "float":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "tuple":
            return tuple(items(content))
        case "deque":
            most, inner = content
            return deque(items(inner), most)
        case "dict" | "counter":
            pairs = dict(map(items, content))
            return Counter(pairs) if kind == "counter" else pairs
        case "tensor":
            name, order, is_accelerated = content
            tensor = tensors.pop(name)
            if sorted(order) != list(range(tensor.dim())):
                raise InvalidState(f"the dimensions of tensor {name!r:.50} are not those of its order")
            back = tensor.permute([order.index(axis) for axis in range(len(order))])
            return back.to(device) if is_accelerated else back
    raise InvalidState(f"unknown kind {kind!r:.50}")
