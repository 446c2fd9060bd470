"""Encodes a node's state as JSON values plus tensors, and decodes it, bit for bit.

A value without a JSON form is an object with one key that names its kind: `{"tuple": [...]}`. Only the kinds
in this module are read, so no file can name a class.
"""

import base64
import math
import struct
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class StateEncoder:
    """Encodes a state: `tensors` by name, and a tree that refers to them."""

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def pack(self, value: Any, where: str = "state", depth: int = 0) -> Any:
        """The value as JSON; raises UnknownKind."""
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
            return {"tensor": self._put_aside(value, where)}
        return self._pack_container(value, kind, where, depth + 1)

    def _pack_container(self, value: Any, kind: type, where: str, depth: int) -> Any:
        if kind in (dict, Counter):
            pairs = [
                [self.pack(key, f"a key of {where}", depth), self.pack(inner, f"{where}[{key!r:.50}]", depth)]
                for key, inner in value.items()
            ]
            return {kind.__name__.lower(): pairs}
        if kind in (list, tuple, deque):
            items = [self.pack(inner, f"{where}[{i}]", depth) for i, inner in enumerate(value)]
            if kind is list:
                return items
            return {"tuple": items} if kind is tuple else {"deque": [value.maxlen, items]}
        raise UnknownKind(
            f"{where} is of type {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; "
            "take tensors, numbers, texts, bytes, None, and lists, tuples and dicts of them"
        )

    def _put_aside(self, tensor: Tensor, where: str) -> list[Any]:
        """Stores a tensor; returns its name, order of dimensions, and whether it is on an accelerator."""
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise UnknownKind(f"{where} is a tensor that is not dense, which a checkpoint cannot hold")
        name, order = str(len(self.tensors)), order_in_memory(tensor)
        self.tensors[name] = tensor.detach().permute(order)
        return [name, order, tensor.device.type != "cpu"]


def order_in_memory(tensor: Tensor) -> list[int]:
    """The dimensions from slowest to fastest, so a tensor is restored with the same strides."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    return order if tensor.permute(order).is_contiguous() else list(range(tensor.dim()))


@dataclass
class StateDecoder:
    """Decodes a state from a tree and its tensors, each of which must be used once."""

    tensors: dict[str, Tensor]
    """Those that are not used yet."""
    device: torch.device
    """Of tensors that were on an accelerator."""

    def unpack(self, tree: Any) -> Any:
        """The state; raises InvalidState unless the tree refers to exactly the given tensors."""
        try:
            state = self._unpack(tree, 0)
        except _SENSELESS as error:
            raise InvalidState(f"its state is invalid: {type(error).__name__}: {error}"[:300]) from error
        if self.tensors:
            raise InvalidState(f"nothing refers to its tensor {min(self.tensors)!r:.50}")
        return state

    def _unpack(self, tree: Any, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise InvalidState(f"its state lies more than {MOST_DEPTH} levels deep")
        if isinstance(tree, list):
            return self._items(tree, depth)
        if not isinstance(tree, dict):
            return tree
        if len(tree) != 1:
            raise InvalidState(f"a value of {len(tree)} kinds")
        ((kind, content),) = tree.items()
        if kind in _LEAVES:
            return _LEAVES[kind](content)
        if kind == "tensor":
            return self._take(*content)
        return self._container(kind, content, depth + 1)

    def _container(self, kind: str, content: Any, depth: int) -> Any:
        if kind == "tuple":
            return tuple(self._items(content, depth))
        if kind == "deque":
            most, items = content
            return deque(self._items(items, depth), most)
        if kind in ("dict", "counter"):
            pairs = [(self._unpack(key, depth), self._unpack(inner, depth)) for key, inner in content]
            return dict(pairs) if kind == "dict" else Counter(dict(pairs))
        raise InvalidState(f"unknown kind {kind!r:.50}")

    def _items(self, content: Any, depth: int) -> list[Any]:
        if not isinstance(content, list):
            raise InvalidState("a list that is none")
        return [self._unpack(inner, depth + 1) for inner in content]

    def _take(self, name: str, order: list[int], accelerated: bool) -> Tensor:
        # Popped, so a second reference to the same tensor is an error.
        tensor = self.tensors.pop(name)
        if sorted(order) != list(range(tensor.dim())):
            raise InvalidState(f"the dimensions of tensor {name!r:.50} are not those of its order")
        back = tensor.permute([order.index(axis) for axis in range(len(order))])
        return back.to(self.device) if accelerated else back


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "float": lambda content: struct.unpack(">d", bytes.fromhex(content))[0],
    "bytes": lambda content: base64.b64decode(content, validate=True),
}
