"""Lossless compression of numbers."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.transforms.base import Field, Layout
from decentnode.transforms.coding.byte_coder import ByteCoder, Bytes, library

DTYPES: dict[torch.dtype, type[np.generic]] = {
    torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16,
    torch.bfloat16: np.uint16, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64,
}  # fmt: skip


@TRANSFORMS.register("pcodec")
@dataclass
class Pcodec(ByteCoder):
    """Compresses numbers by binning and entropy coding them (Loncaric et al., arXiv:2502.06112, 2025).

    Lossless, and closer to the entropy of floats and indices than byte coders. The library takes most of the
    time.
    Fields of bytes, such as packed codes, stay as they are.
    """

    level: Annotated[int, Ge(0), Le(12)] = 8

    def layout(self, input_layout: Layout) -> Layout:
        library("pcodec", "pcodec")
        return super().layout(input_layout)

    def compressed(self, content: Bytes, field: Field) -> bytes | None:
        if field.dtype not in DTYPES:
            return None
        pcodec = library("pcodec", "pcodec")
        options = pcodec.ChunkConfig(compression_level=self.level)
        code: bytes = pcodec.standalone.simple_compress(content.view(DTYPES[field.dtype]), options)
        return code

    def decompressed(self, code: Bytes, field: Field) -> Bytes:
        if field.dtype not in DTYPES:
            raise PayloadError(f"field '{field.name}' of {field.dtype} is never compressed")
        values = np.empty(field.elements, DTYPES[field.dtype])
        try:
            standalone = library("pcodec", "pcodec").standalone
            progress = standalone.simple_decompress_into(code.tobytes(), values)
        except RuntimeError as error:
            raise PayloadError(f"field '{field.name}' cannot be decompressed: {error}") from None
        if not progress.finished:
            raise PayloadError(f"field '{field.name}' has more than its {field.elements} elements")
        return values[: progress.n_processed].view(np.uint8)
