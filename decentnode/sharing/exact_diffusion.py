"""Diffusion with a correction that takes heterogeneity's bias away."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.mixing import WeightedGraph
from decentnode.payload import Layout, Payload
from decentnode.registry import SHARINGS, name_of
from decentnode.sharing.base import Incoming, Sharing
from decentnode.sharing.conserving import Conserving, selects
from decentnode.transforms.chain import Chain
from decentnode.vector import ParameterLayout


@SHARINGS.register("exact_diffusion")
@dataclass
class ExactDiffusion(Sharing):
    """Diffusion without bias, the safe form of D^2 (Yuan et al., IEEE TSP 2019, Exact diffusion, Alg. 1).

    psi = x - eta g,   phi = psi + x - psi_prev,   x+ = (I + W)/2 phi

    psi is the model after the local steps, be they several and of any optimizer: with one gradient step a
    round the limit is the optimum of the sum of all f_i; with more it is where the nodes' displacements
    cancel. A node without samples has psi = x. Each change of the learning rate is felt once, as a push.

    State: x - psi_prev, d floats. Needs a static graph and symmetric weights. The sum of all models is kept
    whatever transforms lose (errors in it would add up for ever), so transforms that select are refused.
    """

    needs_static_graph: ClassVar = True
    needs_undirected_graph: ClassVar = True
    tolerates_loss: ClassVar = False
    state: ClassVar = ("_correction",)
    alpha: ClassVar[float] = 0.5
    """How much of W: (1 - alpha) I + alpha W."""

    _correction: Tensor = field(init=False, repr=False)

    def check(self, graph: WeightedGraph) -> None:
        W = graph.matrix()
        if not np.allclose(W, W.T, rtol=0, atol=1e-9):
            raise BadInput(f"{name_of(self)} needs symmetric weights, such as metropolis_hastings")

    def check_chain(self, chain: Chain) -> None:
        if selects(chain):
            raise BadInput(f"{name_of(self)} needs all coordinates of a model, but a transform selects some")

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        super().bind(layout, num_nodes, chain, seed)
        self._mixing = Conserving(self, chain, alpha=self.alpha)
        self._phi: Tensor | None = None

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._correction = torch.zeros_like(vector)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self.chain.layout

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        self._sent = self._mixing.outgoing(self._corrected(vector), view)
        return self._sent

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        assert self._phi is not None
        self._mixing.mix(self._phi, self._sent, incoming, view, out)
        torch.sub(out, vector, out=self._correction)

    def _corrected(self, psi: Tensor) -> Tensor:
        # Two buffers by turns: the phi that was sent may be read until the next exchange is over.
        spare = torch.empty_like(psi) if self._phi is None else self._phi
        self._phi, self._correction = self._correction.add_(psi), spare
        return self._phi
