"""Sends later what compression lost."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Form, Layout, Payload
from decentnode.core.registry import TRANSFORMS, name_of
from decentnode.core.vector import accumulator
from decentnode.errors import BadInput
from decentnode.options import Fraction
from decentnode.transforms.base import VECTOR, Context
from decentnode.transforms.chain import Wrapper


@TRANSFORMS.register("error_feedback")
@dataclass
class ErrorFeedback(Wrapper):
    """Adds what the transforms after it lost to their next input (Karimireddy et al., ICML 2019, Alg. 2).

    v = g + beta e,   sent: C(v),   e <- v - C(v),   with e = 0 at the start;   C: all that follows

    beta is `decay`. With 1, the default, all decoded signals and e add up to the sum of all signals. Below 1
    what was not sent fades, so that e is also a momentum (SparseLoCo: Sarfi et al., 2025, Alg. 1). Where
    |C(v) - v| <= c |v| with c < 1, e stays bounded: |e| <= c / (1 - beta c) max |g|. So it is right for
    differences and gradients. With decay 1 `gossip` and `all_reduce` accept it for models, before transforms
    that round. There x_i <- w_ii x_i + sum_j w_ij C(x_j + e_j) keeps the sum of all x_i + (1 - w_ii) e_i, so
    that the mean of the models does not drift. Gaps count as zero at both ends. A lost payload is not
    corrected.

    State: e, d floats.
    """

    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = None
    needs_differences: ClassVar = True
    wire: ClassVar = "as what follows"
    state: ClassVar = ("_residual",)

    decay: Fraction = 1.0
    """beta."""

    def layout(self, input_layout: Layout) -> Layout:
        if not self.rest_of_chain.transforms:
            raise BadInput("corrects the transforms after it, and there are none; add one, such as sign")
        if self.of_models and self.decay < 1:
            raise BadInput("with decay is for differences, but here it corrects models; leave decay out")
        for transform in self.rest_of_chain.stages:
            if isinstance(transform, Wrapper):
                raise BadInput(f"corrects what {name_of(transform)} after it corrects already")
            if transform.depends_on_signal and transform.remembers:
                raise BadInput(
                    f"keeps what {name_of(transform)} by change leaves out in mind twice: select by magnitude"
                )
        self._residual = torch.zeros(self.dimension, dtype=accumulator(input_layout.fields[0].dtype))
        return self.rest_of_chain.layout

    def begin(self, signal: Tensor) -> Tensor:
        self._residual = torch.zeros_like(signal, dtype=accumulator(signal.dtype))
        self.rest_of_chain.begin(signal)
        return signal

    def encode(self, payload: Payload, context: Context) -> Payload:
        v = self._residual.mul_(self.decay).add_(payload[VECTOR])
        sent = self.rest_of_chain.encode(v, context)
        self._residual = v.sub_(self._decoded(sent.to(v.device), context))
        return sent

    def decode(self, payload: Payload, context: Context) -> Payload:
        """Returns what the transforms after it decode from the payload, with zeros in the gaps."""
        return Payload.dense(self._decoded(payload, context))

    def _decoded(self, payload: Payload, context: Context) -> Tensor:
        return self.rest_of_chain.decode(payload, context.filled_with(None))
