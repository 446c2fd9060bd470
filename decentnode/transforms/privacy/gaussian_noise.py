"""Noise that hides the contribution of one node."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from decentnode.core.payload import Form, Layout, Payload
from decentnode.core.registry import TRANSFORMS
from decentnode.options import PositiveFloat
from decentnode.transforms.base import VECTOR, Context, Transform

CHUNK = 131_072


@TRANSFORMS.register("gaussian_noise", "gaussian")
@dataclass
class GaussianNoise(Transform):
    """Adds normal noise to every value (the Gaussian mechanism: Dwork and Roth, 2014, appendix A).

    x <- x + sigma z,   z_i ~ N(0, 1) independent;   one z for all receivers, or one for each `neighbor`

    Place it after `clip`, which bounds what the noise must hide, and before all stages that read the values.
    A selection before it is refused: the choice of coordinates depends on the signal and would have no
    protection. All later stages (bases, selection, quantizers, coders) are post-processing, which cannot
    weaken the guarantee. A change of basis may stand before `clip`. After `error_feedback`, the next round
    subtracts the noise of this round. Neighbors that combine their payloads average out noise of scope
    `neighbor`.

    The noise is drawn from the run's seed, so that a run can be repeated. So it measures the cost of privacy
    in accuracy, but does not protect against peers that know the seed.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.DENSE
    protects: ClassVar = True
    unbiased: ClassVar = True
    wire: ClassVar = "b d"

    sigma: PositiveFloat
    scope: Literal["shared", "neighbor"] = "shared"

    @property
    def per_receiver(self) -> bool:
        """Each neighbor receives noise of its own in scope `neighbor`."""
        return self.scope == "neighbor"

    def layout(self, input_layout: Layout) -> Layout:
        return input_layout

    def encode(self, payload: Payload, context: Context) -> Payload:
        x = payload[VECTOR]
        counters: tuple[int, ...] = ()
        if self.per_receiver:
            assert context.receiver is not None, "a chain refuses to encode without one"
            counters = (context.receiver,)
        source, noisy = context.generator("gaussian_noise", *counters), torch.empty_like(x)
        real = np.float64 if x.dtype == torch.float64 else np.float32
        # Pieces stay in the cache: one draw for the whole vector takes half as long again.
        for part, out in zip(torch.split(x, CHUNK), torch.split(noisy, CHUNK), strict=True):
            z = torch.from_numpy(source.standard_normal(part.numel(), dtype=real))
            torch.add(part, z.to(x.device), alpha=self.sigma, out=out)
        return Payload.dense(noisy)

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Returns what was sent: noise stays."""
        return payload
