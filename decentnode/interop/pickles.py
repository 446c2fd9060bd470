"""Reads pickles of others that have plain values alone, and refuses all that would be called.

A pickle is a program: unpickling imports and calls what it names. This reader knows seven names, those by
which numpy writes numbers and arrays, and answers them with classes of its own. Arrays become lists.
"""

import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from decentnode.core.text import first_line
from decentnode.errors import BadInput

NUMBERS = frozenset("biuf")
"""Kinds of numpy types that are numbers."""


class NumberType:
    """A type of numpy numbers, as pickles name it."""

    def __init__(self, code: str, *_flags: object) -> None:
        self.dtype = np.dtype(str(code))
        if self.dtype.kind not in NUMBERS:
            raise pickle.UnpicklingError(f"numpy type {code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(str(state[1]))  # type: ignore[arg-type]


class PlainArray(list[Any]):
    """The numbers of an array of numpy, as nested lists."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, number_type, column_major, content = state
        self.extend(_numbers(content, number_type, shape, "F" if column_major else "C"))


class PlainUnpickler(pickle.Unpickler):
    """Makes dictionaries, lists, tuples, texts and numbers; raises UnpicklingError for any other name."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        # Since version 2 numpy has these in `_core`.
        plain: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "scalar"): _scalar,
            ("numpy.core.multiarray", "_reconstruct"): _empty_array,
            ("numpy.core.numeric", "_frombuffer"): _numbers,
            ("numpy", "ndarray"): PlainArray,
            ("numpy", "dtype"): NumberType,
            ("_codecs", "encode"): _bytes_of,
        }
        known = plain.get((module.replace("numpy._core", "numpy.core"), name))
        if known is None:
            raise pickle.UnpicklingError(f"it would call {module}.{name}")
        return known


def read_pickle(path: Path) -> Any:
    """Returns the values of a pickle without calling anything that it names; raises BadInput."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return PlainUnpickler(BytesIO(content)).load()
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        EOFError,
        ImportError,
        LookupError,
        MemoryError,
    ) as error:
        raise BadInput(f"{path}: no pickle of plain values: {first_line(error)}") from None
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: no pickle of plain values: {first_line(error)}") from None


def _scalar(number_type: NumberType, content: bytes) -> Any:
    return np.frombuffer(content, number_type.dtype, count=1)[0].item()


def _empty_array(*_arguments: object) -> PlainArray:
    return PlainArray()


def _numbers(content: Any, number_type: NumberType, shape: Any, order: str) -> list[Any]:
    array = np.frombuffer(content, number_type.dtype).reshape(shape, order="F" if order == "F" else "C")
    return PlainArray(array.tolist())


def _bytes_of(text: str, encoding: str = "latin1") -> bytes:
    """Bytes as protocol 2 writes them; other encodings may unpack archives."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin-1")
