"""Control variates correct the drift of the clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload, PayloadError, dense_layout
from decentnode.core.registry import SHARINGS, name_of
from decentnode.core.vector import AdjustGradient
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.sharing.blocks.scalar_field import ScalarField
from decentnode.sharing.fed_avg import FedAvg
from decentnode.transforms.chain import Chain

RATE = ScalarField("rate", torch.float64)


@SHARINGS.register("scaffold")
@dataclass
class Scaffold(FedAvg):
    """Corrects local steps by control variates (SCAFFOLD: Karimireddy et al., ICML 2020, Alg. 1, option II).

    y_i <- y_i - eta_l (g_i(y_i) - c_i + c),   u_i = y_i - x,   d_i = -c - s_i C(u_i),   s_i = 1 / (K eta_l)
    c_i <- c_i + d_i,   x <- x + eta sum_i p_i C(u_i),   c <- c + 1/N sum_i d_i

    K is the number of local steps, N that of all nodes with samples. The server knows c, so s_i beside C(u_i)
    gives it d_i, and c stays the mean of all c_i whatever the transforms lose. It sends x and c down.
    Reaches the common optimum although the clients differ and make many steps. The last c_i of a lost client
    stays in c. State: x, c, c_i.
    """

    requirements = replace(FedAvg.requirements, plain_sgd=True)
    promises = replace(FedAvg.promises, allows_rejoin=False, wire="C(d) + 8 up, 2 b d down to each client")
    decodes_own: ClassVar = True
    state: ClassVar[tuple[str, ...]] = (*FedAvg.state, "_c_own")

    _steps: int = field(default=0, init=False, repr=False)

    def check_chain(self, chain: Chain) -> None:
        if chain.selects:
            raise BadInput(
                f"{name_of(self)} needs all coordinates of an update, but a transform selects some"
            )

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._model = torch.cat([vector, torch.zeros_like(vector)])
        self._c_own = torch.zeros_like(vector)

    def payload_layout(self, phase: int = 0) -> Layout | None:
        if phase == 0:
            return RATE.layout(self.chain.layout)
        signal = self.chain.layouts[0].fields[0]
        return dense_layout(2 * signal.elements, signal.dtype)

    @property
    def adjust_gradient(self) -> AdjustGradient:
        return self._correct

    def _correct(self, gradient: Tensor, vector: Tensor, step: int) -> None:
        gradient.add_(self._c).sub_(self._c_own)
        self._steps += 1

    @property
    def _c(self) -> Tensor:
        return self._model[self._elements :]

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        path = self._steps * view.learning_rate
        # Without a step there is no gradient to learn from: d_i is zero.
        self._s = {view.rank: 1 / path if path else 0.0}
        self._rate = self._s[view.rank]
        self._steps = 0
        sent = super().outgoing(vector, view)
        if self._update is not None:
            self._c_own.add_(self._change(self._update, self._rate))
        return sent

    def _change(self, u: Tensor, s: float) -> Tensor:
        """Returns d_i, given C(u_i) and s_i."""
        return torch.add(self._c, u, alpha=s).neg_() if s else torch.zeros_like(u)

    def _packed(self, payload: Payload) -> Payload:
        return RATE.join(payload, self._rate)

    def _unpacked(self, j: int, payload: Payload) -> Payload:
        inner, companion = RATE.split(payload, self.chain.layout)
        s = companion.item()
        if not 0 <= s <= torch.finfo(self._c.dtype).max:
            raise PayloadError(f"1 / (steps * learning rate) is {s:g}")
        self._s[j] = s
        return inner

    def step(self, u: Tensor, parts: Mapping[int, Tensor], view: View) -> None:
        super().step(u, parts, view)
        n = sum(1 for samples in self._samples.values() if samples)
        learned = [j for j in parts if self._s[j]]
        total = self._c * -len(learned)
        for j in learned:
            total.sub_(parts[j], alpha=self._s[j])
        self._c.add_(total, alpha=1 / n)
