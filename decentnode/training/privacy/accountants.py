"""What private steps spend of a privacy budget: epsilon at a given delta, of all steps together.

All bounds are for data sets of which one has a sample that the other has not ("add or remove").
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from decentnode.errors import BadInput

WHOLE_ORDERS = (*range(2, 64), 128, 256, 512)
ORDERS = (*(1 + k / 10 for k in range(1, 100)), *WHOLE_ORDERS[9:])
"""Orders of Renyi divergences. Whole ones have a closed form, the others a series (Mironov et al., 2019,
section 3.3). Low ones decide where little noise is added: there epsilon is up to a fifth smaller than by
whole ones.
"""
WIDEST_INTERVAL = 1e-3
"""The widest interval of the grid of privacy losses."""
INTERVALS_PER_DEVIATION = 4
MOST_LOSSES, MOST_SUMS = 1 << 17, 1 << 20
"""The points of the grid for the losses of a step and of all steps; about a second, and some."""
TAIL = 10.0
"""The standard deviations beyond which losses are ignored."""
RELATIVE_TOLERANCE = 1e-3
LEAST_NOISE, MOST_NOISE = 0.05, 1e4
LEAST_GIVEN = 1e-3
"""The least noise for which epsilon is computed; it is some millions then."""


class Spending(NamedTuple):
    """A number of equal private steps in a row."""

    rate: float
    """The probability with which a step uses a sample."""
    noise: float
    """The standard deviation of the noise, in units of the clipping norm."""
    steps: int


History = Sequence[Spending]


class Accountant(ABC):
    """A bound on the epsilon of a history of steps."""

    name: ClassVar[str]
    samplings: ClassVar[frozenset[str]] = frozenset({"poisson", "cyclic"})
    """The samplings for which the bound holds."""
    stride: ClassVar[float] = 2.0
    """The factor between noises until one is enough and one is not."""

    @abstractmethod
    def of(self, history: History, delta: float) -> float:
        """Returns epsilon of a history in which every step has noise, and a rate above 0."""

    def epsilon(self, history: History, delta: float) -> float:
        """Returns epsilon of all steps of a history together at this delta; infinite without noise."""
        spent = tuple(spending for spending in history if spending.steps and spending.rate > 0)
        if any(spending.noise <= 0 for spending in spent):
            return float("inf")
        return self.of(spent, delta) if spent else 0.0

    def first_noise(self, epsilon: float, delta: float, rate: float, steps: int) -> float:
        """The noise that `noise_for` tries first."""
        return 1.0

    def noise_for(
        self, epsilon: float, delta: float, rate: float, steps: int, before: History = ()
    ) -> float:  # fmt: skip
        """The least noise, up to 0.1 %, with which so many steps spend at most epsilon; raises BadInput.

        `before`: what was spent before these steps, and is a part of epsilon. By bisection, as epsilon falls
        when the noise grows.
        """

        def is_enough(noise: float) -> bool:
            return self.epsilon([*before, Spending(rate, noise, steps)], delta) <= epsilon

        if not steps or rate <= 0:
            return 0.0
        low = high = self.first_noise(epsilon, delta, rate, steps=steps)
        while not is_enough(high):
            low, high = high, self.stride * high
            if high > MOST_NOISE:
                raise BadInput.at(
                    "training.privacy.epsilon",
                    f"{epsilon:g} needs noise above {MOST_NOISE:g} for {steps} "
                    "steps of a node; allow more, or make fewer steps",
                )
        while low == high or (low > LEAST_NOISE and is_enough(low)):
            low, high = low / self.stride, low
        while high / low > 1 + RELATIVE_TOLERANCE:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return high


class RdpAccountant(Accountant):
    """Adds Renyi divergences of the sampled Gaussian mechanism (Mironov et al., 2019, section 3.3).

    RDP(a) = sum over steps, at each order a; epsilon is the least over the orders after the improved
    conversion (Balle et al., 2020, theorem 21; Canonne et al., 2020, proposition 12). Over the orders it
    falls and then rises, so a search over whole ones and one between the neighbors of the best of them look
    at a tenth of `ORDERS`. Whichever orders are looked at, the least is a bound.
    """

    name = "rdp"

    def of(self, history: History, delta: float) -> float:
        @cache
        def at(order: float) -> float:
            divergence = self.divergence(history, order)
            return float(accounting().rdp.compute_epsilon([order], [divergence], delta)[0])

        best = _lowest(WHOLE_ORDERS, at)
        between = [order for order in ORDERS if best - 1 < order < best + 1]
        # Where next to nothing is spent, the lowest orders show that it is nothing.
        return min(map(at, (ORDERS[0], WHOLE_ORDERS[0], best, _lowest(between, at))))

    def divergence(self, history: History, order: float) -> float:
        """Returns the Renyi divergence of all steps at an order; infinite where a series diverges."""
        return sum(
            spending.steps * _divergence_of_step(spending.rate, spending.noise, order) for spending in history
        )


class PldAccountant(Accountant):
    """Convolves distributions of privacy losses on a grid (Koskela et al., 2020; Doroshenko et al., 2022).

    An upper bound, because each loss is rounded up by connecting the dots; tighter than Renyi divergences on
    a grid that is fine enough (`loss_interval`).
    """

    name = "pld"
    stride = 1.1

    def first_noise(self, epsilon: float, delta: float, rate: float, steps: int) -> float:
        return ACCOUNTANTS["rdp"].noise_for(epsilon, delta, rate, steps=steps)

    def of(self, history: History, delta: float) -> float:
        total: Any = None
        interval = loss_interval(history)
        for spending in history:
            part = _losses_of_step(spending.rate, spending.noise, interval).self_compose(spending.steps)
            total = part if total is None else total.compose(part)
        return float(total.get_epsilon_for_delta(delta))


ACCOUNTANTS: dict[str, Accountant] = {kind.name: kind for kind in (RdpAccountant(), PldAccountant())}


def gaussian_epsilon(moved: float, delta: float) -> float:
    """The exact epsilon of a Gaussian mechanism (Balle and Wang, 2018, theorem 8).

    `moved`: how far one sample moves its mean, in deviations of its noise.
    """
    return float(accounting().get_epsilon_gaussian(1 / moved, delta))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least deviation of a Gaussian mechanism whose mean one sample moves by 1."""
    return float(accounting().get_sigma_gaussian(epsilon, delta))


def accounting() -> ModuleType:
    """The library that computes bounds; raises BadInput where it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    except ImportError as error:
        raise BadInput.at(
            "training.privacy", "the accountants need the package dp-accounting; install decentnode[privacy]"
        ) from error
    return dp_accounting  # type: ignore[no-any-return]


def loss_interval(history: History) -> float:
    """The interval h of the grid on which the losses of a history are added, for all of its steps the same.

    A loss of a step has mean 0, but for terms of second order, and the variance

        s^2 = q^2 (exp(1 / sigma^2) - 1),     the chi-squared divergence of (1 - q) N(0) + q N(1) from N(0)

    for small s. Connecting the dots moves it to the ends of its interval, so that the mean of exp(-loss)
    stays: its variance grows by the mean of (x - a)(b - x), which is h^2 / 6 where losses fill an interval
    evenly, and never more than h^2 / 4. With T steps both grow T times. So h / s counts, not T: with
    h = s / 4 the variance is 1/96 too large, and epsilon, which grows as its root, half a percent. A fixed h
    far above s is no bound of use: each step seems to have the variance s h. Several parts have the mean of
    s^2 over their steps.

    h is at least what bounds the number of points: of a step, up to the loss at `TAIL` deviations of noise,
    and of the sum, up to its mean, T s^2 / 2, and as many deviations on both sides.
    """
    steps = sum(spending.steps for spending in history)
    variance = sum(spending.steps * _variance_of_step(spending) for spending in history)
    finest = math.sqrt(variance / steps) / INTERVALS_PER_DEVIATION
    largest = max(_largest_loss(spending) for spending in history)
    whole = variance / 2 + 2 * TAIL * math.sqrt(variance)
    return min(WIDEST_INTERVAL, max(finest, largest / MOST_LOSSES, whole / MOST_SUMS))


def _variance_of_step(spending: Spending) -> float:
    # Where the exponential is large, the widest interval is taken anyway.
    return spending.rate**2 * math.expm1(min(1 / spending.noise**2, 100.0))


def _largest_loss(spending: Spending) -> float:
    """Returns log(1 - q + q exp((2 x - 1) / (2 sigma^2))) at x = 1 + 10 sigma."""
    exponent = 1 / (2 * spending.noise**2) + TAIL / spending.noise
    without = math.log1p(-spending.rate) if spending.rate < 1 else -math.inf
    return float(np.logaddexp(without, math.log(spending.rate) + exponent))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences a warning about each order that the library leaves out, as its series does not converge."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _lowest(orders: Sequence[float], value: Callable[[float], float]) -> float:
    """Returns the order with the least value. Values fall and then rise; the first may be infinite."""
    low, high = 0, len(orders) - 1
    while low < high:
        middle = (low + high) // 2
        if math.inf > value(orders[middle + 1]) >= value(orders[middle]):
            high = middle
        else:
            low = middle + 1
    return orders[low]


@lru_cache(maxsize=1 << 16)
def _divergence_of_step(rate: float, noise: float, order: float) -> float:
    library = accounting()
    accountant = library.rdp.RdpAccountant([order])
    with _quiet():
        accountant.compose(library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise)))
    return float(accountant.rdp[0])


@lru_cache(maxsize=64)
def _losses_of_step(rate: float, noise: float, interval: float) -> Any:
    distributions = accounting().pld.privacy_loss_distribution
    return distributions.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    )
