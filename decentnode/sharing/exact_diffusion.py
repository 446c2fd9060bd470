"""Diffusion with a correction that removes the bias of heterogeneous data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.base import Incoming, Promises, Requirements, Sharing
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard, of_a_sum
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.transforms.chain import Chain


@SHARINGS.register("exact_diffusion")
@dataclass
class ExactDiffusion(Sharing):
    """Diffusion without bias, the safe form of D^2 (Yuan et al., IEEE TSP 2019, Exact diffusion, Alg. 1).

    psi = x - eta g,   phi = psi + c,   x+ = (I + W)/2 phi,   c+ = x+ - psi

    psi is the model after the local steps, of any number and any optimizer. With one gradient step a round
    the limit is the optimum of the sum of all f_i. With more it is where the nodes' displacements cancel. A
    node without samples has psi = x. Each change of the learning rate disturbs the models once.

    c is a sum over all rounds, so no rounding error of a model may enter it. With delta_i = sum_j w_ij (phi_j
    - phi_i) / 2 the same is c+ = c + delta, x+ = phi + delta. The contributions of two nodes to each other
    are opposite to the bit. Where all phi are equal nothing changes any more.

    State: c, d floats. Needs a static graph and symmetric weights. The sum of all models is kept whatever
    transforms lose. Transforms that select are refused, because errors in the sum would accumulate.
    """

    requirements = Requirements(
        static_graph=True, for_changing_graphs="use gradient_tracking", undirected_graph=True, float32=True
    )
    promises = Promises(by_coordinate=True, keeps_mean=True, tolerates_loss=False)
    state: ClassVar = ("_correction", "_guard")
    alpha: ClassVar[float] = 0.5
    """The weight of W in (1 - alpha) I + alpha W."""

    _guard: DivergenceGuard = field(default_factory=of_a_sum("its correction"), init=False, repr=False)

    def check(self, graph: WeightedGraph) -> None:
        W = graph.matrix()
        if not np.allclose(W, W.T, rtol=0, atol=1e-9):
            raise BadInput(f"{name_of(self)} needs symmetric weights, such as metropolis_hastings")

    def check_chain(self, chain: Chain) -> None:
        if chain.selects:
            raise BadInput(f"{name_of(self)} needs all coordinates of a model, but a transform selects some")

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._correction = torch.zeros_like(vector)
        self._guard.begin(vector)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        # A new tensor in each round: peers may read the last one until this exchange ends.
        self._phi = vector + self._correction
        self._sent = self.encode(self._phi, view)
        return self._sent

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        phi = self.decode(incoming, view)
        if not phi:
            out.copy_(self._phi)
            return
        origin = None
        if self.chain.per_receiver:
            phi = {j: phi_j - self._as_decoded_by(j, view) for j, phi_j in phi.items()}
        else:
            origin = self._as_decoded_by(view.targets[0], view)

        def terms(phi: Mapping[int, Tensor]) -> Terms:
            return ((self.alpha * view.weights[j], phi_j) for j, phi_j in phi.items() if j != view.rank)

        self.weighted_mix({**phi, view.rank: self._phi}, view, out, terms=terms, origin=origin)
        self._correction += out
        self._guard.check(self._correction, self, view)
        out += self._phi

    def _as_decoded_by(self, j: int, view: View) -> Tensor:
        """The own phi as j decodes it, in the precision of models."""
        context = view.context(view.rank, j)
        return self.chain.decode(self._sent[j].to(self._phi.device), context).to(self._phi.dtype)
