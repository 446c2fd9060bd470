"""Masks and noise that two nodes share and that are random to all others."""

import struct
from collections.abc import Callable, Mapping

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from torch import Tensor

from decentnode.core.rng import RandomSource
from decentnode.errors import RunFailed

PIECE_BYTES = 1 << 18
"""Bytes that are masked at once, so that they stay in the second-level cache."""
_SLACK = 16
_ZEROS = memoryview(bytes(PIECE_BYTES))


class Mask:
    """Uniform integers of any width: AES-128 in counter mode (NIST SP 800-38A), added or subtracted."""

    def __init__(self, key: bytes, is_added: bool) -> None:
        """`key`: 16 bytes that serve this one mask alone, so the counter may start at 0."""
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._is_added = is_added

    def apply(self, piece: Tensor, scratch: bytearray) -> None:
        """Changes the next elements, at most `PIECE_BYTES`, modulo 2 to the width of their integer type."""
        size = piece.numel() * piece.element_size()
        self._stream.update_into(_ZEROS[:size], scratch)
        mask = torch.frombuffer(scratch, dtype=torch.uint8)[:size].view(piece.dtype)
        if self._is_added:
            piece.add_(mask)
        else:
            piece.sub_(mask)


def stream(key: bytes) -> Callable[[int], bytes]:
    """Gives the next so many bytes of AES-128 in counter mode; `key` serves this one stream alone."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda count: encryptor.update(bytes(count))


class PairKeys:
    """A node's key pair and what it shares with each other node (X25519: RFC 7748, HKDF: RFC 5869)."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 random bytes, which never leave this object."""
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self._secret = HKDF(SHA256(), 32, None, b"decentnode own").derive(secret)
        self._public: Mapping[int, bytes] = {}
        self._shared: dict[int, bytes] = {}

    @property
    def public(self) -> bytes:
        """The public key for the other nodes, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def receive_handshakes(self, public: Mapping[int, bytes]) -> None:
        """Stores the public keys by rank."""
        self._public, self._shared = dict(public), {}

    def mask(self, rank: int, other: int, *purpose: int) -> Mask:
        """The mask that one of `rank` and `other` adds and the other subtracts: the lower rank adds."""
        return Mask(self.key(rank, other, *purpose), is_added=rank < other)

    def key(self, rank: int, other: int, *purpose: int) -> bytes:
        """Returns 16 bytes that only `rank` and `other` know, for one purpose."""
        pair = sorted((rank, other))
        words = struct.pack(f"<{2 + len(purpose)}q", *pair, *purpose)
        return HKDFExpand(SHA256(), 16, b"decentnode mask" + words).derive(self._shared_with(other))

    def own_key(self, *purpose: int) -> bytes:
        """Returns 16 bytes that only this node knows, for one purpose."""
        words = struct.pack(f"<{len(purpose)}q", *purpose)
        return HKDFExpand(SHA256(), 16, b"decentnode own" + words).derive(self._secret)

    def _shared_with(self, other: int) -> bytes:
        if other in self._shared:
            return self._shared[other]
        public = self._public.get(other)
        if public is None:
            raise RunFailed(f"rank {other} has given no public key, so no mask can be agreed on with it")
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise RunFailed(f"what rank {other} gave is no public key: {error}") from error
        self._shared[other] = HKDF(SHA256(), 32, None, b"decentnode pair").derive(secret)
        return self._shared[other]


class KeyedSource(RandomSource):
    """Numbers that all with a key draw, and nobody else; the key serves this one source alone."""

    is_secret = True

    def __init__(self, key: bytes) -> None:
        """`key`: 16 bytes."""
        self._stream = stream(key)

    def bytes(self, count: int) -> bytearray:
        return bytearray(self._stream(count))


def scratch_for(values: Tensor) -> bytearray:
    """Memory that all masks of `values` can use one after the other."""
    return bytearray(min(PIECE_BYTES, values.numel() * values.element_size()) + _SLACK)
