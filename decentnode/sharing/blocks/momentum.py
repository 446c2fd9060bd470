"""Momentum from the movement of the mixed models."""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from decentnode.sharing.base import Requirements, Setup
from decentnode.sharing.blocks.divergence_guard import DivergenceGuard, of_momentum
from decentnode.sharing.gossip import Gossip

Decay = Annotated[float, Ge(0), Lt(1)]


@dataclass
class MomentumGossip(Gossip):
    """Gossip of models with a momentum m; `accept` updates it from how the mixed models moved."""

    requirements = Requirements(float32=True, plain_sgd=True)
    promises = replace(Gossip.promises, overlaps=False, takes_correction=False)
    state: ClassVar = ("_m", "_guard")

    beta: Decay = 0.9

    _guard: DivergenceGuard = field(default_factory=of_momentum, init=False, repr=False)

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._buffers = [entry for entry in setup.layout.entries if entry.is_buffer]
        self._steps = 0
        """The local steps of this round so far."""
        self._start: Tensor | None = None

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._m = torch.zeros_like(vector)
        self._guard.begin(vector)

    def _note(self, vector: Tensor) -> None:
        """Notes the model; call it in every step before the model changes."""
        if not self._steps:
            self._start = vector.clone() if self._start is None else self._start.copy_(vector)
        self._steps += 1

    def _moved(self, vector: Tensor, mixed: Tensor) -> Tensor:
        """Returns x - `mixed`, x the model before the local steps: `vector` without any. Ends the round.

        Zero for buffers.
        """
        start = vector.clone() if not self._steps or self._start is None else self._start
        self._steps = 0
        moved = start.sub_(mixed)
        for entry in self._buffers:
            # Buffers have no gradient. Momentum could make a variance negative.
            entry.view(moved).zero_()
        return moved
