"""Small whole numbers packed into the fewest bits that hold them, and back, without a loop over elements.

A code of w bits is stored as w // 8 whole bytes, the lowest first: that byte of all codes in a row, then the
next one. The w % 8 bits on top follow, eight codes in w % 8 bytes, the first code in the lowest bits.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

GROUPS = 1 << 15
"""Groups of eight codes per step, so that the 64-bit words in between stay in the second-level cache."""


def packed_bytes(count: int, width: int) -> int:
    """Bytes that `count` codes of `width` bits take."""
    planes, bits = divmod(width, 8)
    return planes * count + (bits * count + 7) // 8


def pack(codes: NDArray[np.unsignedinteger], width: int) -> Bytes:
    """Codes, each in 0..2^width - 1 (0 <= width <= 64), as `packed_bytes(len(codes), width)` bytes."""
    planes, bits = divmod(width, 8)
    parts = [(codes >> codes.dtype.type(8 * i)).astype(np.uint8) for i in range(planes)]
    if bits:
        rest = codes >> codes.dtype.type(8 * planes) if planes else codes
        parts.append(_pack_bits(rest.astype(np.uint8, copy=False), bits))
    return parts[0] if len(parts) == 1 else np.concatenate([_zeros(0), *parts])


def unpack(packed: Bytes, width: int, count: int) -> NDArray[np.unsignedinteger]:
    """The inverse of `pack`, as the smallest unsigned dtype that holds `width` bits.

    `packed` must have `packed_bytes(count, width)` bytes; bits after the last code are ignored.
    """
    planes, bits = divmod(width, 8)
    if width <= 8:
        return _unpack_bits(packed, bits, count) if bits else packed.copy() if planes else _zeros(count)
    dtype = np.min_scalar_type((1 << width) - 1)
    codes = packed[:count].astype(dtype)
    for i in range(1, planes):
        codes |= packed[i * count : (i + 1) * count].astype(dtype) << dtype.type(8 * i)
    if bits:
        codes |= _unpack_bits(packed[planes * count :], bits, count).astype(dtype) << dtype.type(8 * planes)
    return codes


def _zeros(count: int) -> Bytes:
    return np.zeros(count, np.uint8)


def _pack_bits(codes: Bytes, bits: int) -> Bytes:
    if bits == 1:
        return np.packbits(codes, bitorder="little")
    count, groups = len(codes), -(-len(codes) // 8)
    if count % 8:
        codes = np.concatenate([codes, _zeros(-count % 8)])
    words = np.ascontiguousarray(codes).view("<u8")
    out = np.empty((groups, bits), np.uint8)
    for part in _steps(groups):
        word = words[part]
        for low, high, shift in _merges(bits):
            # Neighboring lanes, each twice as wide as its content, become one lane without the gap.
            word = (word & low) | ((word >> shift) & high)
        out[part] = word.view(np.uint8).reshape(-1, 8)[:, :bits]
    return out.reshape(-1)[: packed_bytes(count, bits)]


def _unpack_bits(packed: Bytes, bits: int, count: int) -> Bytes:
    if bits == 1:
        return np.unpackbits(packed, count=count, bitorder="little")
    groups = -(-count // 8)
    rows = np.zeros((groups, 8), np.uint8)
    missing = groups * bits - len(packed)
    source = np.concatenate([packed, _zeros(missing)]) if missing else packed
    words = rows.reshape(-1).view("<u8")
    for part in _steps(groups):
        rows[part, :bits] = source.reshape(groups, bits)[part]
        word = words[part]
        for low, high, shift in reversed(_merges(bits)):
            word[:] = (word & low) | ((word & high) << shift)
    return rows.reshape(-1)[:count]


def _steps(groups: int) -> Iterator[slice]:
    return (slice(start, start + GROUPS) for start in range(0, groups, GROUPS))


def _merges(bits: int) -> list[tuple[np.uint64, np.uint64, np.uint64]]:
    """For lanes of 8, 16, 32 bits: masks of the lower and the shifted upper one, and the gap between them."""
    steps = []
    for lane in (8, 16, 32):
        used = bits * lane // 8
        low = sum(((1 << used) - 1) << start for start in range(0, 64, 2 * lane))
        steps.append((np.uint64(low), np.uint64(low << used), np.uint64(lane - used)))
    return steps
