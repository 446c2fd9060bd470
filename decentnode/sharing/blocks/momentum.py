"""Momentum from the movement of the mixed models, and the record of a round's local steps that it needs."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from decentnode.core.vector import ParameterLayout
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard, of_momentum
from decentnode.sharing.gossip import Gossip
from decentnode.transforms.chain import Chain

Decay = Annotated[float, Ge(0), Lt(1)]


@dataclass
class MomentumGossip(Gossip):
    """Gossip of models with a momentum m; `accept` updates it from how the mixed models moved."""

    needs_float32: ClassVar = True
    needs_plain_sgd: ClassVar = True
    overlaps: ClassVar = False
    takes_correction: ClassVar = False
    state: ClassVar = ("_m", "_guard")

    beta: Decay = 0.9

    _m: Tensor = field(init=False, repr=False)
    _guard: DivergenceGuard = field(default_factory=of_momentum, init=False, repr=False)

    def bind(self, layout: ParameterLayout, num_nodes: int, chain: Chain, seed: int) -> None:
        super().bind(layout, num_nodes, chain, seed)
        self._steps = LocalSteps(layout)

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._m = torch.zeros_like(vector)
        self._guard.begin(vector)


class LocalSteps:
    """Counts local steps from inside them; a new round starts after `end`."""

    def __init__(self, layout: ParameterLayout) -> None:
        self._buffers = [entry for entry in layout.entries if entry.is_buffer]
        self.count = 0
        """The steps of this round so far."""
        self._start: Tensor | None = None

    def note(self, vector: Tensor) -> None:
        """Call this in every step before the model changes, with the model."""
        if not self.count:
            self._start = vector.clone() if self._start is None else self._start.copy_(vector)
        self.count += 1

    def end(self, vector: Tensor, mixed: Tensor) -> tuple[int, Tensor]:
        """The number of steps, and x - `mixed`, where x is the model before them: `vector` without any.

        Zero for buffers.
        """
        count, self.count = self.count, 0
        start = vector.clone() if not count or self._start is None else self._start
        moved = start.sub_(mixed)
        for entry in self._buffers:
            # Buffers have no gradient. Momentum could make a variance negative.
            entry.view(moved).zero_()
        return count, moved
