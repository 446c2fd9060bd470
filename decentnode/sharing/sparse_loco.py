"""Compressed changes of many local steps, with error feedback in place of an outer momentum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS
from decentnode.graph.base import View
from decentnode.options import Fraction, Positive, PositiveFloat
from decentnode.sharing.base import Incoming, Promises, Requirements, Sharing
from decentnode.transforms.base import Transform
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.sparsify.chunk_top_k import ChunkTopK


@SHARINGS.register("sparse_loco")
@dataclass
class SparseLoCo(Sharing):
    """Averages compressed changes of all nodes (SparseLoCo: Sarfi et al., 2025, arXiv 2508.15706, Alg. 1).

    v_i = x_i - theta + beta e_i,   q_i = C(v_i),   e_i <- v_i - q_i,   theta <- theta + eta (1/n) sum_j q_j

    theta is the model before the local steps, the same on all nodes, and x_i that after them. C: the
    `fraction` of largest values of each `chunk`, and what follows in the chain, such as a quantizer of two
    bits. What was not sent stays in e_i and fades with beta, in place of DiLoCo's outer momentum. With all
    values and no quantizer e_i is 0, and this is an outer step of SGD with rate eta. The mean is over all
    nodes, also where a value was not sent.

    All nodes must start from one model and add the same terms, so that a lost message would part their models
    for ever. With a server it is `fed_avg` with such a chain. State: theta and e, 2 d floats.
    """

    requirements = Requirements(complete_graph=True, float32=True)
    promises = Promises(
        sends="differences",
        carries_errors=True,
        tolerates_loss=False,
        about_mean="has one model on all nodes, which moves by the mean of what all send",
    )
    state: ClassVar = ("_theta",)

    fraction: Fraction = 1 / 64
    decay: Fraction = 0.95
    """beta."""
    eta: PositiveFloat = 1.0
    chunk: Positive = 4096

    def first_transforms(self) -> tuple[Transform, ...]:
        return ErrorFeedback(self.decay), ChunkTopK(self.fraction, self.chunk, by="magnitude")

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._theta = vector.clone()

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        sent = self.chain.encode(vector - self._theta, view.context(view.rank))
        # As the others decode it, so that all nodes add the same.
        self._q = self.chain.decode(sent.to(vector.device), view.context(view.rank))
        return dict.fromkeys(view.targets, sent)

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        q = {view.rank: self._q, **self.decode(incoming, view)}
        # In the order of ranks, so that all nodes add in the same one and their models are equal bit by bit.
        self.weighted_mix(q, view, out, terms=lambda q: [(self.eta / len(q), q[j]) for j in sorted(q)])
        out.add_(self._theta)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        super().accept(vector, view, mixed)
        self._theta.copy_(mixed)
