"""Secrets in shares: so many of them give the secret, fewer give nothing (Shamir, CACM 1979)."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

PRIME = 2**130 - 5
"""The field; above all secrets of 16 bytes."""
SECRET_BYTES = 16
SHARE_BYTES = 17


def split(
    secret: bytes, threshold: int, holders: int, random: Callable[[int], bytes] = os.urandom
) -> list[bytes]:
    """The shares of `SECRET_BYTES` for holders 1, 2, ...: values of a random polynomial of degree
    threshold - 1 that is the secret at 0. `random` gives so many bytes.
    """
    first = int.from_bytes(secret, "little")
    # So many bits more than the prime has that the remainder is uniform but for 2^-126.
    coefficients = [int.from_bytes(random(32), "little") % PRIME for _ in range(threshold - 1)]
    rows = [_value([first, *coefficients], x) for x in range(1, holders + 1)]
    return [value.to_bytes(SHARE_BYTES, "little") for value in rows]


def combine(shares: Sequence[Mapping[int, bytes]], threshold: int) -> list[bytes]:
    """The secrets, each from its shares by holder; all have the same holders.

    Raises ValueError for fewer than `threshold` shares, and for shares that belong to no one polynomial.
    """
    if not shares:
        return []
    holders = sorted(shares[0])
    if len(holders) < threshold:
        raise ValueError(f"{len(holders)} shares, but {threshold} are needed")
    # Where there are more shares than needed, the last ones must give the same.
    bases = [_basis(some) for some in (holders[:threshold], holders[-threshold:])]
    secrets = []
    for row in shares:
        values = {x: int.from_bytes(row[x], "little") for x in holders}
        first, second = (sum(values[x] * b for x, b in basis.items()) % PRIME for basis in bases)
        if first != second or first >= 1 << 8 * SECRET_BYTES:
            raise ValueError("the shares do not fit together")
        secrets.append(first.to_bytes(SECRET_BYTES, "little"))
    return secrets


def _value(coefficients: Sequence[int], x: int) -> int:
    """The polynomial at x, the coefficient of degree 0 first (Horner)."""
    return reduce(lambda value, c: (value * x + c) % PRIME, reversed(coefficients), 0)


def _basis(holders: Sequence[int]) -> dict[int, int]:
    """The Lagrange polynomial of each holder at 0: prod_j x_j / (x_j - x_i)."""
    basis = {}
    for i in holders:
        above = below = 1
        for j in holders:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        basis[i] = above * pow(below, -1, PRIME) % PRIME
    return basis
