"""`Alphabet` and `bits` for tensors: the same bytes, for codes on a GPU."""

import torch
from torch import Tensor

from decentnode.core.payload import PayloadError
from decentnode.transforms.coding.alphabet import Alphabet


def pack(alphabet: Alphabet, codes: Tensor) -> Tensor:
    """Codes (uint8, shape (n,)) as `alphabet.packed_bytes(n)` bytes."""
    size = alphabet.packed_bytes(codes.numel())
    if alphabet.digits:
        rows = _padded(codes, alphabet.digits * size).view(alphabet.digits, size)
        packed = rows[-1].clone()
        for row in rows[:-1].flip(0):
            packed.mul_(alphabet.size).add_(row)
        return packed
    width, groups = alphabet.width, -(-codes.numel() // 8)
    if width == 8:
        return codes
    words = torch.zeros(groups, dtype=torch.int64, device=codes.device)
    for i, column in enumerate(_padded(codes, 8 * groups).view(groups, 8).unbind(1)):
        words |= column.long() << (width * i)
    return words.view(torch.uint8).view(groups, 8)[:, :width].reshape(-1)[:size]


def unpack(alphabet: Alphabet, packed: Tensor, count: int) -> Tensor:
    """The inverse of `pack`; raises PayloadError for codes that are not in the alphabet."""
    if alphabet.digits:
        _check(packed, alphabet.size**alphabet.digits)
        rows, rest = [], packed
        for _ in range(alphabet.digits):
            quotient = rest // alphabet.size
            rows.append(rest - quotient * alphabet.size)
            rest = quotient
        return torch.cat(rows)[:count]
    width, groups = alphabet.width, -(-count // 8)
    if width == 8:
        codes = packed
    else:
        rows8 = torch.zeros((groups, 8), dtype=torch.uint8, device=packed.device)
        rows8[:, :width] = _padded(packed, groups * width).view(groups, width)
        words = rows8.view(torch.int64)
        shifts = torch.arange(0, 8 * width, width, device=packed.device)
        codes = ((words >> shifts) & ((1 << width) - 1)).to(torch.uint8).view(-1)[:count]
    if alphabet.size < 1 << width:
        _check(codes, alphabet.size)
    return codes


def _padded(x: Tensor, length: int) -> Tensor:
    """Bytes with zeros after them."""
    return torch.cat([x, x.new_zeros(length - x.numel())]) if length > x.numel() else x


def _check(codes: Tensor, limit: int) -> None:
    if codes.numel() and int(codes.max()) >= limit:
        raise PayloadError(f"code {int(codes.max())} where the largest is {limit - 1}")
