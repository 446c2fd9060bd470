"""Sparse ternary compression, between peers or with a server."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.core.registry import SHARINGS
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.options import Fraction, NonNegative
from decentnode.sharing.base import Exchange
from decentnode.sharing.blocks.public_copy import PublicCopy
from decentnode.sharing.choco import Choco
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain
from decentnode.transforms.coding.rice import Rice
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.quantize.sign import Sign
from decentnode.transforms.sparsify.top_k import TopK


@SHARINGS.register("stc")
@dataclass
class Stc(Choco):
    """Sends few changes of equal size as positions and signs (Sattler et al., IEEE TNNLS 2020, Alg. 2).

    C(v)_k = mu sgn(v_k) for the fraction p of largest |v_k|, else 0;   mu: the mean of those |v_k|

    With `server`, the center of a star, every round starts from the model W that all have in common:
    c_i = C(y_i - W + A_i),   A_i <- A_i + y_i - W - c_i                         at each client i, sent up
    u = sum_i w_si c_i,   c = C(u + A),   A <- A + u - c,   W <- W + c           at the server, c is sent down
    In u the server's own y_s - W has its own weight; a server without samples adds 0. Between peers it is
    CHOCO with this C: c_i = C(y_i - h_i), and what was not sent stays in y_i - h_i.

    Indices are Golomb coded: about 8.1 bits each for p = 0.01. State: 2 d. gamma is used between peers only
    and should be about 2 p. The mean of all models is kept between peers, not with a server.
    """

    promises = replace(
        Choco.promises,
        by_coordinate=False,
        about_mean="keeps the mean of all models between peers, not with a server",
        overlaps=False,
        phases=2,
        wire="deg * C(d), C(d) = p d (log2(1 / p) + 2.5) / 8, p = fraction",
    )

    gamma: Fraction = 0.02
    fraction: Fraction = 0.01
    server: NonNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server is not None and self.by_edge:
            key = "server" if self.memory is None else "memory"
            raise BadInput.at(
                key, "a server has one copy for all, on a star that never changes; leave it out"
            )

    def preserves_mean(self, chain: Chain) -> bool:
        return self.server is None

    def first_transforms(self) -> tuple[Transform, ...]:
        first = () if self.server is None else (ErrorFeedback(),)
        return (*first, TopK(self.fraction), Sign(), Rice())

    def check(self, graph: WeightedGraph) -> None:
        if self.server is None or not graph.static:
            return
        others = set(range(graph.num_nodes)) - {self.server}
        targets = [set(graph.graph.targets(rank, 0)) for rank in range(graph.num_nodes)]
        if not others or any(targets[rank] != {self.server} for rank in others):
            raise BadInput(f"stc with server {self.server} needs a star around that rank; this graph is none")

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        if self.server is None:
            await super().share(vector, view, exchange, out=out)
            return
        known = self._models
        assert isinstance(known, PublicCopy), "copies by edge are refused"
        update = vector - known.h
        communicate = self._serve if view.rank == self.server else self._follow
        down = await communicate(update, view, exchange)
        c = self.decode({self.server: down}, view, phase=1)
        taken = out if out.dtype == update.dtype else torch.empty_like(update)
        self.weighted_mix(c, view, taken, terms=lambda c: ((1.0, c_s) for c_s in c.values()))
        known.h += taken
        out.copy_(known.h)

    async def _serve(self, update: Tensor, view: View, exchange: Exchange) -> Payload:
        u = {view.rank: update, **self.decode(await exchange({}, view.sources), view)}
        mean = torch.empty_like(update)
        self.weighted_mix(u, view, mean, terms=lambda u: ((view.weights[j], u_j) for j, u_j in u.items()))
        down = self.encode(mean, view, phase=1)
        await exchange(down, ())
        return down[view.targets[0]].to(update.device)

    async def _follow(self, update: Tensor, view: View, exchange: Exchange) -> Payload:
        await exchange(self.encode(update, view), ())
        return (await exchange({}, view.sources))[view.sources[0]]
