"""Several mixing steps in a round, plain or accelerated."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph
from decentnode.graph.spectrum import ZERO, SparseWeights, contraction
from decentnode.sharing.base import Exchange, Setup
from decentnode.sharing.blocks.stability import refuse_coarse
from decentnode.sharing.gossip import Gossip
from decentnode.transforms.chain import Chain

_second = lru_cache(1)(contraction)
"""The second largest |eigenvalue| of W: computed before the fork, for all nodes of a machine."""


@SHARINGS.register("multi_gossip")
@dataclass
class MultiGossip(Gossip):
    """Mixes several times in a round, also with Chebyshev acceleration (Scaman et al., ICML 2017, Alg. 2).

    x_0 = y,   x_1 = W x_0,   x_t+1 = c_t W x_t + (1 - c_t) x_t-1,   x <- x_steps

    y is the model after the local steps. Without acceleration c_t = 1, so x = W^steps y. With it x = P(W) y,
    P(l) = T(l / lambda) / T(1 / lambda), T the Chebyshev polynomial of degree `steps` and lambda the second
    largest |eigenvalue| of W. No polynomial of that degree with P(1) = 1 is smaller on [-lambda, lambda].
    Both keep the mean where W does.

    Acceleration needs symmetric weights and a graph that stays the same. Each step is an exchange of whole
    models, so transforms that select or quantize are refused. State: none; memory for 2 d.
    """

    promises = replace(Gossip.promises, overlaps=False, takes_correction=False, wire="steps deg * C(d)")

    steps: Annotated[int, Ge(1), Le(1000)] = 2
    acceleration: Literal["none", "chebyshev"] = "none"
    _c: list[float] = field(default_factory=list, init=False, repr=False)
    _buffers: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Acceleration is computed for one W.
        takes_strength = self.promises.takes_strength and self.acceleration == "none"
        self.promises = replace(self.promises, phases=self.steps, takes_strength=takes_strength)

    def coefficients(self, graph: WeightedGraph) -> list[float]:
        """Returns the coefficient c_t of each step on that graph."""
        if self.acceleration == "none":
            return [1.0] * self.steps
        return chebyshev(_second(graph) or 0.0, self.steps)

    def check(self, graph: WeightedGraph) -> None:
        if self.acceleration == "none":
            return
        if not graph.static:
            raise BadInput(
                f"{name_of(self)} with acceleration needs a graph that is the same in every round; this one "
                "is not; use acceleration: none"
            )
        if not SparseWeights(graph, 0).symmetric:
            raise BadInput(
                f"{name_of(self)} with acceleration needs symmetric weights, such as metropolis_hastings; "
                "use acceleration: none"
            )
        if (_second(graph) or 0.0) > 1 - ZERO:
            raise BadInput(
                f"{name_of(self)} with acceleration: W has the eigenvalue 1 twice, or -1, so no number of "
                "steps helps; connect the graph"
            )

    def check_chain(self, chain: Chain) -> None:
        refuse_coarse(chain, f"{name_of(self)}, which mixes whole models in each step; use choco")

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._c = self.coefficients(setup.graph)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        if not self._buffers:
            self._buffers = [torch.empty_like(vector) for _ in range(min(self.steps - 1, 2))]
        x, previous = vector, vector
        for step, c in enumerate(self._c):
            is_last = step == len(self._c) - 1
            incoming = await exchange(self.outgoing(x, view), view.sources)
            # Peers read x until the next exchange, but no longer what was sent before it.
            mixed = out if is_last else self._buffers[step % 2]
            self.mix(x, incoming, view, mixed if c == 1 else out)
            if c != 1:
                torch.lerp(previous, out, c, out=mixed)
            x, previous = mixed, x


def chebyshev(second: float, steps: int) -> list[float]:
    """The c_t of `steps` steps, t from 0: T_t+1(z) = 2 z T_t(z) - T_t-1(z) at z = 1 / `second`."""
    if second < ZERO:
        return [1.0] * steps
    # The ratio r_t = T_t-1(z) / T_t(z) stays below 1; the T_t themselves would overflow.
    c, ratio = [1.0], second
    for _ in range(steps - 1):
        ratio = 1 / (2 / second - ratio)
        c.append(2 * ratio / second)
    return c
