"""A guard of schemes that only converge when an option, the graph and the chain suit each other."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decentnode.core.registry import name_of
from decentnode.core.state import Stateful
from decentnode.errors import RunFailed
from decentnode.graph.base import View

EARLY_ROUNDS = 50
MOST_GROWTH = 100.0
"""A compressor that sends 1 coordinate in 1000 lets what is unsent grow twentyfold after the early rounds."""


@dataclass
class DivergenceGuard(Stateful):
    """Ends the run when a signal of a scheme grows to a large multiple of its early level (own idea, 2026).

    The early level is at least the norm of the common initial model. It grows with the learning rate, as
    signals do, so a learning rate that starts near zero does not make it tiny.

    Where gamma is too large for W and C, what is unsent grows without bound (Koloskova et al., 2019, Thm. 2,
    has the bound on gamma). The loss would show this only much later.
    """

    state: ClassVar = ("early", "level", "slope", "rate")

    what: str = "what is unsent"
    cause: str = ""
    """The cause that the error names; empty: the scheme's gamma is too large."""
    early: int = 0
    """Rounds so far that count as early; rounds in which the signal is zero do not count."""
    level: float = 0.0
    """The largest norm in early rounds."""
    slope: float = 0.0
    """The largest ratio of that norm to the largest learning rate so far."""
    rate: float = 0.0
    """The largest learning rate so far."""

    def begin(self, model: Tensor) -> None:
        """Receives the common initial model."""
        self.level = float(torch.linalg.vector_norm(model))

    def check(self, signal: Tensor, scheme: object, view: View) -> None:
        """Raises RunFailed when the norm of `signal` is not finite or grew too much."""
        norm = float(torch.linalg.vector_norm(signal))
        self.rate = max(self.rate, view.learning_rate)
        level = max(self.level, self.slope * self.rate)
        if math.isfinite(norm) and (self.early < EARLY_ROUNDS or norm <= MOST_GROWTH * level):
            if self.early < EARLY_ROUNDS:
                self.early += norm > 0
                self.level = max(self.level, norm)
                self.slope = max(self.slope, norm / self.rate) if self.rate else 0.0
            return
        where = f"rank {view.rank}, round {view.round + 1}"
        raise RunFailed(
            f"{where}: {name_of(scheme)} diverges: the norm of {self.what} is {norm:.3g}, after "
            f"{level:.3g} at first; {self.cause or _of_gamma(scheme)}, or the learning rate is too large"
        )


def of_momentum() -> DivergenceGuard:
    """The guard of schemes with a momentum of mixed models."""
    cause = "its momentum does not suit edges that come and go, or these transforms"
    return DivergenceGuard("how far a model moves", cause)


def of_a_sum(signal_name: str) -> Callable[[], DivergenceGuard]:
    """The guard of a sum over all rounds, in which errors of the chain stay."""
    return lambda: DivergenceGuard(signal_name, "these transforms are too coarse for it")


def _of_gamma(scheme: object) -> str:
    gamma: float = vars(scheme)["gamma"]
    return (
        f"gamma {gamma:g} is too large for this graph and these transforms (`decentnode tune CONFIG` finds a "
        "good one)"
    )
