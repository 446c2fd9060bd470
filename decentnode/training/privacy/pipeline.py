"""Mean and deviation of inputs, and categories, released with noise before the first private step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Lt
from numpy.typing import NDArray
from torch import Tensor

from decentnode.core.rng import RandomSource
from decentnode.options import PositiveFloat
from decentnode.training.privacy.accountants import LEAST_GIVEN, MOST_NOISE

Bounds = tuple[float, float]
Share = Annotated[float, Gt(0), Lt(1)]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How each node releases what inputs are normalized by."""

    epsilon_share: Share | None = None
    """The part of `epsilon` that the release may spend by itself; the steps get what is left."""
    noise: PositiveFloat | None = None
    """The standard deviation of the noise, in units of the most that a sample changes; null: the least with
    which the release spends `epsilon_share`."""
    delta_share: Share | None = None
    """The part of `delta` with which a category of a single sample may be released; null: categories are not
    released."""
    bounds: Bounds | Mapping[str, Bounds] | None = None
    """The least and the greatest value of inputs, or of each feature by its name, known without the samples;
    null: 0 and 255 for images of 8 bits. What is beyond them counts as if it were there."""

    def __post_init__(self) -> None:
        if (self.epsilon_share is None) == (self.noise is None):
            raise ValueError("give one of epsilon_share and noise")
        if self.noise is not None and not LEAST_GIVEN <= self.noise <= MOST_NOISE:
            raise ValueError(f"noise must be from {LEAST_GIVEN:g} to {MOST_NOISE:g}, not {self.noise:g}")
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
    delta: float = 0.0
    """The probability with which a category of a single sample may be released; 0: none is released."""


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

    With k columns of categories, v also has a number for each category, 1 for those of the sample, so
    |v| = sqrt(1 + 2 d + k). Of a category that no other sample has even its name is private: it is released
    where its sum is above a threshold that 1 and the noise exceed with a probability of at most delta / k
    (Korolova et al., 2009; Desfontaines et al., 2022).
    """

    center: Tensor
    """c, of the shape of the mean that samples are normalized by, float64."""
    half: Tensor
    """h"""
    chosen: Tensor
    """Which of these d are, bool."""
    columns: Mapping[str, range] = field(default_factory=dict)
    """The inputs of each of the k columns of categories."""

    @property
    def count(self) -> int:
        """d"""
        return int(self.chosen.sum())

    @property
    def numbers(self) -> int:
        """1 + 2 d, the numbers before those of categories."""
        return 1 + 2 * self.count

    @property
    def sensitivity(self) -> float:
        """The norm of the largest row."""
        return math.sqrt(1 + 2 * self.count + len(self.columns))

    def rows(self, inputs: Tensor) -> Tensor:
        """Returns v of each input, shape (n, 1 + 2 d + categories), float64."""
        shape = (*[1] * inputs.dim(), *self.center.shape)[1 - inputs.dim() :]
        # What is no number would be in the sum, and nothing bounds it.
        u = ((inputs.double() - self.center.view(shape)) / self.half.view(shape)).clamp(-1, 1).nan_to_num()
        over = tuple(axis for axis, size in enumerate(shape, 1) if size == 1)
        each = [u, 2 * u.square() - 1]
        means = [part.mean(over, keepdim=True) if over else part for part in each]
        chosen = [part.flatten(1)[:, self.chosen.flatten()] for part in means]
        levels = [inputs[:, [*column]].double() for column in self.columns.values()]
        return torch.cat([torch.ones(len(inputs), 1, dtype=torch.float64), *chosen, *levels], 1)

    def released(self, total: Tensor, noise: float, source: RandomSource) -> Array:
        """Returns the sum of the rows of a node with noise."""
        drawn = source.normal(len(total)).mul_(noise * self.sensitivity)
        found: Array = (total + drawn).numpy()
        return found

    def selected(self, total: Tensor, released: Array, noise: float, delta: float) -> list[int]:
        """Returns the inputs of the categories that a node releases.

        `total`: the sum of its rows without noise, as a node knows no category but those of its samples.
        """
        if not self.columns:
            return []
        threshold = 1 - noise * self.sensitivity * NormalDist().inv_cdf(delta / len(self.columns))
        inputs = [index for column in self.columns.values() for index in column]
        sums = zip(inputs, total[self.numbers :].tolist(), released[self.numbers :].tolist(), strict=True)
        return [index for index, count, noisy in sums if count > 0 and noisy > threshold]

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
        variance = ((released[d + 1 : 2 * d + 1] / count + 1) / 2 - mean**2).clip(least, 1)
        center, half = self.center[self.chosen], self.half[self.chosen]
        return center + half * torch.from_numpy(mean), half * torch.from_numpy(np.sqrt(variance))
