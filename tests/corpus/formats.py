"""Small data sets and key files in the real formats, and ways to damage them."""

import gzip
import struct

import msgspec
import numpy as np
from numpy.typing import NDArray
from zmq.utils import z85

from decentnode.communication.security.key_files import Secret

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def idx(array: NDArray[np.uint8]) -> bytes:
    """An IDX file with this array."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def images(count: int, height: int = 5, width: int = 4) -> bytes:
    """An IDX file of images that differ."""
    return idx((np.arange(count * height * width) % 251).astype(np.uint8).reshape(count, height, width))


def labels(count: int, classes: int = 3) -> bytes:
    """An IDX file of labels, one class after the other."""
    return idx((np.arange(count) % classes).astype(np.uint8))


IDX = {IMAGES: images(40), LABELS: labels(40), TEST_IMAGES: images(8), TEST_LABELS: labels(8)}
FLIPPED = bytearray(gzip.compress(IDX[IMAGES], mtime=0))
FLIPPED[-6] ^= 1
IDX_DEFECTS: dict[str, tuple[str, bytes | None]] = {
    "empty": (IMAGES, b""),
    "one file missing": (TEST_LABELS, None),
    "labels for images": (IMAGES, IDX[LABELS]),
    "images for labels": (LABELS, IDX[IMAGES]),
    "header cut": (IMAGES, IDX[IMAGES][:9]),
    "content cut": (IMAGES, IDX[IMAGES][:-1]),
    "too long": (IMAGES, IDX[IMAGES] + b"x"),
    "no image": (IMAGES, images(0)),
    "images without pixels": (IMAGES, images(40, 0)),
    "other numbers than bytes": (IMAGES, struct.pack(">BBBBIII", 0, 0, 12, 3, 1, 1, 1) + bytes(4)),
    "a header of noise": (IMAGES, struct.pack(">BBBBIII", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)),
    "a page that says 404": (IMAGES, b"<html>404</html>"),
    "fewer labels": (LABELS, labels(39)),
    "a label too high": (TEST_LABELS, idx(np.full(8, 10, np.uint8))),
    "gzip cut": (IMAGES, gzip.compress(IDX[IMAGES], mtime=0)[:-9]),
    "gzip flipped": (IMAGES, bytes(FLIPPED)),
    "gzip of nothing": (IMAGES, b"\x1f\x8b"),
    "sizes that differ": (TEST_IMAGES, images(8, 4, 4)),
}
"""Which file of a complete set gets which content; None: it is missing."""


def idx_files(damaged: str = "", content: bytes | None = b"") -> dict[str, bytes]:
    """The files of a set with one of them damaged."""
    return {name: c for name, c in (IDX | ({damaged: content} if damaged else {})).items() if c is not None}


RECORDS = b"".join(bytes([label]) + bytes([label] * 3072) for label in (3, 0, 9, 1, 1, 5, 2, 4))
CIFAR_DEFECTS: dict[str, tuple[str, bytes | None]] = {
    "empty": ("data_batch_2", b""),
    "one file missing": ("data_batch_2", None),
    "cut": ("test_batch", RECORDS[:-1]),
    "a label too high": ("data_batch_1", bytes([10]) + RECORDS[1:]),
    "a page that says 404": ("data_batch_3", b"<html>404</html>"),
    "zipped": ("data_batch_4", gzip.compress(RECORDS, mtime=0)),
}
"""Which batch of CIFAR-10 gets which content; None: it is missing."""


def cifar_files(damaged: str = "", content: bytes | None = b"") -> dict[str, bytes]:
    """The binary batches with one of them damaged."""
    whole: dict[str, bytes | None] = dict.fromkeys(BATCHES, RECORDS)
    if damaged:
        whole[damaged] = content
    return {f"{name}.bin": c for name, c in whole.items() if c is not None}


def _curve(first: int) -> str:
    return z85.encode(bytes(range(first, first + 32))).decode()


def secret(machine: int, first: int) -> bytes:
    """A file with the secret keys of a machine, which follow from one number."""
    return msgspec.json.encode(Secret(1, machine, _curve(first), f"{first:02x}" * 32))


def manifest(*numbers: int, version: int = 1) -> bytes:
    """The list of the public keys of machines with these secrets."""
    public = [msgspec.json.decode(secret(0, first), type=Secret).public for first in numbers]
    return msgspec.json.encode({"version": version, "machines": public})


KEYS = {"machines.json": manifest(1, 2), "machine-0.secret": secret(0, 1), "machine-1.secret": secret(1, 2)}
KEY_MODES = {"": 0o700, "machines.json": 0o644, "machine-0.secret": 0o600, "machine-1.secret": 0o600}
KEY_DEFECTS: dict[str, tuple[str, bytes | int | None]] = {
    "a folder for all": ("", 0o755),
    "a secret for all": ("machine-0.secret", 0o644),
    "a secret for the group": ("machine-0.secret", 0o640),
    "a secret that others may write": ("machine-0.secret", 0o602),
    "a folder that others may enter": ("", 0o711),
    "a list that others may change": ("machines.json", 0o666),
    "a list that the group may change": ("machines.json", 0o664),
    "no list": ("machines.json", None),
    "no secret": ("machine-0.secret", None),
    "an empty list": ("machines.json", b""),
    "a list of tomorrow": ("machines.json", manifest(1, 2, version=2)),
    "a list that is torn": ("machines.json", KEYS["machines.json"][:-10]),
    "a list of one machine": ("machines.json", manifest(1)),
    "a list of three machines": ("machines.json", manifest(1, 2, 3)),
    "a list of others": ("machines.json", manifest(3, 4)),
    "a picture for a list": ("machines.json", b"\x89PNG\r\n\x1a\n"),
    "an empty secret": ("machine-0.secret", b""),
    "another's secret": ("machine-0.secret", secret(1, 2)),
    "a secret that is torn": ("machine-0.secret", secret(0, 1)[:-10]),
    "a secret that is too short": ("machine-0.secret", secret(0, 1).replace(_curve(1).encode(), b"abc")),
    "a secret of other letters": ("machine-0.secret", secret(0, 1).replace(b"0101", b"xyzw")),
    "a secret with more in it": ("machine-0.secret", secret(0, 1)[:-1] + b',"password":"x"}'),
}
"""Which of the key files gets which content or mode; None: it is missing; the empty name: their folder."""


def key_files(damaged: str, change: bytes | int | None) -> tuple[dict[str, bytes], dict[str, int]]:
    """Content and modes of the key files of two machines with one of them damaged."""
    content: dict[str, bytes | None] = {**KEYS}
    modes = dict(KEY_MODES)
    if isinstance(change, int):
        modes[damaged] = change
    else:
        content[damaged] = change
    kept = {name: text for name, text in content.items() if text is not None}
    return kept, {name: mode for name, mode in modes.items() if not name or name in kept}
