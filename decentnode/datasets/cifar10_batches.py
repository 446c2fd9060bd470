"""Reads the dictionaries in CIFAR's python batches without running any code in them.

The files are pickles, which are programs: unpickling one imports and calls what it names. This module reads
the opcodes, decoded by Python's own disassembler. A call stays a `Call`: a function's name and its arguments.
Only two calls are known, that of a byte string and that of a uint8 array. This file converts both to values.
"""

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARK = object()
ARRAY_FUNCTIONS = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
ENCODE_FUNCTION = "_codecs encode"
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"}
)
IGNORED = frozenset({"PROTO", "FRAME", "STOP"})


@dataclass(eq=False)
class Call:
    """A call in a pickle, which is recorded and not made; hashable, because it may be a key."""

    function: str
    arguments: tuple[Any, ...]
    state: Any = None


class UnknownOpcode(ValueError):
    """An opcode that no file of plain values has."""


DEFECTS = (KeyError, IndexError, TypeError, AttributeError, StopIteration, OverflowError)
"""Exceptions, beside ValueError, for input that is not a batch."""


def read_batch(
    content: bytes, labels: str = "labels", title: str = "CIFAR-10"
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images (n, 3072) and labels of a batch file; raises ValueError when it is anything else.

    `labels`: the key of the labels.
    """
    try:
        batch = {as_text(key): value for key, value in walk(content).items()}
        return as_array(batch["data"]), np.array(batch[labels], dtype=np.int64)
    except UnknownOpcode as error:
        raise ValueError(f"not a {title} batch ({error})") from error
    except DEFECTS as error:
        raise ValueError(f"not a {title} batch ({type(error).__name__}: {error})") from error


def walk(content: bytes) -> Any:
    """The value that the opcodes describe; calls in it are `Call` objects."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in LITERALS:
            stack.append(argument)
        elif opcode.name in CONSTANTS:
            stack.append(CONSTANTS[opcode.name])
        elif opcode.name not in IGNORED:
            _follow(opcode.name, argument, stack, memo)
    return stack.pop()


def _follow(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """Changes stack and memo as an opcode says; raises UnknownOpcode for one that is not known."""
    match name:
        case "MARK":
            stack.append(MARK)
        case "EMPTY_DICT":
            stack.append({})
        case "EMPTY_LIST":
            stack.append([])
        case "EMPTY_TUPLE":
            stack.append(())
        case "TUPLE":
            stack.append(tuple(_taken_to_mark(stack)))
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            stack.append(tuple(_taken(stack, int(name[-1]))))
        case "APPEND" | "APPENDS":
            items = _taken(stack, 1) if name == "APPEND" else _taken_to_mark(stack)
            stack[-1].extend(items)
        case "SETITEM" | "SETITEMS":
            items = _taken(stack, 2) if name == "SETITEM" else _taken_to_mark(stack)
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        case "BINGET" | "LONG_BINGET":
            stack.append(memo[argument])
        case "GLOBAL":
            stack.append(argument)
        case "STACK_GLOBAL":
            stack.append(" ".join(_taken(stack, 2)))
        case "REDUCE":
            stack.append(Call(*_taken(stack, 2)))
        case "BUILD":
            (state,) = _taken(stack, 1)
            stack[-1].state = state
        case _:
            raise UnknownOpcode(f"it uses {name}")


def _taken(stack: list[Any], count: int) -> list[Any]:
    """The last `count` values, which the stack has no longer."""
    return [stack.pop() for _ in range(count)][::-1]


def _taken_to_mark(stack: list[Any]) -> list[Any]:
    """The values above the last mark; the stack has neither these nor the mark any longer."""
    above = next(i for i, value in enumerate(reversed(stack)) if value is MARK)
    return _taken(stack, above + 1)[1:]


def as_bytes(value: Any) -> bytes:
    """Bytes as Python 2 (a latin-1 string), Python 3, or its protocol 2 (a call of encode) write them."""
    if isinstance(value, Call) and value.function == ENCODE_FUNCTION:
        value = value.arguments[0]
    if isinstance(value, str):
        return value.encode("latin-1")
    if isinstance(value, bytes):
        return value
    raise TypeError(f"a {type(value).__name__} where bytes belong")


def as_text(value: Any) -> str:
    """A key in any of its encodings."""
    return as_bytes(value).decode("latin-1")


def as_array(value: Any) -> NDArray[np.uint8]:
    """The two-dimensional, row-major uint8 array that a call of numpy describes."""
    if not isinstance(value, Call) or value.function not in ARRAY_FUNCTIONS:
        raise TypeError("'data' is not a numpy array")
    _, shape, dtype, column_major, content = value.state
    if as_text(dtype.arguments[0]) != "u1" or column_major or len(shape) != 2:
        raise TypeError("'data' is not a row-major matrix of uint8")
    return np.frombuffer(as_bytes(content), dtype=np.uint8).reshape(shape)
