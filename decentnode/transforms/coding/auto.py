"""Indices by the coder with the shortest code."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decentnode.core.payload import PayloadError
from decentnode.core.registry import TRANSFORMS
from decentnode.transforms.coding.bitmap import Bitmap
from decentnode.transforms.coding.elias_gamma import EliasGamma
from decentnode.transforms.coding.index_coder import Bytes, IndexCoder, Indices
from decentnode.transforms.coding.rice import Rice

CODERS: tuple[IndexCoder, ...] = (Bitmap(), Rice(), EliasGamma())
"""The coders, in the order of their numbers on the wire."""


@TRANSFORMS.register("auto")
@dataclass
class Auto(IndexCoder):
    """The shortest of bitmap, rice and elias_gamma for each payload (choice by code: Rice, JPL 79-22, 1979).

    One byte has the number of the coder. Rice is shortest where indices are random, the bitmap where at least
    4 of 10 coordinates are sent, Elias gamma where indices come in clusters.
    """

    wire: ClassVar = "1 + the least of bitmap, rice and elias_gamma"

    def most_bytes(self, most_indices: int, n: int) -> int:
        return 1 + min(coder.most_bytes(most_indices, n) for coder in CODERS) if most_indices else 0

    def coded(self, indices: Indices, n: int) -> Bytes:
        codes = [coder.coded(indices, n) for coder in CODERS]
        number = int(np.argmin([code.size for code in codes]))
        return np.concatenate([np.array([number], np.uint8), codes[number]])

    def decoded(self, code: Bytes, count: int, n: int) -> Indices:
        if not code.size or code[0] >= len(CODERS):
            raise PayloadError("no coder of indices has that number")
        coder = CODERS[int(code[0])]
        return coder.decoded(code[1:], count, n)
