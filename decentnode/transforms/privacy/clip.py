"""A bound on the length of the signal."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Form, Layout, Payload
from decentnode.core.registry import TRANSFORMS
from decentnode.options import PositiveFloat
from decentnode.transforms.base import VECTOR, Context, Transform
from decentnode.transforms.sparsify.selection import spans


@TRANSFORMS.register("clip", "norm_clipping", "clipping")
@dataclass
class Clip(Transform):
    """Scales a signal down to at most a Euclidean norm (Abadi et al., CCS 2016, Alg. 1).

    x <- x min(1, norm / |x|);   per layer: each of the m tensors of the model to norm / sqrt(m)
    (McMahan et al., ICLR 2018)

    Either way the whole is at most `norm` long, up to rounding. This bounds what one node can change, which
    is the first half of a privacy guarantee. Place it before `gaussian_noise` (see there), and first or after
    an orthogonal change of basis. A later stage that selects or rounds towards zero only shortens the signal.
    Meant for differences and gradients: a model longer than `norm` shrinks every time it is sent.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.DENSE
    protects: ClassVar = True
    wire: ClassVar = "b d"

    norm: PositiveFloat
    per_layer: bool = False

    def layout(self, input_layout: Layout) -> Layout:
        self._spans = spans(self.dimension, self.per_layer, self.parameters)
        return input_layout

    def encode(self, payload: Payload, context: Context) -> Payload:
        x = payload[VECTOR]
        clipped, bound = torch.empty_like(x), self.norm / math.sqrt(max(1, len(self._spans)))
        for i, n in self._spans:
            part = x[i : i + n]
            torch.mul(part, _scale(part, bound), out=clipped[i : i + n])
        return Payload.dense(clipped)

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Returns what was sent: the receiver cannot know how long the signal was."""
        return payload


def _scale(x: Tensor, bound: float) -> float:
    # In double precision, where the squares of finite fp32 values cannot overflow.
    norm = float(torch.linalg.vector_norm(x, dtype=torch.float64))
    return min(1.0, bound / norm) if norm else 1.0
