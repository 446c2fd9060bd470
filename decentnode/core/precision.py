"""The number format of the vector, and the one in which sums are made."""

from typing import Literal

import torch

Precision = Literal["float64", "float32", "bfloat16"]
DTYPES: dict[Precision, torch.dtype] = {
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16
}  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums of numbers of that format are made in, and kept in from round to round: float32 at least."""
    return torch.float32 if dtype in HALVES else dtype


def needs_float32(dtype: torch.dtype) -> str:
    """What is said of a part that cannot work in a half."""
    name = str(dtype).removeprefix("torch.")
    return f"needs the precision of float32, not {name}; set training.dtype: float32, and cast for the wire"
