"""Momentum that stays local, of which the largest coefficients are sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS
from decentnode.core.vector import AdjustGradient, is_finite
from decentnode.graph.base import View
from decentnode.options import Fraction
from decentnode.sharing.base import Incoming, Promises, Requirements, Setup, Sharing
from decentnode.sharing.blocks.momentum import Decay
from decentnode.transforms.base import Transform
from decentnode.transforms.basis.dct import Chunk, Dct
from decentnode.transforms.sparsify.chunk_top_k import ChunkTopK


@SHARINGS.register("demo")
@dataclass
class DeMo(Sharing):
    """Sends the largest cosine coefficients of a local momentum (DeMo: Peng et al., 2024, Alg. 1).

    m_i <- beta m_i + g_i,   q_i = C(m_i),   m_i <- m_i - q_i,   x <- x - eta sgn(1/n sum_j q_j)

    C: the `fraction` of largest coefficients of each block of chunk x chunk of a matrix, and what follows in
    the chain; with `matrices: false` of each `chunk` values of the model. What was not sent stays in m_i, as
    in error feedback, and fades with beta. Without `sign` the step is eta times the mean, and with all
    coefficients SGD with the mean gradient, whatever beta is, because all of m is sent. g is the mean
    gradient of a round's local steps, all of them at the same x. The mean is over all nodes, also where a
    coefficient was not sent; DeMo's code divides by the number of nodes that sent it.

    All nodes must start from one model and add the same terms, so that a lost message would part their models
    for ever. State: m, d floats.
    """

    requirements = Requirements(complete_graph=True, plain_sgd=True, float32=True)
    promises = Promises(
        sends="differences",
        carries_errors=True,
        tolerates_loss=False,
        about_mean="has one model on all nodes, which moves by the mean of what all send",
    )
    state: ClassVar = ("_m",)

    fraction: Fraction = 1 / 128
    beta: Decay = 0.999
    sign: bool = True
    chunk: Chunk = 64
    matrices: bool = True

    def first_transforms(self) -> tuple[Transform, ...]:
        length = self.chunk**2 if self.matrices else self.chunk
        return Dct(self.chunk, self.matrices), ChunkTopK(self.fraction, length, by="magnitude")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._buffers = [entry for entry in setup.layout.entries if entry.is_buffer]
        self._gradients: Tensor | None = None
        """The sum of the gradients of this round's local steps."""
        self._steps = 0

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._m = torch.zeros_like(vector)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._collect

    def _collect(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        """Takes the gradient and leaves none, so that the local step moves nothing."""
        if self._gradients is None:
            self._gradients = torch.zeros_like(self._m)
        self._gradients.add_(gradient)
        self._steps += 1
        gradient.zero_()

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        # The model is not sent, so nobody else would see it.
        if not is_finite(vector):
            raise self.own_error(vector, view)
        self._m.mul_(self.beta)
        if self._steps and self._gradients is not None:
            self._m.add_(self._gradients, alpha=1 / self._steps)
            self._gradients.zero_()
        self._steps = 0
        sent = self.chain.encode(self._m, view.context(view.rank))
        # As the others decode it, so that what later stages round stays in m, too.
        self._q = self.chain.decode(sent.to(self._m.device), view.context(view.rank))
        self._m.sub_(self._q)
        return dict.fromkeys(view.targets, sent)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        q = {view.rank: self._q, **self.decode(incoming, view)}
        # In the order of ranks, so that all nodes add in the same one and their models are equal bit by bit.
        self.weighted_mix(q, view, out, terms=lambda q: [(1 / len(q), q[j]) for j in sorted(q)])
        if self.sign:
            out.sign_()
        for entry in self._buffers:
            # They have no gradient, but a block of coefficients may reach into them.
            entry.view(out).zero_()
        out.mul_(-view.learning_rate).add_(vector)
