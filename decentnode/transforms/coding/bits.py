"""Small whole numbers packed into the fewest bits that hold them, and back, without a loop over elements.

A code of w bits is stored as w // 8 whole bytes, the lowest first: that byte of all codes in a row, then the
next one. The w % 8 bits on top follow, eight codes in w % 8 bytes, the first code in the lowest bits.
Codes on a GPU stay there.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentnode.core.payload import HOST

GROUPS = 1 << 15
"""Groups of eight codes per step on the host, so that the words in between stay in the second-level cache."""


def packed_bytes(count: int, width: int) -> int:
    """Bytes that `count` codes of `width` bits take."""
    planes, bits = divmod(width, 8)
    return planes * count + (bits * count + 7) // 8


def pack(codes: Tensor, width: int) -> Tensor:
    """Packs codes in 0..2^width - 1 (0 <= width <= 64) into `packed_bytes(len(codes), width)` bytes."""
    planes, bits = divmod(width, 8)
    parts = [(codes >> 8 * i).to(torch.uint8) for i in range(planes)]
    if bits:
        high_bits = codes >> 8 * planes if planes else codes
        parts.append(_pack_bits(high_bits.to(torch.uint8), bits))
    return parts[0] if len(parts) == 1 else torch.cat([codes.new_empty(0, dtype=torch.uint8), *parts])


def unpack(packed: Tensor, width: int, count: int) -> Tensor:
    """The inverse of `pack`, as uint8 for up to 8 bits, else as int64.

    `packed` must have `packed_bytes(count, width)` bytes; bits after the last code are ignored.
    """
    planes, bits = divmod(width, 8)
    if width <= 8:
        return _unpack_bits(packed, bits, count) if bits else packed if planes else packed.new_zeros(count)
    codes = packed.new_zeros(count, dtype=torch.int64)
    for i in range(planes):
        codes |= packed[i * count : (i + 1) * count].long() << 8 * i
    if bits:
        codes |= _unpack_bits(packed[planes * count :], bits, count).long() << 8 * planes
    return codes


def padded(x: Tensor, length: int) -> Tensor:
    """Bytes with zeros after them; itself if it has that length."""
    return torch.cat([x, x.new_zeros(length - x.numel())]) if length > x.numel() else x


def operand(x: Tensor) -> Any:
    """The memory of `x` to compute with: on the host as an array, where numpy starts and divides faster."""
    return x.numpy() if x.device == HOST else x


def _pack_bits(codes: Tensor, bits: int) -> Tensor:
    if bits == 1 and codes.device == HOST:
        return torch.from_numpy(np.packbits(codes.numpy(), bitorder="little"))
    count, groups = codes.numel(), -(-codes.numel() // 8)
    packed = codes.new_empty((groups, bits))
    words, rows = operand(padded(codes, 8 * groups).view(torch.int64)), operand(packed)
    for part in _steps(groups, codes.device):
        word = words[part]
        for low, high, shift in _merges(bits):
            # Neighboring lanes, each twice as wide as its content, become one lane without the gap.
            word = (word & low) | ((word >> shift) & high)
        rows[part] = word.view(rows.dtype).reshape(-1, 8)[:, :bits]
    return packed.view(-1)[: packed_bytes(count, bits)]


def _unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    if bits == 1 and packed.device == HOST:
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=count, bitorder="little"))
    groups = -(-count // 8)
    codes = packed.new_zeros(8 * groups)
    words, rows = operand(codes.view(torch.int64)), operand(codes.view(groups, 8))
    source = operand(padded(packed, groups * bits).view(groups, bits))
    for part in _steps(groups, packed.device):
        rows[part, :bits] = source[part]
        word = words[part]
        for low, high, shift in reversed(_merges(bits)):
            word[:] = (word & low) | ((word & high) << shift)
    return codes[:count]


def _steps(groups: int, device: torch.device) -> Iterator[slice]:
    step = GROUPS if device == HOST else max(1, groups)
    return (slice(start, start + step) for start in range(0, groups, step))


@cache
def _merges(bits: int) -> list[tuple[int, int, int]]:
    """Returns masks of the lower and the shifted upper lane of 8, 16, 32 bits, and the gap between them."""
    steps = []
    for lane in (8, 16, 32):
        used = bits * lane // 8
        low = sum(((1 << used) - 1) << start for start in range(0, 64, 2 * lane))
        steps.append((low, low << used, lane - used))
    return steps
