"""The server averages what its clients learned."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.options import PositiveFloat
from decentnode.sharing.blocks.outer import OptimizerMaker, OuterOptimizer, SavesOuter
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.transforms.chain import Chain


@SHARINGS.register(
    "fed_avg",
    "federated_averaging",
    "scatter_and_gather",
    fed_avg_m="outer: {name: SGD, momentum: ...}",
    fed_adagrad="outer: {name: Adagrad, ...}",
    fed_opt="outer: {...}",
)
@dataclass
class FedAvg(SavesOuter, ServerSharing):
    """Averages the clients' models at a server (McMahan et al., AISTATS 2017, Alg. 1).

    x <- x + eta sum_i p_i C(y_i - x),   y_i the model of client i after its local steps

    p_i = n_i / sum of all n_j that arrived, n_i the samples of i, or equal. Without transforms and with eta 1
    this is sum_i p_i y_i. Clients send differences, so every transform may be used. The optimizers of the
    clients keep their own state.

    With `outer`, -eta sum_i p_i C(y_i - x) is the gradient of a step of that optimizer at the server. State:
    its moments and x.
    """

    eta: PositiveFloat = 1.0
    outer: OptimizerMaker | None = None
    """The server's optimizer; null: the server adds the change."""

    def __post_init__(self) -> None:
        if self.outer is not None:
            if type(self).step is not FedAvg.step:
                raise BadInput.at("outer", f"{name_of(self)} has a step of its own; use fed_avg")
            self._outer = OuterOptimizer(self.outer)

    def check_chain(self, chain: Chain) -> None:
        super().check_chain(chain)
        if self.outer is not None and len(chain.turns) > 1:
            what = f"a step of {name_of(self)}'s server is one of the whole model"
            raise BadInput(f"{what}; leave out fragments, or use all_reduce with outer")

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        if self._outer is not None:
            self._outer.begin(self._x)

    def signal(self, vector: Tensor, view: View) -> Tensor:
        return torch.sub(vector, self._x)

    def step(self, u: Tensor, parts: Mapping[int, Tensor], view: View) -> None:
        if self._outer is None:
            self._x.add_(u, alpha=self.eta)
        else:
            # It may be that of another server, which this node followed.
            self._outer.phi.copy_(self._x)
            self._outer.step(torch.add(self._x, u, alpha=self.eta))
            self._x.copy_(self._outer.phi)
