"""Mean and deviation of inputs, released with noise before the first private step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Lt
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.rng import RandomSource
from decentnode.options import PositiveFloat

Bounds = tuple[float, float]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How each node releases what inputs are normalized by."""

    epsilon_share: Annotated[float, Gt(0), Lt(1)] | None = None
    """The part of `epsilon` that the release may spend by itself; the steps get what is left."""
    noise: PositiveFloat | None = None
    """The standard deviation of the noise, in units of the most that a sample changes; null: the least with
    which the release spends `epsilon_share`."""
    bounds: Bounds | Mapping[str, Bounds] | None = None
    """The least and the greatest value of inputs, or of each feature by its name, known without the samples;
    null: 0 and 255 for images of 8 bits. What is beyond them counts as if it were there."""

    def __post_init__(self) -> None:
        if (self.epsilon_share is None) == (self.noise is None):
            raise ValueError("give epsilon_share, or noise, but not both")
        pairs = self.bounds if isinstance(self.bounds, Mapping) else {"": self.bounds or (0.0, 1.0)}
        for name, (low, high) in pairs.items():
            if not -math.inf < low < high < math.inf:
                of = f" of {name!r}" if name else ""
                raise ValueError(f"bounds{of} must be two numbers, the least first, not {low:g} and {high:g}")


@dataclass(frozen=True)
class Release:
    """The noise of the release of each node."""

    noise: float
    """The standard deviation, in units of the most that a sample changes."""
    epsilon: float | None
    """What it spends by itself; None: nobody accounts for it."""
    bounds: Bounds | Mapping[str, Bounds] | None
    is_secret: bool
    """Whether the noise comes from the operating system."""


@dataclass(frozen=True, eq=False)
class BoundedMoments:
    """Sums from which mean and deviation of inputs follow, and to which each sample adds little.

    With u = (x - c) / h, clipped to [-1, 1], for the center c and half the width h of the bounds, a sample is
    one row

        v = (1, u, 2 u^2 - 1)

    with d numbers u, of which those of a channel are means over its pixels, and so are the squares. Each
    number is from -1 to 1, so one row more or less changes their sum by at most |v| = sqrt(1 + 2 d). The
    Gaussian mechanism adds noise of a deviation of `noise` times that to each number (Dwork and Roth, 2014,
    appendix A; the count has noise, too, as the neighboring data set has one sample more or less).
    """

    center: Tensor
    """c, of the shape of the mean that samples are normalized by, float64."""
    half: Tensor
    """h"""
    chosen: Tensor
    """Which of these d are, bool."""

    @property
    def count(self) -> int:
        """d"""
        return int(self.chosen.sum())

    @property
    def sensitivity(self) -> float:
        """The norm of the largest row."""
        return math.sqrt(1 + 2 * self.count)

    def rows(self, inputs: Tensor) -> Tensor:
        """Returns v of each input, shape (n, 1 + 2 d), float64."""
        missing = inputs.dim() - 1 - self.center.dim()
        shape = (*[1] * missing, *self.center.shape)
        u = ((inputs.double() - self.center) / self.half).clamp(-1, 1)
        over = tuple(axis for axis, size in enumerate(shape, 1) if size == 1)
        each = [u, 2 * u.square() - 1]
        means = [part.mean(over, keepdim=True) if over else part for part in each]
        chosen = [part.flatten(1)[:, self.chosen.flatten()] for part in means]
        return torch.cat([torch.ones(len(inputs), 1, dtype=torch.float64), *chosen], 1)

    def released(self, total: Tensor, noise: float, source: RandomSource) -> Array:
        """Returns the sum of the rows of a node with noise."""
        drawn = source.normal(len(total)).mul_(noise * self.sensitivity)
        found: Array = (total + drawn).numpy()
        return found

    def mean_and_deviation(self, released: Array, deviation: float) -> tuple[Tensor, Tensor]:
        """Returns what the chosen inputs are normalized by, shape (d,), float64.

        `released`: a sum of rows, and the standard deviation of the noise of each number. Whatever the noise
        was, the mean is within the bounds, and the deviation at least what the noise of the squares can tell
        from none.
        """
        d = self.count
        # A count below its noise tells nothing.
        count = max(float(released[0]), deviation)
        mean = (released[1 : d + 1] / count).clip(-1, 1)
        least = deviation / (2 * count)
        variance = ((released[d + 1 :] / count + 1) / 2 - mean**2).clip(least, 1)
        center, half = self.center[self.chosen], self.half[self.chosen]
        return center + half * torch.from_numpy(mean), half * torch.from_numpy(np.sqrt(variance))
