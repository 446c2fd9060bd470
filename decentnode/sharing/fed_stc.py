"""Sparse ternary updates between clients and a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import SHARINGS
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.options import Fraction
from decentnode.sharing.base import Setup
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.transforms.base import Transform
from decentnode.transforms.coding.rice import Rice
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.quantize.sign import Sign
from decentnode.transforms.sparsify.top_k import TopK


@SHARINGS.register("fed_stc")
@dataclass
class FedStc(ServerSharing):
    """Sends sparse ternary updates up and down (STC: Sattler et al., IEEE TNNLS 2020, Alg. 2).

    c_i = C(y_i - x + A_i),   A_i <- A_i + y_i - x - c_i             at each client of the round, sent up
    c = C(sum_i p_i c_i + A), A <- A + sum_i p_i c_i - c, x <- x + c   at the server, c is sent down

    C(v)_k = mu sgn(v_k) for the fraction p of largest |v_k|, else 0;  mu is the mean of those |v_k|.

    All nodes know x as a sum of all c, so each client needs every c: `down: all` where not all clients take
    part in every round. Indices are Golomb coded. State: x, A_i and A.
    """

    promises = replace(
        ServerSharing.promises,
        allows_rejoin=False,
        carries_errors=True,
        wire="k (log2(1 / p) + 2.5) / 8 up, the same down to each client; k = p d, p = fraction",
    )
    state: ClassVar[tuple[str, ...]] = (*ServerSharing.state, "_chain_down")

    fraction: Fraction = 0.01

    def first_transforms(self) -> tuple[Transform, ...]:
        return ErrorFeedback(), TopK(self.fraction), Sign(), Rice()

    def check(self, graph: WeightedGraph) -> None:
        views = [graph.view(rank, 0) for rank in range(graph.num_nodes)]
        if any(view.servers and view.rank not in view.servers and not view.sources for view in views):
            raise BadInput("fed_stc needs clients that receive every update; use graph.down: all")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._chain_down = setup.chain.copy()
        self._sent: Payload | None = None

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._chain_down.begin(torch.zeros_like(vector))

    def payload_layout(self, phase: int = 0) -> Layout | None:
        return self.chain.layout

    def signal(self, vector: Tensor, view: View) -> Tensor:
        return torch.sub(vector, self._x)

    def step(self, u: Tensor, parts: Mapping[int, Tensor], view: View) -> None:
        self._sent = self._chain_down.encode(u, view.context(view.rank, phase=1))

    def _down(self, view: View) -> Payload:
        if self._sent is None:
            # Nothing arrived; the residual of earlier rounds is sent.
            self.step(torch.zeros_like(self._x), {}, view)
        assert self._sent is not None
        return self._sent

    def _received(self, view: View) -> Callable[[int, Payload], Tensor]:
        def read(server: int, payload: Payload) -> Tensor:
            return self._x + self._chain_down.decode(payload, view.context(server, phase=1))

        return read

    def _stay(self, view: View) -> None:
        self._taken = self._received(view)(view.rank, self._down(view).to(self._x.device))

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        super().accept(vector, view, mixed)
        self._sent = None
