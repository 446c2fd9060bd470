"""The signal in a Fourier basis."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Form, Layout, Payload
from decentnode.core.registry import TRANSFORMS
from decentnode.options import NonNegative
from decentnode.transforms.base import VECTOR, Context, Transform


@TRANSFORMS.register("fourier", "fft")
@dataclass
class Fourier(Transform):
    """Real Fourier coefficients of blocks of the flat signal (Sorensen et al., IEEE TASSP 1987).

    X_m = n^(-1/2) sum_t x_t exp(-2 pi i m t / n)
    sent: X_0, sqrt(2) (Re X_1, Im X_1, Re X_2, ...), and last X_{n/2} unscaled where n is even

    That is exactly n reals for n values, and an orthogonal map, whatever n is. Blocks (the last one shorter)
    stay in the cache. They also avoid the slow FFT of signals whose length is a large prime. `block: 0` uses
    one block for the whole signal.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.DENSE
    changes_basis: ClassVar = True
    needs_float32: ClassVar = True  # the change of basis would round a model twice in every round
    wire: ClassVar = "b d"

    block: NonNegative = 4096

    def layout(self, input_layout: Layout) -> Layout:
        return input_layout

    def in_basis(self, signal: Tensor) -> Tensor:
        coefficients = torch.empty_like(signal)
        for x, X in zip(self._blocks(signal), self._blocks(coefficients), strict=True):
            forward(x, X)
        return coefficients

    def encode(self, payload: Payload, context: Context) -> Payload:
        return Payload.dense(self.in_basis(payload[VECTOR]))

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Exact to the precision of the signal's numbers."""
        coefficients = payload[VECTOR].to(self.input_layout.fields[0].dtype)
        signal = torch.empty_like(coefficients)
        for X, x in zip(self._blocks(coefficients), self._blocks(signal), strict=True):
            backward(X, x)
        return Payload.dense(signal)

    def _blocks(self, signal: Tensor) -> list[Tensor]:
        """Views of shape (blocks, n): all of full length in one, because a plan of torch's FFT costs much."""
        n = self.block or signal.numel()
        full = signal.numel() // n * n if n else 0
        parts = (signal[:full].view(-1, n) if full else signal[:0], signal[full:].view(1, -1))
        return [part for part in parts if part.numel()]


def forward(x: Tensor, X: Tensor) -> None:
    """Writes the n real coefficients of the n >= 1 values of each row into X."""
    n = x.shape[1]
    reals = torch.view_as_real(torch.fft.rfft(x, norm="ortho")).flatten(1)
    # Re X_0, [Im X_0 = 0,] Re X_1, Im X_1, ..., and for even n Re X_{n/2}[, Im X_{n/2} = 0]
    torch.mul(reals[:, 1 : n + 1], math.sqrt(2), out=X)
    X[:, 0] = reals[:, 0]
    if n % 2 == 0:
        X[:, -1] = reals[:, n]


def backward(X: Tensor, x: Tensor) -> None:
    """Writes the n values of the n >= 1 real coefficients of each row into x."""
    n = X.shape[1]
    reals = X.new_zeros(X.shape[0], 2 * (n // 2 + 1))
    torch.mul(X, math.sqrt(0.5), out=reals[:, 1 : n + 1])
    reals[:, 0], reals[:, 1] = X[:, 0], 0
    if n % 2 == 0:
        reals[:, n] = X[:, -1]
    x.copy_(torch.fft.irfft(torch.view_as_complex(reals.view(X.shape[0], -1, 2)), n, norm="ortho"))
