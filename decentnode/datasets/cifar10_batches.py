"""Reads the dictionaries in CIFAR's python batches without running any code in them.

The files are pickles, which are programs: unpickling one imports and calls what it names. This module reads
the opcodes, decoded by Python's own disassembler. A call stays a `Call`: a function's name and its arguments.
Only two calls are known, that of a byte string and that of a uint8 array. This file converts both to values.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class PickleReader:
    """The stack and the memo of one pickle."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def push(self, value: Any) -> None:
        """Puts a value on the stack."""
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        """Removes the last `count` values from the stack and returns them."""
        if count > len(self.stack):
            raise IndexError("the stack is empty")
        start = len(self.stack) - count
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_marked(self) -> list[Any]:
        """Removes the last mark and everything above it from the stack; returns the values."""
        above = next(i for i, value in enumerate(reversed(self.stack)) if value is MARK)
        return self.pop(above + 1)[1:]

    def memoize(self, slot: int) -> None:
        """Stores the top of the stack in the memo."""
        self.memo[slot] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        """Adds to the list on top."""
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Adds keys and values, alternating, to the dictionary on top."""
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def build(self, state: Any) -> None:
        """Stores the state for the result of a call."""
        self.stack[-1].state = state


OPERATIONS: dict[str, Callable[[PickleReader, Any], None]] = {
    "MARK": lambda m, _: m.push(MARK),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_marked())),
    "TUPLE1": lambda m, _: m.push(tuple(m.pop(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.pop(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.pop(3))),
    "APPEND": lambda m, _: m.extend(m.pop(1)),
    "APPENDS": lambda m, _: m.extend(m.pop_marked()),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.pop_marked()),
    "BINPUT": lambda m, slot: m.memoize(slot),
    "LONG_BINPUT": lambda m, slot: m.memoize(slot),
    "MEMOIZE": lambda m, _: m.memoize(len(m.memo)),
    "BINGET": lambda m, slot: m.push(m.memo[slot]),
    "LONG_BINGET": lambda m, slot: m.push(m.memo[slot]),
    "GLOBAL": lambda m, name: m.push(name),
    "STACK_GLOBAL": lambda m, _: m.push(" ".join(m.pop(2))),
    "REDUCE": lambda m, _: m.push(Call(*m.pop(2))),
    "BUILD": lambda m, _: m.build(*m.pop(1)),
}
DEFECTS = (KeyError, IndexError, TypeError, AttributeError, StopIteration, OverflowError)
"""Exceptions, beside ValueError, for input that is not a batch."""


def read_batch(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images (n, 3072) and labels of a batch file; raises ValueError when it is anything else."""
    try:
        batch = {as_text(key): value for key, value in walk(content).items()}
        return as_array(batch["data"]), np.array(batch["labels"], dtype=np.int64)
    except DEFECTS as error:
        raise ValueError(f"not a CIFAR-10 batch ({type(error).__name__}: {error})") from error


def walk(content: bytes) -> Any:
    """The value that the opcodes describe; calls in it are `Call` objects."""
    machine = PickleReader()
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in LITERALS:
            machine.stack.append(argument)
        elif opcode.name in CONSTANTS:
            machine.stack.append(CONSTANTS[opcode.name])
        elif opcode.name in OPERATIONS:
            OPERATIONS[opcode.name](machine, argument)
        elif opcode.name not in IGNORED:
            raise ValueError(f"not a CIFAR-10 batch (it uses {opcode.name})")
    return machine.stack.pop()


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
