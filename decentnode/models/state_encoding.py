"""Encodes the state of a node or a module as JSON values plus tensors, and decodes it, bit for bit.

A value without a JSON form is an object with one key that names its kind: `{"tuple": [...]}`. Only the kinds
in this module are read, so no file can name a class.
"""

import base64
import math
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

MOST_DEPTH = 64
"""The deepest nesting of lists and dicts."""
JSON_INTEGERS = range(-(1 << 63), 1 << 63)
COMPRESSED = {
    str(layout): layout for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
}
_BY_ROW = ("torch.sparse_csr", "torch.sparse_bsr")
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
        return _encoded_tensor(value.detach(), tensors, where)
    if kind in (dict, Counter, OrderedDict):
        pairs = [
            [
                encoded(key, tensors, f"a key of {where}", depth=depth + 1),
                encoded(inner, tensors, f"{where}[{key!r:.50}]", depth=depth + 1),
            ]
            for key, inner in value.items()
        ]
        return {kind.__name__.lower(): pairs}
    if kind in (list, tuple, deque):
        items = [encoded(inner, tensors, f"{where}[{i}]", depth=depth + 1) for i, inner in enumerate(value)]
        if kind is list:
            return items
        return {"tuple": items} if kind is tuple else {"deque": [value.maxlen, items]}
    raise UnknownKind(
        f"{where} is of type {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; "
        "take tensors, numbers, texts, bytes, None, and lists, tuples and dicts of them"
    )


def _encoded_tensor(value: Tensor, tensors: dict[str, Tensor], where: str) -> Any:
    if value.layout is torch.sparse_coo or str(value.layout) in COMPRESSED:
        parts = [_encoded_tensor(part, tensors, where) for part in components(value)]
        if value.layout is torch.sparse_coo:
            return {"sparse": [*parts, list(value.shape), value.is_coalesced()]}
        return {"compressed": [str(value.layout), *parts, list(value.shape)]}
    if value.layout is not torch.strided or value.is_quantized:
        raise UnknownKind(f"{where} is a tensor in the layout {value.layout}, which a checkpoint cannot hold")
    if value.is_complex():
        # The format has one complex type alone.
        return {"complex": _encoded_tensor(torch.view_as_real(value.resolve_conj()), tensors, where)}
    name, order = str(len(tensors)), order_in_memory(value)
    tensors[name] = value.resolve_neg().permute(order)
    return {"tensor": [name, order, value.device.type != "cpu"]}


def form(state: Any, path: str = "") -> dict[str, str]:
    """Returns the path of each value in a state, and its shape; a list of plain values is one value."""
    if isinstance(state, Tensor):
        return {path: f"a tensor {list(state.shape)}"}
    inner: Iterable[tuple[Any, Any]] = state.items() if isinstance(state, Mapping) else ()
    if isinstance(state, list | tuple | deque) and any(not isinstance(v, int | float | str) for v in state):
        inner = enumerate(state)
    found = {p: kind for key, value in inner for p, kind in form(value, f"{path}[{key}]").items()}
    is_empty = isinstance(state, Mapping) and not state
    return found or {path: "empty" if is_empty else "a value"}


def components(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that a sparse one consists of; of a dense one itself."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if str(tensor.layout) in _BY_ROW:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if str(tensor.layout) in COMPRESSED:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def in_one_block(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in their order, 1-D, on the CPU."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # Torch takes a single element for contiguous, whatever its stride.
    return flat if flat.stride() == (1,) else flat.clone(memory_format=torch.contiguous_format)


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
        state = _decoded(tree, tensors, device, depth=0)
    except _SENSELESS as error:
        raise InvalidState(f"its state is invalid: {type(error).__name__}: {error}"[:300]) from error
    if tensors:
        raise InvalidState(f"nothing refers to its tensor {min(tensors)!r:.50}")
    return state


def _decoded(tree: Any, tensors: dict[str, Tensor], device: torch.device, depth: int) -> Any:
    """Decodes one value; takes its tensors out of `tensors`, so a second reference to one is an error."""
    if depth > MOST_DEPTH:
        raise InvalidState(f"its state lies more than {MOST_DEPTH} levels deep")

    def items(content: Any) -> list[Any]:
        if not isinstance(content, list):
            raise InvalidState("a list that is none")
        return [_decoded(inner, tensors, device, depth=depth + 1) for inner in content]

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
        case "dict" | "counter" | "ordereddict":
            pairs = dict(map(items, content))
            return {"dict": dict, "counter": Counter, "ordereddict": OrderedDict}[kind](pairs)
        case "complex":
            return torch.view_as_complex(_decoded(content, tensors, device, depth=depth + 1))
        case "sparse":
            *parts, shape, is_coalesced = content
            indices, values = items(parts)
            made = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
            return made._coalesced_(is_coalesced)
        case "compressed":
            layout, *parts, shape = content
            compressed, plain, values = items(parts)
            return torch.sparse_compressed_tensor(
                compressed, plain, values, shape, layout=COMPRESSED[layout], check_invariants=True
            )
        case "tensor":
            name, order, is_accelerated = content
            tensor = tensors.pop(name)
            if sorted(order) != list(range(tensor.dim())):
                raise InvalidState(f"the dimensions of tensor {name!r:.50} are not those of its order")
            back = tensor.permute([order.index(axis) for axis in range(len(order))])
            return back.to(device) if is_accelerated else back
    raise InvalidState(f"unknown kind {kind!r:.50}")
