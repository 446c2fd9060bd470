"""Compression of floating-point numbers, lossless or to some bits of precision."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import xxhash
from annotated_types import Ge, Le

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.errors import BadInput
from decentnode.transforms.base import Field, Layout
from decentnode.transforms.coding.byte_coder import ByteCoder, Bytes, library

DTYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
SIGN_AND_EXPONENT = {torch.float32: 9, torch.float64: 12}
CHECKSUM_BYTES = 8


@TRANSFORMS.register("fpzip")
@dataclass
class Fpzip(ByteCoder):
    """Compresses floats by prediction and entropy coding (Lindstrom and Isenburg, IEEE TVCG 12(5), 2006).

    Lossless with `precision: 0`. Otherwise that many leading bits of each float are kept. Then the error of a
    value is below 2^(9 - precision) of its magnitude in fp32 and 2^(12 - precision) in fp64 (an even number
    of bits there), towards zero. A field that does not shrink stays exact, and so does a field of other
    types. The library takes most of the time, and does not check what it decodes. A checksum of 8 bytes finds
    damage, but not manipulated payloads, which can end the process. With untrusted peers use `zstd` or
    `pcodec`.
    """

    needs_float32: ClassVar = True

    precision: Annotated[int, Ge(0), Le(64)] = 0

    def __post_init__(self) -> None:
        self.lossless = not self.precision

    def layout(self, input_layout: Layout) -> Layout:
        library("fpzip", "fpzip")
        for f in input_layout.fields:
            if f.dtype in DTYPES and self.precision:
                self._check(f)
        return super().layout(input_layout)

    def _check(self, field: Field) -> None:
        least, most = SIGN_AND_EXPONENT[field.dtype] + 1, 8 * field.dtype.itemsize
        if not least <= self.precision <= most:
            raise BadInput(f"takes a precision of {least}..{most} bits or 0, not {self.precision}")
        if field.dtype == torch.float64 and self.precision % 2:
            raise BadInput(f"takes an even precision for float64, not {self.precision}")

    def compressed(self, content: Bytes, field: Field) -> bytes | None:
        if field.dtype not in DTYPES:
            return None
        fpzip = library("fpzip", "fpzip")
        stream: bytes = fpzip.compress(content.view(DTYPES[field.dtype]), precision=self.precision)
        return stream + xxhash.xxh3_64_digest(stream)

    def decompressed(self, code: Bytes, field: Field) -> Bytes:
        if field.dtype not in DTYPES:
            raise PayloadError(f"field '{field.name}' of {field.dtype} is never compressed")
        stream, checksum = code[:-CHECKSUM_BYTES].tobytes(), code[-CHECKSUM_BYTES:].tobytes()
        if xxhash.xxh3_64_digest(stream) != checksum:
            raise PayloadError(f"field '{field.name}' is damaged: its checksum differs")
        fpzip = library("fpzip", "fpzip")
        try:
            content: Bytes = fpzip.decompress(stream).reshape(-1).view(np.uint8)
        except fpzip.FpzipError as error:
            raise PayloadError(f"field '{field.name}' cannot be decompressed: {error}") from None
        return content
