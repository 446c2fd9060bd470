"""Small data sets in the real formats, and ways to damage them."""

import gzip
import struct

import numpy as np
from numpy.typing import NDArray

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
"""The same for the batches of CIFAR-10."""


def cifar_files(damaged: str = "", content: bytes | None = b"") -> dict[str, bytes]:
    """The binary batches with one of them damaged."""
    whole: dict[str, bytes | None] = dict.fromkeys(BATCHES, RECORDS)
    if damaged:
        whole[damaged] = content
    return {f"{name}.bin": c for name, c in whole.items() if c is not None}
