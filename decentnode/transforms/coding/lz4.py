"""General compression of bytes, faster than it is strong."""

from dataclasses import dataclass

import numpy as np

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.options import Positive
from decentnode.transforms.base import Field, Layout
from decentnode.transforms.coding.byte_coder import ByteCoder, Bytes, library, shuffled, size, unshuffled


@TRANSFORMS.register("lz4", "lz4_wrapper")
@dataclass
class Lz4(ByteCoder):
    """Compresses each field with LZ4, like bytes side by side (Collet, 2011, LZ4 block format; as `zstd`).

    Lossless, and without entropy coding: it only finds repetitions, such as zeros and equal exponents. A
    larger `acceleration` finds fewer of them in less time.
    """

    acceleration: Positive = 1

    def layout(self, input_layout: Layout) -> Layout:
        library("lz4.block", "lz4")
        return super().layout(input_layout)

    def compressed(self, content: Bytes, field: Field) -> bytes | None:
        block = library("lz4.block", "lz4")
        planes = shuffled(content, field.dtype.itemsize)
        code: bytes = block.compress(planes, mode="fast", acceleration=self.acceleration, store_size=False)
        return code

    def decompressed(self, code: Bytes, field: Field) -> Bytes:
        block = library("lz4.block", "lz4")
        try:
            content = block.decompress(code, uncompressed_size=size(field))
        except block.LZ4BlockError as error:
            raise PayloadError(f"field '{field.name}' cannot be decompressed: {error}") from None
        return unshuffled(np.frombuffer(content, np.uint8), field.dtype.itemsize)
