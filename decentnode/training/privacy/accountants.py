"""What private steps spend of a privacy budget: epsilon at a given delta, of all steps together.

All bounds are for data sets of which one has a sample that the other has not ("add or remove").
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decentnode.errors import BadInput

ORDERS = (*range(2, 64), 128, 256, 512)
"""Of Renyi divergences. Whole ones have a closed form (Mironov et al., 2019, section 3.3)."""
LOSS_INTERVAL = 1e-3
"""Of the grid of privacy losses; a finer one is at most 0.6 % tighter on the figures of the tests."""
RELATIVE_TOLERANCE = 1e-3
LEAST_NOISE, MOST_NOISE = 0.05, 1e4


class Spending(NamedTuple):
    """Equal private steps in a row."""

    rate: float
    """The probability with which a step uses a sample."""
    noise: float
    """The standard deviation of the noise, in units of the clipping norm."""
    steps: int


History = Sequence[Spending]


class Accountant(ABC):
    """A bound on the epsilon of a history of steps."""

    name: ClassVar[str]
    samplings: ClassVar[frozenset[str]] = frozenset({"poisson"})
    """The samplings for which the bound holds."""
    stride: ClassVar[float] = 2.0
    """The factor between noises until one is enough and one is not."""

    @abstractmethod
    def of(self, history: History, delta: float) -> float:
        """Epsilon of a history in which every step has noise, and a rate above 0."""

    def epsilon(self, history: History, delta: float) -> float:
        """Epsilon of all steps of a history together at this delta; infinite without noise."""
        spent = tuple(one for one in history if one.steps and one.rate > 0)
        if any(one.noise <= 0 for one in spent):
            return float("inf")
        return self.of(spent, delta) if spent else 0.0

    def first_noise(self, epsilon: float, delta: float, rate: float, steps: int) -> float:
        """The noise that `noise_for` tries first."""
        return 1.0

    def noise_for(self, epsilon: float, delta: float, rate: float, steps: int) -> float:
        """The least noise, up to 0.1 %, with which so many steps spend at most epsilon; raises BadInput.

        By bisection, as epsilon falls when the noise grows.
        """

        def is_enough(noise: float) -> bool:
            return self.epsilon([Spending(rate, noise, steps)], delta) <= epsilon

        if not steps or rate <= 0:
            return 0.0
        low = high = self.first_noise(epsilon, delta, rate, steps)
        while not is_enough(high):
            low, high = high, self.stride * high
            if high > MOST_NOISE:
                raise BadInput(
                    f"training.privacy.epsilon: {epsilon:g} needs noise above {MOST_NOISE:g} for {steps} "
                    "steps of a node; allow more, or make fewer steps"
                )
        while low == high or (low > LEAST_NOISE and is_enough(low)):
            low, high = low / self.stride, low
        while high / low > 1 + RELATIVE_TOLERANCE:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return high


class RdpAccountant(Accountant):
    """Adds Renyi divergences of the sampled Gaussian mechanism (Mironov et al., 2019, section 3.3).

    RDP(a) = sum over steps, at each whole order a; epsilon is the least over the orders after the improved
    conversion (Balle et al., 2020, theorem 21; Canonne et al., 2020, proposition 12).
    """

    name = "rdp"

    def of(self, history: History, delta: float) -> float:
        library = accounting()
        epsilon, _ = library.rdp.compute_epsilon(ORDERS, self.curve(history), delta)
        return float(epsilon)

    def curve(self, history: History) -> NDArray[np.float64]:
        """The Renyi divergence at each of `ORDERS`."""
        curves = [one.steps * _curve_of_step(one.rate, one.noise) for one in history]
        total: NDArray[np.float64] = np.sum(curves, axis=0)
        return total


class PldAccountant(Accountant):
    """Convolves distributions of privacy losses on a grid (Koskela et al., 2020; Doroshenko et al., 2022).

    An upper bound, because each loss is rounded up by connecting the dots; tighter than Renyi divergences.
    """

    name = "pld"
    stride = 1.1

    def first_noise(self, epsilon: float, delta: float, rate: float, steps: int) -> float:
        return ACCOUNTANTS["rdp"].noise_for(epsilon, delta, rate, steps)

    def of(self, history: History, delta: float) -> float:
        total: Any = None
        for one in history:
            part = _losses_of_step(one.rate, one.noise).self_compose(one.steps)
            total = part if total is None else total.compose(part)
        return float(total.get_epsilon_for_delta(delta))


ACCOUNTANTS: dict[str, Accountant] = {one.name: one for one in (RdpAccountant(), PldAccountant())}


def accounting() -> ModuleType:
    """The library that computes bounds; raises BadInput where it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    except ImportError as error:
        raise BadInput(
            "training.privacy: the accountants need the package dp-accounting; install decentnode[privacy]"
        ) from error
    return dp_accounting  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _curve_of_step(rate: float, noise: float) -> NDArray[np.float64]:
    library = accounting()
    accountant = library.rdp.RdpAccountant(ORDERS)
    accountant.compose(library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise)))
    curve: NDArray[np.float64] = np.asarray(accountant.rdp)
    return curve


@lru_cache(maxsize=64)
def _losses_of_step(rate: float, noise: float) -> Any:
    distributions = accounting().pld.privacy_loss_distribution
    return distributions.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=LOSS_INTERVAL
    )
