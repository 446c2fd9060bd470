"""The signal in a wavelet basis."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.core.payload import Form, Layout, Payload, dense_layout
from decentnode.core.registry import TRANSFORMS, guess
from decentnode.errors import BadInput
from decentnode.options import Positive
from decentnode.transforms.base import VECTOR, Context, Transform
from decentnode.transforms.coding.byte_coder import library

MODE = "periodization"
WORST_ERROR = 1e-8


@TRANSFORMS.register("wavelet", "dwt")
@dataclass
class Wavelet(Transform):
    """Wavelet coefficients of the flat signal (Mallat, IEEE PAMI 1989; sym2 on 4 levels: JWINS, ICDCS 2023).

    a_0 = x padded with zeros to a multiple of 2^L,   (a_l, d_l) = dwt(a_{l-1}),   sent: a_L, d_L, ..., d_1

    Periodic at the ends, so there are as many coefficients as padded values, and an orthogonal family keeps
    the Euclidean norm. `family` is any discrete one of PyWavelets that reconstructs exactly (dmey does not).
    Short signals have fewer levels: L <= log2 d. PyWavelets takes most of the time; longer filters take
    longer.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.DENSE
    changes_basis: ClassVar = True
    needs_float32: ClassVar = True  # the change of basis would round a model twice in every round
    wire: ClassVar = "b d, padded"

    family: str = "sym2"
    levels: Positive = 4

    def layout(self, input_layout: Layout) -> Layout:
        _check_family(self.family)
        self._depth = min(self.levels, max(self.dimension, 1).bit_length() - 1)
        self._padded = -(-self.dimension >> self._depth) << self._depth
        return dense_layout(self._padded, input_layout.fields[0].dtype)

    def in_basis(self, signal: Tensor) -> Tensor:
        dwt = pywt().dwt
        coefficients = np.zeros(self._padded, dtype=signal.cpu().numpy().dtype)
        coefficients[: signal.numel()] = signal.cpu().numpy()
        end = self._padded
        for _ in range(self._depth):
            approximation, detail = dwt(coefficients[:end], self.family, MODE)
            half = end // 2
            coefficients[:half], coefficients[half:end] = approximation, detail
            end = half
        return torch.from_numpy(coefficients).to(signal.device)

    def encode(self, payload: Payload, context: Context) -> Payload:
        return Payload.dense(self.in_basis(payload[VECTOR]))

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact to fp32 precision; to 1e-10 of the norm in fp64, as the filters come from tables."""
        coefficients = payload[VECTOR].to(self.input_layout.fields[0].dtype)
        array = coefficients.cpu().numpy()
        signal = array[: self._padded >> self._depth]
        for level in reversed(range(self._depth)):
            half = self._padded >> (level + 1)
            signal = pywt().idwt(signal, array[half : 2 * half], self.family, MODE)
        signal_part = torch.from_numpy(signal[: self.dimension]).to(coefficients.device)
        return Payload.dense(signal_part)


def pywt() -> Any:
    """The module of PyWavelets; raises BadInput where it is not installed."""
    return library("pywt", "PyWavelets")


def _check_family(family: str) -> None:
    known = pywt().wavelist(kind="discrete")
    if family not in known:
        raise BadInput(f"knows no family '{family}'{guess(family, known)}")
    signal = np.random.default_rng(0).standard_normal(64)
    restored = pywt().idwt(*pywt().dwt(signal, family, MODE), family, MODE)
    error = float(np.abs(restored - signal).max())
    if error > WORST_ERROR:
        raise BadInput(f"cannot use family '{family}': it reconstructs with an error of {error:.0e}")
