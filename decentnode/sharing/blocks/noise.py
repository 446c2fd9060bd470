"""Noise that schemes add to models."""

from typing import Literal

import torch
from torch import Tensor

from decentnode.core.rng import RandomSource, SecureSource, SeededSource
from decentnode.graph.base import View

Generator = Literal["secure", "seeded"]
"""The source of noise: `secure` is secret; `seeded` can be repeated, and protects nothing."""
PIECE = 131_072


def normal_like(
    model: Tensor, generator: Generator, seed: int, purpose: str, view: View, receiver: int = -1
) -> Tensor:
    """Standard normal noise in the shape of a model; of the seed: for this purpose, round, rank, receiver."""
    source: RandomSource = SecureSource()
    if generator == "seeded":
        source = SeededSource(seed, view.round, view.rank, receiver, purpose=purpose)
    noise = torch.empty_like(model)
    for piece in torch.split(noise, PIECE):
        piece.copy_(source.normal(piece.numel()))
    return noise
