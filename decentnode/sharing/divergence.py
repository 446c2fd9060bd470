"""A guard of schemes that only converge when gamma is small enough."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from decentnode.errors import RunFailed
from decentnode.graph.base import View
from decentnode.registry import name_of
from decentnode.stateful import Stateful

EARLY_ROUNDS = 50
MOST_GROWTH = 100.0
"""A compressor that sends 1 coordinate in 1000 lets its backlog grow twentyfold after the early rounds."""


class WithGamma(Protocol):
    """A scheme with a consensus step size."""

    gamma: float


@dataclass
class DivergenceGuard(Stateful):
    """Ends the run when the unsent part grows to a large multiple of its early level (own idea, 2026).

    The early level is at least the norm of the model that all start from, so that a learning rate that
    begins near zero does not make it tiny.

    Where gamma is too large for W and C, it grows without bound (Koloskova et al., 2019, Thm. 2, has what is
    small enough), and the loss would tell so only much later.
    """

    state: ClassVar = ("early", "level")

    early: int = 0
    """Rounds so far that count as early; those with nothing unsent do not count."""
    level: float = 0.0
    """The largest norm in early rounds."""

    def begin(self, model: Tensor) -> None:
        """Sees the model that all nodes start from."""
        self.level = float(torch.linalg.vector_norm(model))

    def check(self, unsent: Tensor, scheme: WithGamma, view: View) -> None:
        """Raises RunFailed when the norm of `unsent` is not finite, or grew too much."""
        norm = float(torch.linalg.vector_norm(unsent))
        if math.isfinite(norm) and (self.early < EARLY_ROUNDS or norm <= MOST_GROWTH * self.level):
            if self.early < EARLY_ROUNDS:
                self.early += norm > 0
                self.level = max(self.level, norm)
            return
        where = f"rank {view.rank}, round {view.round + 1}"
        raise RunFailed(
            f"{where}: {name_of(scheme)} diverges: the norm of what is unsent is {norm:.3g}, after "
            f"{self.level:.3g} at first; gamma {scheme.gamma:g} is too large for this graph and these "
            "transforms (`decentnode tune CONFIG` finds a good one), or the learning rate is"
        )
