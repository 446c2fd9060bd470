"""Small pictures as PNG, without a library for images."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, COLOR = 0, 2


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A picture of shape (height, width) or (height, width, 3) (ISO/IEC 15948:2004)."""
    height, width = pixels.shape[:2]
    color = GRAY if pixels.ndim == 2 else COLOR
    rows = pixels.reshape(height, -1)
    # Each row begins with its filter: 0 for none.
    content = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(content)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(name, body) for name, body in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
