"""General compression of bytes, strong for its speed."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import zstandard
from annotated_types import Ge, Le

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.transforms.base import Field
from decentnode.transforms.coding.byte_coder import ByteCoder, Bytes, shuffled, size, unshuffled


@TRANSFORMS.register("zstd", "zstandard")
@dataclass
class Zstd(ByteCoder):
    """Compresses each field with Zstandard, like bytes side by side (RFC 8878, 2021; Alted, CiSE 2010).

    Lossless. Values of fp32 shrink to about .85, because only exponents repeat: useful on links below 1 Gb/s.
    After a quantizer or an index coder there is less to compress.
    """

    level: Annotated[int, Ge(-7), Le(22)] = 1

    def compressed(self, content: Bytes, field: Field) -> bytes | None:
        planes = shuffled(content, field.dtype.itemsize).data
        return zstandard.ZstdCompressor(self.level).compress(planes)

    def decompressed(self, code: Bytes, field: Field) -> Bytes:
        frame = code.data
        try:
            # Checked before decompression, which allocates as many bytes as the frame claims.
            claimed = zstandard.get_frame_parameters(frame).content_size
            if claimed > size(field):
                raise PayloadError(f"field '{field.name}' claims {claimed} of at most {size(field)} bytes")
            content = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise PayloadError(f"field '{field.name}' cannot be decompressed: {error}") from None
        return unshuffled(np.frombuffer(content, np.uint8), field.dtype.itemsize)
